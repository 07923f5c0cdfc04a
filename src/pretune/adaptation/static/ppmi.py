"""Vectors by counting: positive pointwise mutual information, and the directions in which it varies most.

Paper: Levy and Goldberg (2014), Levy et al. (2015). Two words meet when they stand at most `window` words apart in a
text. How much more often they do than by chance is a matrix, of which a truncated singular value decomposition keeps
`width` columns. Skip-gram factorises much the same matrix, a word at a time; counting reads the text once.

    PPMI_ij = max(0, log(X_ij X / (X_i X_j')))    X_j' = X_j^0.75, scaled to the same sum    W = U sqrt(S)

The matrix is dense, so that it is one of products: for some ten thousand words, not for hundreds of thousands.
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
"""Words at most: the matrix of so many takes 1.6 GB."""
OVERSAMPLING, POWER_ITERATIONS = 16, 3
"""Columns beside those that are kept, and rounds of the power iteration (Halko et al., 2011)."""


@spec
class Ppmi:
    """Vectors from how much more often words meet than by chance; one pass over the text, then products of matrices."""

    width: int = 100
    window: int = 5
    power: float = 0.75  # of how often a neighbour occurs: below 1, rare neighbours count less
    least: int = 5  # words met fewer times are left out
    most: int | None = MAX_WORDS  # how many words have a vector

    def train(self, texts: Iterable[str] | Iterable[list[str]], *, seed: int = 0) -> WordVectors:
        """Vectors of the words of texts, or of lists of words. The same seed, texts and threads give the same bytes."""
        return self.fit(WordCorpus.from_texts(texts, min_count=self.least, max_words=self.most), seed=seed)

    def fit(self, words: WordCorpus, *, seed: int = 0, device: torch.device | str = "cpu") -> WordVectors:
        """Vectors from words that are numbered already; a device with room for three such matrices is faster."""
        if len(words) > MAX_WORDS:
            raise UsageError(f"a matrix of {len(words):,} words; {MAX_WORDS:,} fit, so set `most`, or take Word2Vec")
        matrix = compute_ppmi(count_cooccurrences(words, self.window, device), self.power)
        width = min(self.width, len(words))
        start = make_generator(seed, 0).standard_normal(
            (len(words), min(width + OVERSAMPLING, len(words))), dtype=np.float32
        )
        found = _compute_truncated_svd(matrix, torch.from_numpy(start).to(matrix.device))[:, :width].cpu()
        if width < self.width:
            found = torch.nn.functional.pad(found, (0, self.width - width))
        return WordVectors(words.words, found.numpy())


def count_cooccurrences(words: WordCorpus, window: int, device: torch.device | str = "cpu") -> Tensor:
    """How often each word has each other within its window `[V, V]`; the same in both directions."""
    v = len(words)
    counts = torch.zeros(v * v, dtype=torch.int32, device=device)
    one = torch.ones(1, dtype=torch.int32, device=device)
    ids, text = (torch.as_tensor(part, device=device) for part in (words.ids, words.text_ids))
    for d in range(1, min(window, len(ids) - 1) + 1):
        pairs = (ids[:-d] * v + ids[d:])[text[d:] == text[:-d]]
        counts.index_add_(0, pairs, one.expand(len(pairs)))  # NOTE: a sixth of the time that sorting the pairs takes
    found = counts.view(v, v).float()
    return found.add_(counts.view(v, v).T)


def compute_ppmi(counts: Tensor, power: float) -> Tensor:
    """The matrix `[V, V]`, made in the place of the counts."""
    rows = counts.sum(1, dtype=torch.float64)
    columns = rows**power
    columns *= rows.sum() / columns.sum().clamp(min=1e-12)
    scale = torch.stack([rows, columns]).clamp(min=1e-12).float()
    counts.div_(scale[0][:, None]).div_(scale[1][None]).mul_(float(rows.sum()))
    return counts.clamp_(min=1.0).log_()  # what meets less often than by chance is 0


def _compute_truncated_svd(matrix: Tensor, start: Tensor) -> Tensor:
    """U sqrt(S) of the largest singular values, by a randomised power iteration."""
    basis = torch.linalg.qr(matrix @ start)[0]
    for _ in range(POWER_ITERATIONS):
        basis = torch.linalg.qr(matrix @ (matrix.T @ basis))[0]
    u, s, _ = torch.linalg.svd((basis.T @ matrix).cpu(), full_matrices=False)
    found: Tensor = basis @ (u * s.sqrt()).to(basis.device)
    return found
