"""Lattice of all segmentations of many words, for the unigram trainer.

The words are concatenated as nodes, one before each character and one at the end of a word. An arc is a piece between
two nodes. Arcs are sorted by their end in the word and then by length, so that a group of equal (end, length) is one
numpy operation: no two of its arcs share a node on either side.

Legend: W words, N nodes, A arcs, V pieces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

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
