"""Map of text embeddings in two dimensions, by PCA or t-SNE, with labels.

    result = pt.analyze_embeddings("runs/books", texts, labels=labels)
    result.points, result.neighbor_agreement       # [n, 2]; share of texts whose nearest neighbour has their label

The agreement is measured in the space of the embeddings, by cosine, not on the map, and is given with its value by
chance: the share of pairs of texts with equal labels.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.analysis.held_out import open_model
from pretune.analysis.pictures import Analysis
from pretune.core.api import check_arguments
from pretune.core.errors import DataError, UsageError
from pretune.core.seed import make_generator
from pretune.evaluation.embedding import normalize_rows
from pretune.inference.embed import build_embedder
from pretune.inference.word_vectors import is_word_vectors

METHODS = ("pca", "tsne")
MAX_TEXTS = 2000
MIN_TEXTS = 3
CHUNK_ROWS = 1024
"""Rows of the similarity matrix that are computed at once."""
TIE = 1e-6
"""Difference of cosines up to which two rows are equally near; equal texts differ by rounding."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingMap(Analysis):
    """Points of texts in the plane, with their labels."""

    method: str
    points: Floats  # [n, 2]
    texts: list[str]
    labels: list[str] | None
    axes: tuple[str, str]
    total_texts: int  # before sampling
    width: int  # of the embeddings
    neighbor_agreement: float | None  # None without labels
    chance_agreement: float | None

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per text."""
        return [
            {"x": float(x), "y": float(y), "label": label, "text": text}
            for (x, y), label, text in zip(self.points, self.labels or repeat(None), self.texts, strict=False)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the map as plain data."""
        return {
            "kind": "embeddings",
            "method": self.method,
            "axes": [*self.axes],
            "texts": len(self.texts),
            "total_texts": self.total_texts,
            "width": self.width,
            "neighbor_agreement": self.neighbor_agreement,
            "chance_agreement": self.chance_agreement,
            "points": self.to_rows(),
        }

    def __repr__(self) -> str:
        agreement = "" if self.neighbor_agreement is None else f", neighbours agree {self.neighbor_agreement:.2f}"
        return f"EmbeddingMap({self.method}, {len(self.texts)} texts{agreement})"


@check_arguments()
def analyze_embeddings(
    model: str | os.PathLike[str] | nn.Module,
    texts: Sequence[str],
    *,
    labels: Sequence[object] | None = None,
    method: Literal["pca", "tsne"] = "pca",
    max_texts: int = MAX_TEXTS,
    pooling: str | None = None,
    layer: int | None = None,
    seed: int = 0,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> EmbeddingMap:
    """Embed texts and place them in the plane.

    Args:
        model: A model, its directory, hf:OWNER/NAME, or word vectors.
        texts: Texts; of more than `max_texts`, a random sample.
        labels: One for each text.
        method: "pca", or "tsne" (van der Maaten and Hinton, 2008) on at most 50 principal components.
        max_texts: Number of texts at most.
        pooling: Pooling of `pt.embed`; None: that of the model.
        layer: Layer of `pt.embed`; None: the last.
        seed: Of the sample and of t-SNE.
        device: Device of a model that is loaded; by default a GPU if available.
        on_progress: Called with the number of finished texts and the total.

    Raises:
        UsageError: Unknown method, or numbers of texts and labels differ. DataError: fewer than three different texts.
    """
    if method not in METHODS:
        raise UsageError(f"unknown method '{method}' (allowed: {', '.join(METHODS)})")
    if labels is not None and len(labels) != len(texts):
        raise UsageError(f"{len(labels)} labels for {len(texts)} texts; pass one for each")
    places = _sample_places(texts, max_texts, seed)
    sample = [texts[i] for i in places]
    source = model if isinstance(model, nn.Module) or is_word_vectors(model) else open_model(model, device)
    embedder = build_embedder(source, device=device, pooling=pooling, layer=layer)
    vectors = embedder(sample, on_progress).vectors
    names = None if labels is None else [str(labels[i]) for i in places]
    points, axes = project(vectors, method, seed)
    return EmbeddingMap(
        method=method,
        points=points,
        texts=sample,
        labels=names,
        axes=axes,
        total_texts=len(texts),
        width=vectors.shape[1],
        neighbor_agreement=None if names is None else compute_agreement(vectors, names),
        chance_agreement=None if names is None else compute_chance(names),
    )


def _sample_places(texts: Sequence[str], max_texts: int, seed: int) -> list[int]:
    """Return the places of all texts, or of a random sample; raise if there are too few different ones."""
    if isinstance(texts, str):
        raise UsageError("texts must be a list, got a single text; use [text]")
    if max_texts < MIN_TEXTS:
        raise UsageError(f"max_texts must be >= {MIN_TEXTS}, got {max_texts}")
    places = [*range(len(texts))]
    if len(texts) > max_texts:
        places = sorted(make_generator(seed, 0).choice(len(texts), max_texts, replace=False).tolist())
    count = len({texts[i] for i in places})
    if count < MIN_TEXTS:
        raise DataError(f"a map needs at least {MIN_TEXTS} different texts, got {count}")
    return places


def project(vectors: Floats, method: str, seed: int) -> tuple[Floats, tuple[str, str]]:
    """Return the points `[n, 2]` of vectors `[n, W]`, and the names of the axes."""
    from sklearn.decomposition import PCA

    if method == "pca":
        pca = PCA(2, svd_solver="full").fit(vectors)
        first, second = (f"{share:.0%} of the variance" for share in pca.explained_variance_ratio_)
        return pca.transform(vectors).astype(np.float32), (f"component 1 ({first})", f"component 2 ({second})")
    from sklearn.manifold import TSNE

    count = min(50, *vectors.shape)
    reduced_vectors = PCA(count, svd_solver="full").fit_transform(vectors)
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed % 2**32)
    points = tsne.fit_transform(reduced_vectors).astype(np.float32)
    return points, (f"t-SNE 1 (perplexity {perplexity:g})", "t-SNE 2")


def compute_agreement(vectors: Floats, labels: Sequence[str]) -> float:
    """Return the share of rows whose nearest other row, by cosine, has the same label.

    Of equally near rows the mean counts, so that the order of the rows does not.
    """
    rows = normalize_rows(vectors)
    names = np.array(labels, dtype=object)
    total = 0.0
    for start in range(0, len(rows), CHUNK_ROWS):
        scores = rows[start : start + CHUNK_ROWS] @ rows.T
        scores[np.arange(len(scores)), start + np.arange(len(scores))] = -2.0
        is_nearest = scores >= scores.max(1, keepdims=True) - TIE
        agrees = names[None, :] == names[start : start + CHUNK_ROWS, None]
        total += float(((is_nearest & agrees).sum(1) / is_nearest.sum(1)).sum())
    return total / len(rows)


def compute_chance(labels: Sequence[str]) -> float:
    """Return the share of pairs of different rows with equal labels.

    >>> compute_chance(["a", "a", "b"])
    0.3333333333333333
    """
    pairs = sum(count * (count - 1) for count in Counter(labels).values())
    return pairs / (len(labels) * (len(labels) - 1))
