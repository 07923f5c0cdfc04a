"""Approximate search with faiss (Douze et al., 2024), needs the extra `index`.

`hnsw` is a graph of neighbors (Malkov and Yashunin, 2020); `ivf` searches only the cells nearest to a query.

A file holds only the graph or the cells, as safetensors; the vectors are those of the index. faiss's own files are
never read: its reader trusts their sizes and numbers. Here every number is checked before it is passed to faiss.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pretune.core.errors import CheckpointError, NonFiniteError, UsageError
from pretune.inference.exact_search import Floats, SearchResult
from pretune.models import tensor_files

METHODS = ("hnsw", "ivf")
NEIGHBOURS = 32
SEARCH_CANDIDATES = 128
"""Candidates of a graph search (efSearch and efConstruction)."""


def extend_index(file: Path | None, parts: Sequence[Floats], vectors: Floats, method: str) -> bytes:
    """Add vectors to the graph or cells of a file, or to a new one; returns the new file as bytes."""
    faiss = _import_faiss()
    if method == "hnsw":
        index = _build_graph(faiss, vectors.shape[1]) if file is None else _read_graph(faiss, file, parts)
        index.add(vectors)
        arrays = {name: faiss.vector_to_array(getattr(index.hnsw, name)) for name in ("levels", "neighbors")}
        return save(arrays)
    if file is None:
        count = max(1, min(round(4 * math.sqrt(len(vectors))), len(vectors) // 39))  # faiss needs 39 vectors per cell
        index = _build_cells(faiss, vectors.shape[1], count)
        index.train(vectors)
        coarse = index.quantizer
        centroids, cells = coarse.reconstruct_n(0, count), np.empty(0, dtype=np.int64)
    else:
        centroids, cells = _read_cells(file, parts)
        coarse = faiss.IndexFlatIP(vectors.shape[1])
        coarse.add(centroids)
    return save({"centroids": centroids, "cells": np.concatenate([cells, coarse.search(vectors, 1)[1][:, 0]])})


def search(file: Path, parts: Sequence[Floats], method: str, queries: Floats, k: int) -> SearchResult:
    """Return scores and indices `[Q, k]`, best first; -1 where too few were found."""
    if k < 1:
        raise UsageError(f"k must be >= 1, got {k}")
    faiss = _import_faiss()
    if method == "hnsw":
        index = _read_graph(faiss, file, parts)
        index.hnsw.efSearch = max(SEARCH_CANDIDATES, 2 * k)
    else:
        centroids, cells = _read_cells(file, parts)
        index = _build_cells(faiss, centroids.shape[1], len(centroids))
        index.quantizer.add(centroids)
        index.is_trained, start = True, 0
        for part in map(np.ascontiguousarray, parts):
            part_cells = np.ascontiguousarray(
                cells[start : start + len(part)]
            )  # NOTE: named, so that it outlives the call
            index.add_core(len(part), faiss.swig_ptr(part), None, faiss.swig_ptr(part_cells))
            start += len(part)
        index.nprobe = max(1, index.nlist // 8)
    scores, numbers = index.search(queries, k)
    if not np.isfinite(scores[numbers >= 0]).all():
        raise NonFiniteError(f"{file}: non-finite vectors; build the index again")
    return scores, numbers.astype(np.int64)


def _build_graph(faiss: Any, width: int) -> Any:
    index = faiss.IndexHNSWFlat(width, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = SEARCH_CANDIDATES
    return index


def _build_cells(faiss: Any, width: int, count: int) -> Any:
    coarse = faiss.IndexFlatIP(width)
    return faiss.IndexIVFFlat(coarse, width, count, faiss.METRIC_INNER_PRODUCT)


def _read_graph(faiss: Any, file: Path, parts: Sequence[Floats]) -> Any:
    """Load the graph of a file over vectors; all edges must lead to vectors that have the level."""
    count = sum(map(len, parts))
    levels, neighbors = _read_arrays(file, levels=("I32", (count,)), neighbors=("I32", (None,)))
    index = _build_graph(faiss, parts[0].shape[1])
    ends = faiss.vector_to_array(index.hnsw.cum_nneighbor_per_level)
    if levels.min() < 1 or levels.max() >= len(ends):
        raise _make_damage_error(file, "an invalid level")
    offsets = np.concatenate([[0], np.cumsum(ends[levels], dtype=np.uint64)]).astype(np.uint64)
    if len(neighbors) != offsets[-1] or neighbors.min() < -1 or neighbors.max() >= count:
        raise _make_damage_error(file, f"neighbors outside the {count} vectors")
    for level in range(1, int(levels.max())):
        rows = offsets[:-1][levels > level].astype(np.int64)[:, None] + np.arange(ends[level], ends[level + 1])
        level_neighbors = neighbors[rows]
        if (levels[level_neighbors[level_neighbors >= 0]] <= level).any():
            raise _make_damage_error(file, f"neighbors of level {level} that do not have it")
    for part in parts:
        index.storage.add(np.ascontiguousarray(part))
    index.ntotal, graph = count, index.hnsw
    for name, values in (("levels", levels), ("offsets", offsets), ("neighbors", neighbors)):
        faiss.copy_array_to_vector(values, getattr(graph, name))
    graph.entry_point, graph.max_level = int(levels.argmax()), int(levels.max()) - 1
    return index


def _read_cells(file: Path, parts: Sequence[Floats]) -> tuple[Floats, NDArray[np.int64]]:
    count, width = sum(map(len, parts)), parts[0].shape[1]
    centroids, cells = _read_arrays(file, centroids=("F32", (None, width)), cells=("I64", (count,)))
    if not 0 < len(centroids) <= count or cells.min() < 0 or cells.max() >= len(centroids):
        raise _make_damage_error(file, f"cells outside the {len(centroids)} centroids, or not {count} cells")
    return centroids, cells


def _read_arrays(file: Path, **formats: tuple[str, tuple[int | None, ...]]) -> list[NDArray[Any]]:
    """Read arrays, checking dtype and shape of each (None: any length but 0)."""
    arrays = []
    with tensor_files.open_tensors(file) as tensors:
        for name, (dtype, shape) in formats.items():
            if name not in tensors.keys():  # noqa: SIM118 (not a mapping)
                raise _make_damage_error(file, f"no '{name}'")
            part = tensors.get_slice(name)
            sizes = [
                actual_size if size is None else size
                for actual_size, size in zip(part.get_shape(), shape, strict=False)
            ]
            if part.get_dtype() != dtype or part.get_shape() != sizes or len(sizes) != len(shape) or 0 in sizes:
                raise _make_damage_error(file, f"'{name}' of {part.get_dtype()} {part.get_shape()}")
            arrays.append(tensors.get_tensor(name).numpy())
    return arrays


def _make_damage_error(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{file}: has {problem}; build the index again")


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise UsageError(
            "approximate search needs the extra 'index': pip install 'pretune[index]'; or use --method exact"
        ) from None
    return faiss
