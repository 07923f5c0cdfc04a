"""PPMI vectors: positive pointwise mutual information, factorized by a truncated SVD.

Paper: Levy and Goldberg (2014), Levy et al. (2015). Two words co-occur if they are at most `window` words apart in a
text. The ratio of the observed to the expected co-occurrence is a matrix, of which a truncated singular value
decomposition keeps `width` columns. Skip-gram factorizes much the same matrix, a word at a time; counting is one pass.

    PPMI_ij = max(0, log(X_ij X / (X_i X_j')))    X_j' = X_j^0.75, scaled to the same sum    W = U sqrt(S)

The matrix is dense, for fast products: for some ten thousand words, not for hundreds of thousands.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from pretune.adaptation.static.word_ids import WordCorpus
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import make_generator
from pretune.inference.word_vectors import WordVectors

MAX_WORDS = 20_000
"""Maximum number of words: the matrix of 20,000 takes 1.6 GB."""
OVERSAMPLING, POWER_ITERATIONS = 16, 3
"""Extra columns, and rounds of the power iteration (Halko et al., 2011)."""


@spec
class Ppmi:
    """PPMI vectors: one pass over the text, then matrix products."""

    width: int = 100
    window: int = 5
    power: float = 0.75  # exponent of the context counts: below 1, rare contexts have less weight
    min_count: int = 5  # words with fewer occurrences are ignored
    max_words: int | None = MAX_WORDS  # maximum number of words with a vector

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Compute vectors from texts, or from lists of words. Reproducible for seed, texts and threads."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.min_count, max_words=self.max_words), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0, device: torch.device | str = "cpu") -> WordVectors:
        """Compute vectors from a corpus of word ids; a GPU is faster if it has memory for three such matrices."""
        if len(words) > MAX_WORDS:
            raise UsageError(
                f"vocabulary must be <= {MAX_WORDS:,} words, got {len(words):,}; set `max_words`, or use Word2Vec"
            )
        matrix = compute_ppmi(count_cooccurrences(words, self.window, device), self.power)
        width = min(self.width, len(words))
        start = make_generator(seed, 0).standard_normal(
            (len(words), min(width + OVERSAMPLING, len(words))), dtype=np.float32
        )
        vectors = _compute_truncated_svd(matrix, torch.from_numpy(start).to(matrix.device))[:, :width].cpu()
        if width < self.width:
            vectors = torch.nn.functional.pad(vectors, (0, self.width - width))
        return WordVectors(words.words, vectors.numpy())


def count_cooccurrences(words: WordCorpus, window: int, device: torch.device | str = "cpu") -> Tensor:
    """Return how often each word has each other in its window `[V, V]`; symmetric."""
    v = len(words)
    counts = torch.zeros(v * v, dtype=torch.int32, device=device)
    ones = torch.ones(1, dtype=torch.int32, device=device)
    ids, text = (torch.as_tensor(part, device=device) for part in (words.ids, words.text_ids))
    for d in range(1, min(window, len(ids) - 1) + 1):
        pairs = (ids[:-d] * v + ids[d:])[text[d:] == text[:-d]]
        counts.index_add_(0, pairs, ones.expand(len(pairs)))  # NOTE: a sixth of the time that sorting the pairs takes
    matrix = counts.view(v, v).float()
    return matrix.add_(counts.view(v, v).T)


def compute_ppmi(counts: Tensor, power: float) -> Tensor:
    """Compute the PPMI matrix `[V, V]`, in place of the counts."""
    rows = counts.sum(1, dtype=torch.float64)
    columns = rows**power
    columns *= rows.sum() / columns.sum().clamp(min=1e-12)
    scale = torch.stack([rows, columns]).clamp(min=1e-12).float()
    counts.div_(scale[0][:, None]).div_(scale[1][None]).mul_(float(rows.sum()))
    return counts.clamp_(min=1.0).log_()  # pairs below chance get 0


def _compute_truncated_svd(matrix: Tensor, start: Tensor) -> Tensor:
    """Return U sqrt(S) of the largest singular values, by a randomized power iteration."""
    basis = torch.linalg.qr(matrix @ start)[0]
    for _ in range(POWER_ITERATIONS):
        basis = torch.linalg.qr(matrix @ (matrix.T @ basis))[0]
    u, s, _ = torch.linalg.svd((basis.T @ matrix).cpu(), full_matrices=False)
    vectors: Tensor = basis @ (u * s.sqrt()).to(basis.device)
    return vectors
