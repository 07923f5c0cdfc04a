"""Search methods of an index: exact inner products, BM25, and approximate search with faiss.

BM25 (Robertson et al., 1994) is the lexical baseline, in Lucene's variant (Kamphuis et al., 2020):

    BM25(["the cat sat", "a dog"]).search(["cats"], k=1)        # scores [1, 1] and document indices [1, 1]

faiss (Douze et al., 2024) needs the extra `index`. `hnsw` is a graph of neighbors (Malkov and Yashunin, 2020); `ivf`
searches only the cells nearest to a query. A file holds only the graph or the cells, as safetensors; the vectors are
those of the index. faiss's own files are never read: its reader trusts their sizes and numbers. Here every number is
checked before it is passed to faiss.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pretune.core.errors import CheckpointError, DataError, NonFiniteError, UsageError, import_extra
from pretune.inference.word_vectors import split_words
from pretune.metrics.generation import stem
from pretune.models import tensor_files

K1, B = 1.2, 0.75
"""Saturation of term frequency, and strength of length normalization."""

Floats = NDArray[np.float32]
SearchResult = tuple[Floats, NDArray[np.int64]]
"""Scores and indices, best first."""


def split_terms(text: str, stemming: bool = True) -> list[str]:
    """Return the words of a text, stemmed by default; an apostrophe ends a word, so that "dog's" matches "dog"."""
    words = [part for word in split_words(text) for part in word.replace("’", "'").split("'")]
    return [stem(word) for word in words] if stemming else words


class BM25:
    """Inverted index of documents."""

    def __init__(self, texts: Sequence[str], *, stemming: bool = True) -> None:
        if not texts:
            raise DataError("no documents to search in")
        self.count, self.stemming = len(texts), stemming
        term_ids: dict[str, int] = {}
        terms, documents, term_counts, sizes = list[int](), list[int](), list[int](), list[int]()
        for document, text in enumerate(texts):
            word_counts = Counter(split_terms(text, stemming))
            sizes.append(sum(word_counts.values()))
            for word, count in word_counts.items():
                terms.append(term_ids.setdefault(word, len(term_ids)))
                documents.append(document)
                term_counts.append(count)
        self.term_ids = term_ids
        order = np.argsort(np.array(terms, dtype=np.int64), kind="stable")
        self.documents = np.array(documents, dtype=np.int64)[order]
        term_frequency = np.array(term_counts, dtype=np.float64)[order]
        document_frequency = np.bincount(np.array(terms, dtype=np.int64), minlength=len(term_ids))
        self.starts = np.concatenate(([0], np.cumsum(document_frequency)))
        idf = np.log(1 + (self.count - document_frequency + 0.5) / (document_frequency + 0.5))
        size = np.array(sizes, dtype=np.float64)
        length = size[self.documents] / max(size.mean(), 1e-9)
        # Contribution of a word to each document that has it.
        self.weights = (
            np.repeat(idf, document_frequency) * term_frequency / (term_frequency + K1 * (1 - B + B * length))
        )

    def score(self, query: str) -> NDArray[np.float64]:
        """Return the score of every document, 0 without a word of the query; repeated query words count repeatedly."""
        out = np.zeros(self.count)
        for word, times in Counter(split_terms(query, self.stemming)).items():
            if word in self.term_ids:
                part = slice(*self.starts[self.term_ids[word] : self.term_ids[word] + 2])
                out[self.documents[part]] += times * self.weights[part]
        return out

    def search(self, queries: Sequence[str], k: int = 10) -> SearchResult:
        """Return scores and indices of the k best documents per query; ties by index; -1 where fewer match.

        With fewer than k documents, there are as many columns as documents.
        """
        k = min(k, self.count)
        scores = np.zeros((len(queries), k), dtype=np.float32)
        numbers = np.full((len(queries), k), -1, dtype=np.int64)
        for row, query in enumerate(queries):
            document_scores = self.score(query)
            best = np.argsort(-document_scores, kind="stable")[:k]
            best = best[document_scores[best] > 0]
            scores[row, : len(best)], numbers[row, : len(best)] = document_scores[best], best
        return scores, numbers


BLOCK_ROWS = 2**16
"""Vectors per block."""


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
            block_numbers = np.broadcast_to(first + start + np.arange(block_scores.shape[1]), block_scores.shape)
            scores, numbers = np.hstack((scores, block_scores)), np.hstack((numbers, block_numbers))
            scores, numbers = _select_top_k(scores, numbers, k)
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


FAISS_METHODS = ("hnsw", "ivf")
NEIGHBOURS = 32
SEARCH_CANDIDATES = 128
"""Candidates of a graph search (efSearch and efConstruction)."""


def extend_faiss(file: Path | None, parts: Sequence[Floats], vectors: Floats, method: str) -> bytes:
    """Add vectors to the graph or cells of a file, or to a new one; returns the new file as bytes."""
    faiss = import_extra("faiss", "index", "approximate search, unlike --method exact, needs")
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


def search_faiss(file: Path, parts: Sequence[Floats], method: str, queries: Floats, k: int) -> SearchResult:
    """Return scores and indices `[Q, k]`, best first; -1 where too few were found.

    With fewer than k vectors, there are as many columns as vectors.
    """
    if k < 1:
        raise UsageError(f"k must be >= 1, got {k}")
    k = min(k, sum(map(len, parts)))
    faiss = import_extra("faiss", "index", "approximate search, unlike --method exact, needs")
    if method == "hnsw":
        index = _read_graph(faiss, file, parts)
        index.hnsw.efSearch = max(SEARCH_CANDIDATES, 2 * k)
    else:
        centroids, cells = _read_cells(file, parts)
        index = _build_cells(faiss, centroids.shape[1], len(centroids))
        index.quantizer.add(centroids)
        index.is_trained, start = True, 0
        for part in map(np.ascontiguousarray, parts):
            # NOTE: named, so that it outlives the call.
            part_cells = np.ascontiguousarray(cells[start : start + len(part)])
            index.add_core(len(part), faiss.swig_ptr(part), None, faiss.swig_ptr(part_cells))
            start += len(part)
        # The smallest cells that hold k vectors: any other cells hold as many.
        sizes = np.sort(np.bincount(cells, minlength=len(centroids)))
        index.nprobe = max(1, index.nlist // 8, int(np.searchsorted(np.cumsum(sizes), k)) + 1)
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
            sizes = [actual if size is None else size for actual, size in zip(part.get_shape(), shape, strict=False)]
            if part.get_dtype() != dtype or part.get_shape() != sizes or len(sizes) != len(shape) or 0 in sizes:
                raise _make_damage_error(file, f"'{name}' of {part.get_dtype()} {part.get_shape()}")
            arrays.append(tensors.get_tensor(name).numpy())
    return arrays


def _make_damage_error(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{file}: has {problem}; build the index again")
