"""All segmentations of many words at once: the lattice that the unigram trainer runs on.

The words lie end to end as nodes, one before each character and one at a word's end. An arc is a piece that fits
between two nodes. Arcs are sorted by where in its word they end and then by their length, so that a group of equal
(end, length) is one numpy operation: no two arcs of it touch the same node on either side.

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
"""More than the longest piece and the longest word have characters; a group's key is end * SPAN + length."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """The arcs over the nodes of a list of words; `heads` and `tails` are the first and last node of every word."""

    heads: Ints  # [W]
    tails: Ints  # [W]
    begin: Short  # [A] the node an arc leaves; it arrives `length` nodes later
    piece: Short  # [A]
    key: NDArray[np.int16]  # [A] ascending

    @classmethod
    def build(cls, lengths: Ints, begin: Short, piece: Short, length: NDArray[np.int16]) -> "Lattice":
        """From the lengths of the words and arcs in any order."""
        tails = np.cumsum(lengths + 1) - 1
        heads = tails - lengths
        inside = np.arange(int(tails[-1]) + 1 if len(tails) else 0) - np.repeat(heads, lengths + 1)
        key = ((inside[begin] + length) * MAX_LENGTH + length).astype(np.int16)
        order = np.argsort(key, kind="stable")
        return cls(heads, tails, begin[order], piece[order], key[order])

    def keep(self, alive: NDArray[np.bool_]) -> "Lattice":
        """Without the arcs of pieces that are gone."""
        good = alive[self.piece]
        return Lattice(self.heads, self.tails, self.begin[good], self.piece[good], self.key[good])

    def list_groups(self) -> list[tuple[slice, int]]:
        """The stretches of arcs that end at the same place in their words and have the same length."""
        if not len(self.key):
            return []
        cuts = np.flatnonzero(np.diff(self.key)) + 1
        bounds = [0, *cuts.tolist(), len(self.key)]
        return [(slice(a, b), int(self.key[a]) % MAX_LENGTH) for a, b in pairwise(bounds)]

    def compute_expected_counts(self, probability: Floats, counts: Floats) -> Floats:
        """How often each piece is used on average over all segmentations (forward-backward), [V]."""
        groups = self.list_groups()
        nodes = int(self.tails[-1]) + 1
        forward, backward = np.zeros(nodes), np.zeros(nodes)
        forward[self.heads] = 1.0
        for stretch, length in groups:
            begin = self.begin[stretch]
            forward[begin + length] += forward[begin] * probability[self.piece[stretch]]
        backward[self.tails] = counts / forward[self.tails]
        expected = np.zeros(len(probability))
        for stretch, length in reversed(groups):
            begin, piece = self.begin[stretch], self.piece[stretch]
            flow = probability[piece] * backward[begin + length]
            backward[begin] += flow
            np.add.at(expected, piece, flow * forward[begin])
        return expected

    def find_best(self, score: Floats) -> tuple[Floats, Short]:
        """The score of the best segmentation of every word, [W], and the piece it reaches every node by, [N].

        The score is -inf where there is none.
        """
        nodes = int(self.tails[-1]) + 1 if len(self.tails) else 0
        reached, by = np.full(nodes, -np.inf), np.full(nodes, -1, np.int32)
        reached[self.heads] = 0.0
        for stretch, length in self.list_groups():
            begin, piece = self.begin[stretch], self.piece[stretch]
            offered = reached[begin] + score[piece]
            better = offered > reached[begin + length]
            end = begin[better] + length
            reached[end] = offered[better]
            by[end] = piece[better]
        return reached[self.tails], by

    def build_sublattice(self, examples: Ints, sizes: Ints) -> "Lattice":
        """The lattice of stretches of this one as words, without the arcs that span a whole stretch.

        `examples` are the nodes at which the stretches start and `sizes` their characters, [S].
        """
        wanted = np.zeros(int(self.tails[-1]) + 1, bool)
        wanted[expand_ranges(examples, sizes)] = True
        near = np.flatnonzero(wanted[self.begin])
        near = near[np.argsort(self.begin[near], kind="stable")]
        begin, size = self.begin[near], self.key[near] % MAX_LENGTH
        nodes = expand_ranges(examples, sizes)  # one row per stretch and character from here on
        first, last = np.searchsorted(begin, nodes), np.searchsorted(begin, nodes, "right")
        row = np.repeat(np.arange(len(nodes)), last - first)
        arc = expand_ranges(first, last - first)
        at = np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # inside the stretch
        room = np.repeat(sizes, sizes) - at
        fits = (size[arc] <= room[row]) & ~((at[row] == 0) & (size[arc] == room[row]))
        row, arc = row[fits], arc[fits]
        own = np.arange(len(nodes)) + np.repeat(np.arange(len(sizes)), sizes)  # a word has one node more
        return Lattice.build(sizes, own[row].astype(np.int32), self.piece[near[arc]], size[arc])

    def walk(self, backpointers: Short, sizes: Ints) -> Iterator[tuple[Ints, Ints]]:
        """The best segmentations backwards, all words in step: which words are still on their way, and their piece."""
        word = np.arange(len(self.tails))
        node = self.tails.copy()
        while True:
            piece = backpointers[node].astype(np.int64)
            on = (node > self.heads[word]) & (piece >= 0)
            word, node, piece = word[on], node[on], piece[on]
            if not len(word):
                return
            yield word, piece
            node = node - sizes[piece]


def expand_ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers start, start + 1, … of every stretch, one stretch after the other.

    >>> expand_ranges(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist()
    [5, 6, 7, 8, 9]
    """
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)
