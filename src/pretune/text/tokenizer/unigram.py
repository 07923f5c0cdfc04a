"""Unigram trainer (Kudo, 2018, "Subword Regularization"): a vocabulary of pieces with log-probabilities.

Start from far too many pieces (the substrings that cover most text), then repeat: re-estimate their probabilities by
EM over all segmentations of all words, and drop the quarter whose removal costs the least likelihood.

Our own trainer, for two reasons: on 50 MB of Wikipedia and 8,000 pieces the library's takes 330 s, this one a fraction
of it; and the library's adds floats in the order of a hash table that is seeded per process, so no two runs give the
same file. Here everything is vectorised over the distinct words and summed in a fixed order.

A piece holds one Unicode script: letters are never mixed with digits or punctuation ("nation" and "." are two pieces,
"3.14" may be one), as in SentencePiece by default (`split_by_unicode_script`, `split_by_number`). Only training
enforces it: the encoder has no other pieces to choose from.

All segmentations of many words are one lattice. The words are concatenated as nodes, one before each character and one
at the end of a word. An arc is a piece between two nodes. Arcs are sorted by their end in the word and then by length,
so that a group of equal (end, length) is one numpy operation: no two of its arcs share a node on either side.

Legend: W words, N nodes, A arcs, V pieces.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Short = NDArray[np.int32]

MAX_LENGTH = 64
"""Greater than the length of the longest piece and word; the key of a group is end * MAX_LENGTH + length."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Arcs over the nodes of a list of words; `heads` and `tails` are the first and last node of every word."""

    heads: Ints  # [W]
    tails: Ints  # [W]
    begin: Short  # [A] start node of an arc; it ends `length` nodes later
    piece: Short  # [A]
    key: NDArray[np.int16]  # [A] ascending

    @classmethod
    def build(cls, lengths: Ints, begin: Short, piece: Short, length: NDArray[np.int16]) -> "Lattice":
        """Build a lattice from the lengths of the words and arcs in any order."""
        tails = np.cumsum(lengths + 1) - 1
        heads = tails - lengths
        inside = np.arange(int(tails[-1]) + 1 if len(tails) else 0) - np.repeat(heads, lengths + 1)
        key = ((inside[begin] + length) * MAX_LENGTH + length).astype(np.int16)
        order = np.argsort(key, kind="stable")
        return cls(heads, tails, begin[order], piece[order], key[order])

    def keep(self, alive: NDArray[np.bool_]) -> "Lattice":
        """Return the lattice without the arcs of removed pieces."""
        good = alive[self.piece]
        return Lattice(self.heads, self.tails, self.begin[good], self.piece[good], self.key[good])

    def list_groups(self) -> list[tuple[slice, int]]:
        """Return the slices of arcs with the same end in their word and the same length."""
        if not len(self.key):
            return []
        cuts = np.flatnonzero(np.diff(self.key)) + 1
        bounds = [0, *cuts.tolist(), len(self.key)]
        return [(slice(start, stop), int(self.key[start]) % MAX_LENGTH) for start, stop in pairwise(bounds)]

    def compute_expected_counts(self, probability: Floats, counts: Floats) -> Floats:
        """Return the expected count of each piece over all segmentations (forward-backward), [V]."""
        groups = self.list_groups()
        nodes = int(self.tails[-1]) + 1
        forward, backward = np.zeros(nodes), np.zeros(nodes)
        forward[self.heads] = 1.0
        for arcs, length in groups:
            begin = self.begin[arcs]
            forward[begin + length] += forward[begin] * probability[self.piece[arcs]]
        backward[self.tails] = counts / forward[self.tails]
        expected_counts = np.zeros(len(probability))
        for arcs, length in reversed(groups):
            begin, piece = self.begin[arcs], self.piece[arcs]
            flow = probability[piece] * backward[begin + length]
            backward[begin] += flow
            np.add.at(expected_counts, piece, flow * forward[begin])
        return expected_counts

    def find_best(self, score: Floats) -> tuple[Floats, Short]:
        """Return the score of the best segmentation of every word, [W], and the last piece before every node, [N].

        The score is -inf if there is none.
        """
        nodes = int(self.tails[-1]) + 1 if len(self.tails) else 0
        best_scores, backpointers = np.full(nodes, -np.inf), np.full(nodes, -1, np.int32)
        best_scores[self.heads] = 0.0
        for arcs, length in self.list_groups():
            begin, piece = self.begin[arcs], self.piece[arcs]
            candidate_scores = best_scores[begin] + score[piece]
            better = candidate_scores > best_scores[begin + length]
            end = begin[better] + length
            best_scores[end] = candidate_scores[better]
            backpointers[end] = piece[better]
        return best_scores[self.tails], backpointers

    def build_sublattice(self, examples: Ints, sizes: Ints) -> "Lattice":
        """Return the lattice of spans of this one as words, without the arcs that cover an entire span.

        `examples` are the start nodes of the spans and `sizes` their characters, [S].
        """
        in_span = np.zeros(int(self.tails[-1]) + 1, bool)
        in_span[expand_ranges(examples, sizes)] = True
        arcs_in_spans = np.flatnonzero(in_span[self.begin])
        arcs_in_spans = arcs_in_spans[np.argsort(self.begin[arcs_in_spans], kind="stable")]
        begin, size = self.begin[arcs_in_spans], self.key[arcs_in_spans] % MAX_LENGTH
        nodes = expand_ranges(examples, sizes)  # one row per span and character
        first, last = np.searchsorted(begin, nodes), np.searchsorted(begin, nodes, "right")
        row = np.repeat(np.arange(len(nodes)), last - first)
        arc = expand_ranges(first, last - first)
        offset = np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # inside the span
        room = np.repeat(sizes, sizes) - offset
        fits = (size[arc] <= room[row]) & ~((offset[row] == 0) & (size[arc] == room[row]))
        row, arc = row[fits], arc[fits]
        new_nodes = np.arange(len(nodes)) + np.repeat(np.arange(len(sizes)), sizes)  # a word has one node more
        return Lattice.build(sizes, new_nodes[row].astype(np.int32), self.piece[arcs_in_spans[arc]], size[arc])

    def walk(self, backpointers: Short, sizes: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield the best segmentations backwards, all words in step: the is_active words, and the piece of each."""
        word = np.arange(len(self.tails))
        node = self.tails.copy()
        while True:
            piece = backpointers[node].astype(np.int64)
            is_active = (node > self.heads[word]) & (piece >= 0)
            word, node, piece = word[is_active], node[is_active], piece[is_active]
            if not len(word):
                return
            yield word, piece
            node = node - sizes[piece]


def expand_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the numbers start, start + 1, … of every range, concatenated.

    >>> expand_ranges(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist()
    [5, 6, 7, 8, 9]
    """
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)


