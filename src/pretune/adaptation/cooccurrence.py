"""Vectors from co-occurrence counts: PPMI and GloVe. Words co-occur if they are at most `window` words apart in a text.

PPMI (Levy and Goldberg, 2014; Levy et al., 2015): positive pointwise mutual information, factorized by a truncated SVD.
The ratio of the observed to the expected co-occurrence is a matrix, of which a truncated singular value decomposition
keeps `width` columns. Skip-gram factorizes much the same matrix, a word at a time; counting is one pass. The matrix is
dense, for fast products: for some ten thousand words, not for hundreds of thousands.

    PPMI_ij = max(0, log(X_ij X / (X_i X_j')))    X_j' = X_j^0.75, scaled to the same sum    W = U sqrt(S)

GloVe (Pennington et al., 2014): vectors whose products are the logarithms of counts; words at distance d count 1/d.

    loss = f(X_ij) (w_i . v_j + b_i + c_j - log X_ij)^2        f(x) = min(1, (x / 100) ^ 0.75)

A token table can begin with PPMI vectors of its tokens, or get them besides its own (`count_token_vectors`). Masked
training learns the frequencies of tokens first and uses context after some million tokens, on a processor most of a
short run; counting takes seconds.

    new model        E_i = c v_i                           one scale for all
    trained model    E_i + share |E| Q v_i / |v|           Q: the rotation into the table's space that fits it best

A word's vector is w + v. Pairs are batched in random order; AdaGrad keeps one value per row, where the paper's program
keeps one per weight.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation.word2vec import VectorTrainer, WordCorpus
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.seed import make_generator
from pretune.data.sequences import Ints
from pretune.data.shards import Shards
from pretune.inference.word_vectors import WordVectors
from pretune.models.catalog import AnyModel
from pretune.models.model import LanguageModel

Floats = NDArray[np.float64]
BATCH_SIZE = 8192
_CHUNK_WORDS = 1 << 20  # words counted at once
MAX_WORDS = 20_000
"""Maximum number of words: the matrix of 20,000 takes 1.6 GB."""
OVERSAMPLING, POWER_ITERATIONS = 16, 3
"""Extra columns, and rounds of the power iteration (Halko et al., 2011)."""
COUNTED_TOKENS, TOKEN_WINDOW, MIN_TOKEN_COUNT = 4_000_000, 30, 20
"""Tokens that are counted at most, the tokens on each side that count as context, and the least count of a token."""
TOKEN_SCALE = 0.3
"""Standard deviation in a new model: training moves smaller ones too far from where they began (bench/log.md)."""
ADDED_WIDTH, ADDED_SHARE = 64, 0.5
"""Columns that a trained model gets, and their size relative to its own vectors."""


@spec
class Ppmi(VectorTrainer):
    """PPMI vectors: one pass over the text, then matrix products."""

    width: int = 100
    window: int = 5
    power: float = 0.75  # exponent of the context counts: below 1, rare contexts have less weight
    min_count: int = 5  # words with fewer occurrences are ignored
    max_words: int | None = MAX_WORDS  # maximum number of words with a vector

    def fit(self, words: WordCorpus, *, seed: int = 0, device: torch.device | str = "cpu") -> WordVectors:
        """Compute vectors from a corpus of word ids; a GPU is faster if it has memory for three such matrices."""
        if len(words) > MAX_WORDS:
            raise UsageError(
                f"vocabulary must be <= {MAX_WORDS:,} words, got {len(words):,}; set `max_words`, or use Word2Vec"
            )
        matrix = compute_ppmi(count_matrix(words, self.window, device), self.power)
        width = min(self.width, len(words))
        size = (len(words), min(width + OVERSAMPLING, len(words)))
        start = make_generator(seed, 0).standard_normal(size, dtype=np.float32)
        vectors = _compute_truncated_svd(matrix, torch.from_numpy(start).to(matrix.device))[:, :width].cpu()
        if width < self.width:
            vectors = torch.nn.functional.pad(vectors, (0, self.width - width))
        return WordVectors(words.words, vectors.numpy())


def count_matrix(words: WordCorpus, window: int, device: torch.device | str = "cpu") -> Tensor:
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


@spec
class Glove(VectorTrainer):
    """GloVe vectors; the defaults are the paper's except `width` and `epochs`."""

    width: int = 100
    window: int = 10
    epochs: int = 15
    rate: float = 0.05
    ceiling: float = 100.0  # count above which a pair has full weight
    power: float = 0.75
    min_count: int = 5  # words with fewer occurrences are ignored
    max_words: int | None = None  # maximum number of words with a vector

    def fit(self, words: WordCorpus, *, seed: int = 0) -> WordVectors:
        """Train vectors on a corpus of word ids."""
        first, second, counts = count_pairs(words, self.window)
        log = torch.from_numpy(np.log(counts)).float()
        weight = torch.from_numpy(np.minimum(1.0, (counts / self.ceiling) ** self.power)).float()
        pairs = (torch.from_numpy(first), torch.from_numpy(second))
        sides = [_VectorTable(len(words), self.width, make_generator(seed, side)) for side in range(2)]
        for epoch in range(self.epochs):
            order = torch.from_numpy(make_generator(seed, 2, epoch).permutation(len(counts)))
            for start in range(0, len(order), BATCH_SIZE):
                indices = order[start : start + BATCH_SIZE]
                for i, j in ((0, 1), (1, 0)):  # co-occurrence is symmetric: each pair is used both ways
                    self._step(sides, pairs[i][indices], pairs[j][indices], log[indices], weight[indices])
        return WordVectors(words.words, (sides[0].table + sides[1].table)[:, :-1].numpy())

    def _step(self, sides: list["_VectorTable"], i: Tensor, j: Tensor, log: Tensor, weight: Tensor) -> None:
        word_rows, context_rows = sides[0].table.index_select(0, i), sides[1].table.index_select(0, j)
        # The last column of each table is its bias: the product without it, plus both biases.
        inner = torch.linalg.vecdot(word_rows[:, :-1], context_rows[:, :-1])
        error = ((inner + word_rows[:, -1] + context_rows[:, -1] - log) * weight).unsqueeze(1)
        word_grad, context_grad = error * context_rows, error * word_rows
        word_grad[:, -1], context_grad[:, -1] = error[:, 0], error[:, 0]
        sides[0].update(i, word_grad, self.rate)
        sides[1].update(j, context_grad, self.rate)


