"""Seed pieces of a unigram vocabulary: the substrings of words that cover the most text.

Substrings grow by one character at a time, all at once, and only frequent ones grow. A substring that is always
followed by the same character is redundant with the longer one and is omitted (it is no node of the suffix tree
that the original algorithm walks).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretune.text.tokenizer.lattice import Floats, Ints, Lattice, Short

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
    """Return the letters and at most `max_pieces` longer pieces, their counts, one start node each, and the lattice."""
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
