"""Exact search by inner product in arrays of any size, including memory-mapped ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import NonFiniteError, UsageError

BLOCK_ROWS = 2**16
"""Vectors per block."""

Floats = NDArray[np.float32]
SearchResult = tuple[Floats, NDArray[np.int64]]


def search_exact(parts: Sequence[Floats], queries: Floats, k: int, *, rows: int = BLOCK_ROWS) -> SearchResult:
    """Return the k largest products and their indices `[Q, k]` of each query `[Q, W]` over the vectors of all parts.

    Best first; ties by index. With fewer than k vectors, all are returned.

    >>> search_exact([np.eye(3, dtype=np.float32)], np.array([[0.1, 0.9, 0.5]], dtype=np.float32), 2)[1].tolist()
    [[1, 2]]
    """
    if k < 1:
        raise UsageError(f"k must be >= 1, got {k}")
    scores = np.empty((len(queries), 0), dtype=np.float32)
    numbers = np.empty((len(queries), 0), dtype=np.int64)
    first = 0
    for part in parts:
        for start in range(0, len(part), rows):
            block_scores = queries @ np.asarray(part[start : start + rows]).T
            if not np.isfinite(block_scores).all():
                raise NonFiniteError("the index has non-finite vectors; build it again with `pretune index`")
            block_numbers = np.broadcast_to(
                np.arange(first + start, first + start + block_scores.shape[1]), block_scores.shape
            )
            scores, numbers = _select_top_k(
                np.concatenate((scores, block_scores), axis=1), np.concatenate((numbers, block_numbers), axis=1), k
            )
        first += len(part)
    return scores, numbers


def _select_top_k(scores: Floats, numbers: NDArray[np.int64], k: int) -> SearchResult:
    """Return the k best of each row, best first; the columns are ordered by number, after the previous best."""
    if scores.shape[1] > 4 * k:  # NOTE: ties at the threshold are all kept for the exact order below
        threshold = np.partition(scores, -k, axis=1)[:, -k].min(initial=np.inf)
        is_candidate = (scores >= threshold).any(axis=0)
        if is_candidate.sum() < scores.shape[1]:
            scores, numbers = scores[:, is_candidate], numbers[:, is_candidate]
    order = np.lexsort((numbers, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)
