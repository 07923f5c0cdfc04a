"""The unigram trainer (Kudo, 2018, "Subword Regularization"): a vocabulary of pieces, each with a log-probability.

Start from far too many pieces (the substrings that cover most text), then repeat: re-estimate their probabilities by
EM over all segmentations of all words, and drop the quarter whose loss costs the least likelihood.

Ours and not the library's, for two reasons: on 50 MB of Wikipedia and 8,000 pieces the library's takes 330 s, this one
a fraction of it; and the library's adds floats in the order of a hash table that is seeded anew in every process, so
no two runs give the same file. Here everything is vectorised over the distinct words and adds up in a fixed order.

A piece holds one Unicode script: letters never share one with digits or punctuation ("nation" and "." are two pieces,
"3.14" may be one), as SentencePiece has it by default (`split_by_unicode_script`, `split_by_number`). Training alone
sees to it: the encoder has no other pieces to choose from.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from zlib import crc32

import numpy as np
from tokenizers import pre_tokenizers

from pretune.text.tokenizer import seeds
from pretune.text.tokenizer.lattice import Floats, Ints, Lattice

MAX_WORD_LENGTH = 32
"""Longer words are cut: a product of so many probabilities of 1e-9 is still a float64."""
MAX_CHARACTERS = 2_000_000
"""How many characters of distinct words are looked at, the most frequent words first: some 400 MB of memory at most."""
SEED_FACTOR = 10
"""The pieces at the start are so many times the size asked for."""
KEEP_SHARE = 0.75
EM_ROUNDS = 2
_MIN_PROBABILITY = 1e-9
_SCRIPTS = pre_tokenizers.UnicodeScripts()  # Hiragana, Katakana and Han count as one
_SPACE = "▁"
_JOINERS = "\u200c\u200d"


def train_unigram(
    words: Mapping[str, int], size: int, alphabet: Sequence[str], min_count: int = 2
) -> list[tuple[str, float]]:
    """The best `size` pieces for words with their counts, the likeliest first, the whole alphabet among them.

    Words are cut at characters outside the alphabet; substrings seen less than `least` times are never pieces.
    """
    letters = sorted(alphabet)
    counted = select_words(words, set(letters))
    if not counted:
        return []
    counts = np.array([count for _, count in counted], np.float64)
    most = max(SEED_FACTOR * size, 10_000)
    pieces, seen, example, whole = seeds.find_seed_pieces(
        [word for word, _ in counted], counts, letters, most, min_count
    )
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    score = np.log(np.maximum(seen, 0.5) / seen.sum())
    alive = np.ones(len(pieces), bool)
    goal = max(int(size * 1.1), len(letters))
    while True:
        for _ in range(EM_ROUNDS):
            expected = whole.compute_expected_counts(np.maximum(np.exp(score), _MIN_PROBABILITY), counts)
            alive &= expected >= 0.5
            alive[: len(letters)] = True  # else a word would have no segmentation
            whole = whole.keep(alive)
            score = _estimate(np.where(alive, np.maximum(expected, 0.5), 0.0))
        left = int(alive.sum())
        if left <= goal:
            break
        long = np.flatnonzero(alive & (sizes > 1))
        cost = np.full(len(pieces), -np.inf)
        cost[long] = _compute_costs(
            whole, whole.build_sublattice(example[long], sizes[long]), long, score, counts, sizes
        )
        cost[: len(letters)] = np.inf
        alive[np.argsort(-cost, kind="stable")[max(goal, int(left * KEEP_SHARE)) :]] = False
        whole = whole.keep(alive)
        score[~alive] = -np.inf
    order = [i for i in np.argsort(-score, kind="stable").tolist() if alive[i] and i >= len(letters)]
    chosen = [*range(len(letters)), *order[: max(size - len(letters), 0)]]
    # Rounded, so that a processor whose logarithm differs in the last bit gives the same file.
    found = [(pieces[i], round(float(score[i]), 6)) for i in chosen]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def select_words(words: Mapping[str, int], alphabet: set[str]) -> list[tuple[str, int]]:
    """The stretches of the alphabet's characters in the words, at most CHARACTERS in all, with their counts.

    A stretch holds one script (`split_scripts`).
    """
    found: dict[str, int] = {}
    for word, count in words.items():
        known = word if alphabet.issuperset(word) else "".join(c if c in alphabet else "\0" for c in word)
        for part in (run for stretch in known.split("\0") for run in split_scripts(stretch)):
            for i in range(0, len(part), MAX_WORD_LENGTH):
                stretch = part[i : i + MAX_WORD_LENGTH]
                found[stretch] = found.get(stretch, 0) + count
    # Among equally frequent ones a hash decides: their own order would take those of the first letter or script.
    ordered = sorted(found.items(), key=lambda pair: (-pair[1], crc32(pair[0].encode()), pair[0]))
    within = np.cumsum([len(word) for word, _ in ordered]) <= MAX_CHARACTERS
    return ordered[: int(within.sum())]


def split_scripts(word: str) -> list[str]:
    """Cut a word where the Unicode script changes; digits and punctuation are of the script "Common".

    The space (▁) goes with any script, and a combining mark with the character before it.

    >>> split_scripts("▁nation."), split_scripts("▁1,000km")
    (['▁nation', '.'], ['▁1,000', 'km'])
    """
    body = word.removeprefix(_SPACE)
    if body.isascii() and body.isalpha():
        return [word]
    bases = [i for i, c in enumerate(word) if c != _SPACE and c not in _JOINERS and unicodedata.category(c)[0] != "M"]
    runs = _SCRIPTS.pre_tokenize_str("".join(word[i] for i in bases))
    cuts = [bases[start] for _, (start, _) in runs[1:]]
    return [word[a:b] for a, b in pairwise([0, *cuts, len(word)])]


def _estimate(expected: Floats) -> Floats:
    """Log-probabilities from expected counts, by the digamma function: Bayesian, so that rare pieces lose more."""
    total = _digamma(np.array([expected.sum()]))
    score = np.full(len(expected), -np.inf)
    used = expected > 0
    score[used] = _digamma(expected[used]) - total
    return score


def _digamma(x: Floats) -> Floats:
    """The derivative of log gamma: the recurrence up to 7, then the asymptotic series (relative error below 1e-11)."""
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
    """How much log-likelihood the pieces `which` are worth: what it costs if other pieces take their place.

    `other` has these pieces as its words. The count of a piece goes to the parts of its own best segmentation. A piece
    that its parts explain better than it does itself, or that no best segmentation uses, is worth nothing.
    """
    used = np.zeros(len(score))
    for word, piece in lattice.walk(lattice.find_best(score)[1], sizes):
        np.add.at(used, piece, counts[word])
    total, own = used.sum(), used[piece_ids]
    alternative, by = sublattice.find_best(score)
    parts, logs = np.zeros(len(piece_ids)), np.zeros(len(piece_ids))
    for owner, piece in sublattice.walk(by, sizes):
        parts[owner] += 1
        logs[owner] += np.log(np.maximum(used[piece] + own[owner], _MIN_PROBABILITY))
    instead = logs - parts * np.log(total + own * np.maximum(parts - 1, 0))
    cost = own * (np.log(np.maximum(own, _MIN_PROBABILITY)) - np.log(total) - instead)
    cost[(own == 0) | (alternative > score[piece_ids])] = -1.0
    return np.asarray(cost)