class _VectorTable:
    """A vector and bias per word `[V, W + 1]`, and AdaGrad's sum per word."""

    def __init__(self, words: int, width: int, rng: np.random.Generator) -> None:
        self.table = torch.from_numpy((rng.random((words, width + 1), dtype=np.float32) - 0.5) / (width + 1))
        self.sums = torch.ones(words)

    def update(self, rows: Tensor, gradient: Tensor, rate: float) -> None:
        self.sums.index_add_(0, rows, gradient.square().mean(1))
        step = (-rate * self.sums.index_select(0, rows).rsqrt_()).unsqueeze(1)
        self.table.index_add_(0, rows, gradient.mul_(step))


def count_pairs(words: WordCorpus, window: int) -> tuple[Ints, Ints, Floats]:
    """Return all pairs of co-occurring words, the more frequent word first, and their counts (1/d at distance d).

    Words are counted in chunks, so memory holds the distinct pairs plus those of one chunk.
    """
    size = len(words)
    keys, counts = np.empty(0, dtype=np.int64), np.empty(0)
    for start in range(0, len(words.ids), _CHUNK_WORDS):
        stop = min(start + _CHUNK_WORDS, len(words.ids))
        for d in range(1, window + 1):
            ids, text = words.ids[start : stop + d], words.text_ids[start : stop + d]
            low, high = np.minimum(ids[:-d], ids[d:]), np.maximum(ids[:-d], ids[d:])
            same = text[:-d] == text[d:]
            new_keys, new_counts = np.unique((low * size + high)[same], return_counts=True)
            keys, counts = _merge_counts(keys, counts, new_keys, new_counts / d)
    return keys // size, keys % size, counts


def _merge_counts(keys: Ints, values: Floats, new_keys: Ints, new_values: Floats) -> tuple[Ints, Floats]:
    """Merge two sorted lists of keys; values of equal keys are added."""
    merged_keys, inverse = np.unique(np.concatenate((keys, new_keys)), return_inverse=True)
    sums = np.bincount(inverse, np.concatenate((values, new_values)), minlength=len(merged_keys))
    return merged_keys, sums.astype(np.float64)


def count_token_vectors(model: AnyModel, shards: Shards, *, is_new: bool, seed: int = 0) -> None:
    """Replace the rows of the token table by PPMI vectors, or add them if the model is trained, in place.

    Tokens that occur seldom keep their rows.
    """
    if not isinstance(model, LanguageModel):
        raise UsageError("train.token_vectors=counted needs a model with one token table; leave it out")
    table = model.tokens.weight.detach()
    rows, vectors = compute_ppmi_vectors(shards, len(table), table.shape[1] if is_new else ADDED_WIDTH, seed=seed)
    if len(rows) < 2:
        return
    old = table[rows].float().cpu()
    if is_new:
        new = vectors * (TOKEN_SCALE / vectors.std())
    else:
        size = (old - old.mean(0)).norm(dim=1).mean()
        new = old + ADDED_SHARE * size * rotate(vectors - vectors.mean(0), old - old.mean(0))
    table[rows.to(table.device)] = new.to(table)


def compute_ppmi_vectors(shards: Shards, vocab: int, width: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the ids of the frequent tokens `[R]`, and their vectors `[R, W]`."""
    ids = shards.read_tokens(0, min(len(shards), COUNTED_TOKENS)).astype(np.int64)
    ends = np.minimum(shards.documents[: int(np.searchsorted(shards.documents, len(ids))) + 1], len(ids))
    text_ids = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    counts = np.bincount(ids, minlength=vocab)
    rows = np.sort(np.argsort(-counts, kind="stable")[:MAX_WORDS])
    rows = rows[counts[rows] >= MIN_TOKEN_COUNT]
    numbers = np.full(vocab, -1)
    numbers[rows] = np.arange(len(rows))
    ids, is_kept = numbers[ids], numbers[ids] >= 0
    words = WordCorpus(tuple(map(str, rows)), counts[rows], ids[is_kept], text_ids[is_kept], len(ids))
    matrix = Ppmi(width=width, window=TOKEN_WINDOW).fit(words, seed=seed).matrix if len(rows) else np.zeros((0, width))
    return torch.from_numpy(rows), torch.from_numpy(matrix)


def rotate(vectors: Tensor, target: Tensor) -> Tensor:
    """Return vectors `[R, W]` in the space of a target `[R, V]`, at a mean norm of 1.

    Their columns stay orthogonal: the least squares fit without its stretching.
    """
    fit = torch.linalg.lstsq(vectors, target).solution
    u, _, v = torch.linalg.svd(fit, full_matrices=False)
    result: Tensor = vectors @ (u @ v)
    result /= result.norm(dim=1).mean()
    return result
