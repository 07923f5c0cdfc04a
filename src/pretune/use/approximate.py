"""Approximate search with faiss (Douze et al., 2024): graphs and cells, behind the extra `index`.

`hnsw` is a graph of neighbours (Malkov and Yashunin, 2020); `ivf` looks only into the cells nearest to a query.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import CheckpointError, UsageError
from pretune.use.exact import Found

METHODS = ("hnsw", "ivf")
NEIGHBOURS = 32
SEEN = 128
"""Candidates that a graph is searched with."""


def grown(file: Path | None, vectors: NDArray[np.float32], method: str) -> bytes:
    """The index of a file, or a new one, with vectors added, as bytes."""
    faiss = _faiss()
    if file is not None:
        index = _read(faiss, file)
    elif method == "hnsw":
        index = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = SEEN
    else:
        cells = max(1, min(round(4 * math.sqrt(len(vectors))), len(vectors) // 39))  # faiss wants 39 vectors a cell
        coarse = faiss.IndexFlatIP(vectors.shape[1])
        index = faiss.IndexIVFFlat(coarse, vectors.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
    index.add(vectors)
    return bytes(faiss.serialize_index(index).tobytes())


def search(file: Path, queries: NDArray[np.float32], k: int) -> Found:
    """Scores and numbers `[Q, k]`, best first; -1 where too few were seen."""
    if k < 1:
        raise UsageError(f"k is {k}; at least 1 hit has to be asked for")
    faiss = _faiss()
    index = _read(faiss, file)
    if hasattr(index, "hnsw"):
        index.hnsw.efSearch = max(SEEN, 2 * k)
    else:
        index.nprobe = max(1, index.nlist // 8)
    scores, numbers = index.search(queries, k)
    return scores, numbers.astype(np.int64)


def _read(faiss: Any, file: Path) -> Any:
    try:
        return faiss.deserialize_index(np.fromfile(file, dtype=np.uint8))
    except (RuntimeError, OSError) as fault:
        raise CheckpointError(f"{file}: cannot be read ({str(fault).splitlines()[0][:100]}); build it again") from None


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise UsageError(
            "approximate search needs the extra 'index': pip install 'pretune[index]'; or use --method exact"
        ) from None
    return faiss
