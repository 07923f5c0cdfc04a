"""Exact search by inner product in arrays of any size, which may lie on disk."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import NonFiniteError, UsageError

BLOCK_ROWS = 2**16
"""Vectors that are looked at together."""

Floats = NDArray[np.float32]
SearchResult = tuple[Floats, NDArray[np.int64]]


def search_exact(parts: Sequence[Floats], queries: Floats, k: int, *, rows: int = BLOCK_ROWS) -> SearchResult:
    """The k largest products of each query `[Q, W]` with the vectors of all parts: products and numbers `[Q, k]`.

    Best first; of equal ones the earlier. Where there are fewer than k vectors, as many as there are.

    >>> search_exact([np.eye(3, dtype=np.float32)], np.array([[0.1, 0.9, 0.5]], dtype=np.float32), 2)[1].tolist()
    [[1, 2]]
    """
    if k < 1:
        raise UsageError(f"k is {k}; at least 1 hit has to be asked for")
    scores = np.empty((len(queries), 0), dtype=np.float32)
    numbers = np.empty((len(queries), 0), dtype=np.int64)
    first = 0
    for part in parts:
        for start in range(0, len(part), rows):
            found = queries @ np.asarray(part[start : start + rows]).T
            if not np.isfinite(found).all():
                raise NonFiniteError("the index holds vectors that are not finite; build it again with `pretune index`")
            places = np.broadcast_to(np.arange(first + start, first + start + found.shape[1]), found.shape)
            scores, numbers = _select_top_k(
                np.concatenate((scores, found), axis=1), np.concatenate((numbers, places), axis=1), k
            )
        first += len(part)
    return scores, numbers


def _select_top_k(scores: Floats, numbers: NDArray[np.int64], k: int) -> SearchResult:
    """The k best of each row, best first; columns are in the order of numbers, but for those kept so far."""
    if scores.shape[1] > 4 * k:  # NOTE: ties at the edge are all kept for the exact order below
        edge = np.partition(scores, -k, axis=1)[:, -k].min(initial=np.inf)
        kept = (scores >= edge).any(axis=0)
        if kept.sum() < scores.shape[1]:
            scores, numbers = scores[:, kept], numbers[:, kept]
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)
