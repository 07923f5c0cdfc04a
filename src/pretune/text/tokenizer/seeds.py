"""The pieces a unigram vocabulary starts from: the substrings of words that cover the most text.

Substrings grow by one character at a time, all of them at once, and only those grow that were seen often enough. One
that is always followed by the same character says nothing that its longer twin does not, and is left out (it is no
node of the suffix tree that the original walks).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.text.tokenizer.lattice import Floats, Ints, Lattice, Short

MAX_PIECE_LENGTH = 16


@dataclass(frozen=True, slots=True)
class _Level:
    """All substrings of one length: where they stand, and facts about each distinct one."""

    positions: Short  # the nodes at which one starts
    ids: Short  # which of the distinct ones it is
    count: Floats  # per distinct one: how often it was seen
    example: Ints  # a node at which it starts
    parent: Ints  # it without its last character: the number at the level before


def find_seed_pieces(
    words: Sequence[str], counts: Floats, letters: Sequence[str], max_pieces: int, min_count: int
) -> tuple[list[str], Floats, Ints, Lattice]:
    """The letters and at most `most` longer pieces, their counts, a node where each starts, and the words' lattice."""
    lengths = np.array([len(word) for word in words], np.int64)
    text = "\0".join(words) + "\0"  # as the nodes lie: one per character and one at every word's end
    code = {letter: i for i, letter in enumerate(letters)} | {"\0": -1}
    flat = np.fromiter(map(code.__getitem__, text), np.int64, len(text))
    levels = _grow(flat, np.repeat(counts, lengths + 1), len(letters), min_count)
    pieces = list(letters)
    numbers = [np.arange(len(letters))]
    for length, (level, chosen) in enumerate(
        zip(levels[1:], _choose_pieces(levels, max_pieces, min_count), strict=True), 2
    ):
        number = np.full(len(level.count), -1)
        number[chosen] = len(pieces) + np.arange(len(chosen))
        numbers.append(number)
        pieces += [text[i : i + length] for i in level.example[chosen].tolist()]
    seen = np.concatenate([level.count[number >= 0] for level, number in zip(levels, numbers, strict=True)])
    example = np.concatenate([level.example[number >= 0] for level, number in zip(levels, numbers, strict=True)])
    begin, piece, size = [], [], []
    for length, (level, number) in enumerate(zip(levels, numbers, strict=True), 1):
        here = number[level.ids]
        begin.append(level.positions[here >= 0])
        piece.append(here[here >= 0].astype(np.int32))
        size.append(np.full(len(piece[-1]), length, np.int16))
    arcs = np.concatenate(begin), np.concatenate(piece), np.concatenate(size)
    return pieces, seen, example, Lattice.build(lengths, *arcs)


def _grow(flat: Ints, weight: Floats, letters: int, min_count: int) -> list[_Level]:
    place = np.flatnonzero(flat >= 0).astype(np.int32)
    which = flat[place].astype(np.int32)
    count: Floats = np.bincount(which, weights=weight[place], minlength=letters).astype(np.float64)
    none = np.zeros(letters, np.int64)
    levels = [_Level(place, which, count, none, none)]
    for length in range(2, MAX_PIECE_LENGTH + 1):
        grows = (flat[place + length - 1] >= 0) & (count[which] >= min_count)
        place, which = place[grows], which[grows]
        if not len(place):
            break
        longer = which.astype(np.int64) * letters + flat[place + length - 1]
        distinct, first, number = np.unique(longer, return_index=True, return_inverse=True)
        which = number.astype(np.int32)
        count = np.bincount(which, weights=weight[place]).astype(np.float64)
        levels.append(_Level(place, which, count, place[first].astype(np.int64), distinct // letters))
    return levels


def _choose_pieces(levels: list[_Level], max_pieces: int, min_count: int) -> list[Ints]:
    """Per level from the second on, the substrings that are best by the characters they cover."""
    covers: list[Floats] = []
    for length, level in enumerate(levels[1:], 2):
        good = level.count >= min_count
        if length < len(levels):
            longer = levels[length]
            good[longer.parent[longer.count == level.count[longer.parent]]] = False
        covers.append(np.where(good, level.count * length, 0.0))
    flat = np.concatenate([*covers, np.zeros(0)])
    best = np.argsort(-flat, kind="stable")[:max_pieces]
    taken: NDArray[np.bool_] = np.zeros(len(flat), bool)
    taken[best[flat[best] > 0]] = True
    parts = np.split(taken, np.cumsum([len(part) for part in covers])[:-1]) if covers else []
    return [np.flatnonzero(part) for part in parts]