MAX_PIECE_LENGTH = 16


@dataclass(frozen=True, slots=True)
class _Level:
    """All substrings of one length: their positions, and statistics of each distinct one."""

    positions: Short  # start nodes
    ids: Short  # distinct substring at each position
    count: Floats  # of each distinct substring
    example: Ints  # one start node of each
    parent: Ints  # its prefix: the index at the previous level


def find_seed_pieces(
    words: Sequence[str], counts: Floats, letters: Sequence[str], max_pieces: int, min_count: int
) -> tuple[list[str], Floats, Ints, Lattice]:
    """Return the letters and at most `max_pieces` longer pieces, their counts, one start node each, and the lattice.

    The pieces are the substrings of words that cover the most text. Substrings grow by one character at a time, all at
    once, and only frequent ones grow. A substring that is always followed by the same character is redundant with the
    longer one and is omitted (it is no node of the suffix tree that the original algorithm walks).
    """
    lengths = np.array([len(word) for word in words], np.int64)
    text = "\0".join(words) + "\0"  # one character per node, "\0" at the end of a word
    code = {letter: i for i, letter in enumerate(letters)} | {"\0": -1}
    flat = np.fromiter(map(code.__getitem__, text), np.int64, len(text))
    levels = _grow(flat, np.repeat(counts, lengths + 1), len(letters), min_count)
    pieces = list(letters)
    numbers = [np.arange(len(letters))]
    for length, (level, rows) in enumerate(
        zip(levels[1:], _choose_pieces(levels, max_pieces, min_count), strict=True), 2
    ):
        number = np.full(len(level.count), -1)
        number[rows] = len(pieces) + np.arange(len(rows))
        numbers.append(number)
        pieces += [text[i : i + length] for i in level.example[rows].tolist()]
    piece_counts = np.concatenate([level.count[number >= 0] for level, number in zip(levels, numbers, strict=True)])
    example = np.concatenate([level.example[number >= 0] for level, number in zip(levels, numbers, strict=True)])
    begin, piece, size = [], [], []
    for length, (level, number) in enumerate(zip(levels, numbers, strict=True), 1):
        piece_ids = number[level.ids]
        begin.append(level.positions[piece_ids >= 0])
        piece.append(piece_ids[piece_ids >= 0].astype(np.int32))
        size.append(np.full(len(piece[-1]), length, np.int16))
    arcs = np.concatenate(begin), np.concatenate(piece), np.concatenate(size)
    return pieces, piece_counts, example, Lattice.build(lengths, *arcs)


def _grow(flat: Ints, weight: Floats, letters: int, min_count: int) -> list[_Level]:
    positions = np.flatnonzero(flat >= 0).astype(np.int32)
    ids = flat[positions].astype(np.int32)
    count: Floats = np.bincount(ids, weights=weight[positions], minlength=letters).astype(np.float64)
    zeros = np.zeros(letters, np.int64)
    levels = [_Level(positions, ids, count, zeros, zeros)]
    for length in range(2, MAX_PIECE_LENGTH + 1):
        grows = (flat[positions + length - 1] >= 0) & (count[ids] >= min_count)
        positions, ids = positions[grows], ids[grows]
        if not len(positions):
            break
        longer = ids.astype(np.int64) * letters + flat[positions + length - 1]
        distinct, first, number = np.unique(longer, return_index=True, return_inverse=True)
        ids = number.astype(np.int32)
        count = np.bincount(ids, weights=weight[positions]).astype(np.float64)
        levels.append(_Level(positions, ids, count, positions[first].astype(np.int64), distinct // letters))
    return levels


def _choose_pieces(levels: list[_Level], max_pieces: int, min_count: int) -> list[Ints]:
    """Choose, per level from the second on, the substrings that cover the most characters."""
    covers: list[Floats] = []
    for length, level in enumerate(levels[1:], 2):
        good = level.count >= min_count
        if length < len(levels):
            longer = levels[length]
            good[longer.parent[longer.count == level.count[longer.parent]]] = False
        covers.append(np.where(good, level.count * length, 0.0))
    flat = np.concatenate([*covers, np.zeros(0)])
    best = np.argsort(-flat, kind="stable")[:max_pieces]
    is_chosen: NDArray[np.bool_] = np.zeros(len(flat), bool)
    is_chosen[best[flat[best] > 0]] = True
    parts = np.split(is_chosen, np.cumsum([len(part) for part in covers])[:-1]) if covers else []
    return [np.flatnonzero(part) for part in parts]


MAX_WORD_LENGTH = 32
"""Longer words are split: a product of this many probabilities of 1e-9 is still a float64."""
MAX_CHARACTERS = 2_000_000
"""Maximum number of characters of distinct words, the most frequent first: at most about 400 MB of memory."""
SEED_FACTOR = 10
"""Ratio of seed pieces to the requested vocabulary."""
KEEP_SHARE = 0.75
EM_ROUNDS = 2
_MIN_PROBABILITY = 1e-9
_SCRIPTS = pre_tokenizers.UnicodeScripts()  # treats Hiragana, Katakana and Han as one
_SPACE = "▁"
_JOINERS = "\u200c\u200d"


def train_unigram(
    words: Mapping[str, int], size: int, alphabet: Sequence[str], min_count: int = 2
) -> list[tuple[str, float]]:
    """Return the best `size` pieces for words with their counts, the likeliest first, including the entire alphabet.

    Words are split at characters outside the alphabet; substrings with fewer than `min_count` occurrences are excluded.
    """
    letters = sorted(alphabet)
    word_counts = select_words(words, set(letters))
    if not word_counts:
        return []
    counts = np.array([count for _, count in word_counts], np.float64)
    max_seeds = max(SEED_FACTOR * size, 10_000)
    pieces, seed_counts, example, lattice = find_seed_pieces(
        [word for word, _ in word_counts], counts, letters, max_seeds, min_count
    )
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    score = np.log(np.maximum(seed_counts, 0.5) / seed_counts.sum())
    alive = np.ones(len(pieces), bool)
    goal = max(int(size * 1.1), len(letters))
    while True:
        for _ in range(EM_ROUNDS):
            expected_counts = lattice.compute_expected_counts(np.maximum(np.exp(score), _MIN_PROBABILITY), counts)
            alive &= expected_counts >= 0.5
            alive[: len(letters)] = True  # otherwise a word might have no segmentation
            lattice = lattice.keep(alive)
            score = _estimate(np.where(alive, np.maximum(expected_counts, 0.5), 0.0))
        remaining = int(alive.sum())
        if remaining <= goal:
            break
        long_pieces = np.flatnonzero(alive & (sizes > 1))
        cost = np.full(len(pieces), -np.inf)
        sublattice = lattice.build_sublattice(example[long_pieces], sizes[long_pieces])
        cost[long_pieces] = _compute_costs(lattice, sublattice, long_pieces, score, counts, sizes)
        cost[: len(letters)] = np.inf
        alive[np.argsort(-cost, kind="stable")[max(goal, int(remaining * KEEP_SHARE)) :]] = False
        lattice = lattice.keep(alive)
        score[~alive] = -np.inf
    order = [i for i in np.argsort(-score, kind="stable").tolist() if alive[i] and i >= len(letters)]
    piece_ids = [*range(len(letters)), *order[: max(size - len(letters), 0)]]
    # Rounded, so that a CPU whose logarithm differs in the last bit gives the same file.
    scored_pieces = [(pieces[i], round(float(score[i]), 6)) for i in piece_ids]
    return sorted(scored_pieces, key=lambda pair: (-pair[1], pair[0]))


def select_words(words: Mapping[str, int], alphabet: set[str]) -> list[tuple[str, int]]:
    """Return the spans of the alphabet's characters in the words, at most MAX_CHARACTERS in all, with their counts.

    A span holds one script (`split_scripts`).
    """
    counts: dict[str, int] = {}
    for word, count in words.items():
        masked_word = word if alphabet.issuperset(word) else "".join(c if c in alphabet else "\0" for c in word)
        for part in (run for span in masked_word.split("\0") for run in split_scripts(span)):
            for i in range(0, len(part), MAX_WORD_LENGTH):
                span = part[i : i + MAX_WORD_LENGTH]
                counts[span] = counts.get(span, 0) + count
    # Ties are broken by a hash: alphabetical order would favour the first letters or scripts.
    spans = sorted(counts.items(), key=lambda pair: (-pair[1], crc32(pair[0].encode()), pair[0]))
    fits = np.cumsum([len(word) for word, _ in spans]) <= MAX_CHARACTERS
    return spans[: int(fits.sum())]


def split_scripts(word: str) -> list[str]:
    """Split a word where the Unicode script changes; digits and punctuation are of the script "Common".

    The space (▁) goes with any script, and a combining mark with the preceding character.

    >>> split_scripts("▁nation."), split_scripts("▁1,000km")
    (['▁nation', '.'], ['▁1,000', 'km'])
    """
    body = word.removeprefix(_SPACE)
    if body.isascii() and body.isalpha():
        return [word]
    bases = [i for i, c in enumerate(word) if c != _SPACE and c not in _JOINERS and unicodedata.category(c)[0] != "M"]
    runs = _SCRIPTS.pre_tokenize_str("".join(word[i] for i in bases))
    cuts = [bases[start] for _, (start, _) in runs[1:]]
    return [word[start:stop] for start, stop in pairwise([0, *cuts, len(word)])]


def _estimate(expected_counts: Floats) -> Floats:
    """Return log-probabilities of expected counts by the digamma function: Bayesian, so that rare pieces lose more."""
    total = _digamma(np.array([expected_counts.sum()]))
    score = np.full(len(expected_counts), -np.inf)
    is_used = expected_counts > 0
    score[is_used] = _digamma(expected_counts[is_used]) - total
    return score


def _digamma(x: Floats) -> Floats:
    """Return the digamma function: the recurrence up to 7, then the asymptotic series (relative error below 1e-11)."""
    result = np.zeros_like(x)
    x = x.copy()
    while (small := x < 7).any():
        result[small] -= 1 / x[small]
        x[small] += 1
    x -= 0.5
    square = 1 / (x * x)
    return np.asarray(
        result + np.log(x) + square * (1 / 24 + square * (-7 / 960 + square * (31 / 8064 - square * 127 / 30720)))
    )


def _compute_costs(
    lattice: Lattice, sublattice: Lattice, piece_ids: Ints, score: Floats, counts: Floats, sizes: Ints
) -> Floats:
    """Return the log-likelihood that pieces are worth: the loss if other pieces replace them.

    `sublattice` has these pieces as its words. The count of a piece goes to the parts of its best segmentation. A piece
    that its parts explain better than itself, or that no best segmentation uses, is worth nothing.
    """
    usage = np.zeros(len(score))
    for word, piece in lattice.walk(lattice.find_best(score)[1], sizes):
        np.add.at(usage, piece, counts[word])
    total, piece_usage = usage.sum(), usage[piece_ids]
    alternative, backpointers = sublattice.find_best(score)
    parts, logs = np.zeros(len(piece_ids)), np.zeros(len(piece_ids))
    for owner, piece in sublattice.walk(backpointers, sizes):
        parts[owner] += 1
        logs[owner] += np.log(np.maximum(usage[piece] + piece_usage[owner], _MIN_PROBABILITY))
    replacement_score = logs - parts * np.log(total + piece_usage * np.maximum(parts - 1, 0))
    cost = piece_usage * (np.log(np.maximum(piece_usage, _MIN_PROBABILITY)) - np.log(total) - replacement_score)
    cost[(piece_usage == 0) | (alternative > score[piece_ids])] = -1.0
    return np.asarray(cost)
