"""Token vectors that are counted: a token table begins with, or gets, what its tokens share a text with.

Masked training learns the frequencies of tokens first and uses context after some million tokens; on a processor that
is most of a short run, or all of it. PPMI vectors of the same tokens take seconds and hold which of them occur together.

    new model        E_i = c v_i                               the table is replaced, at one scale
    trained model    E_i + share |E| Q v_i / |v|               Q: the rotation into the table's space that fits it best
"""

import numpy as np
import torch
from torch import Tensor

from pretune.adaptation.cooccurrence import MAX_WORDS, Ppmi
from pretune.adaptation.word2vec import WordCorpus
from pretune.core.errors import UsageError
from pretune.data.shards import Shards
from pretune.models.catalog import AnyModel
from pretune.models.model import LanguageModel

COUNTED_TOKENS, WINDOW, MIN_COUNT = 4_000_000, 30, 20
"""Tokens that are counted at most, the tokens on each side that count as context, and the least count of a token."""
SCALE = 0.3
"""Standard deviation in a new model: training moves smaller ones too far from where they began (bench/log.md)."""
WIDTH, SHARE = 64, 0.5
"""Columns that a trained model gets, and their size relative to its own vectors."""


def count_token_vectors(model: AnyModel, shards: Shards, *, is_new: bool, seed: int = 0) -> None:
    """Replace the rows of the token table by PPMI vectors, or add them if the model is trained, in place.

    Tokens that occur seldom keep their rows.
    """
    if not isinstance(model, LanguageModel):
        raise UsageError("train.token_vectors=counted needs a model with one token table; leave it out")
    table = model.tokens.weight.detach()
    rows, vectors = compute_token_vectors(shards, len(table), table.shape[1] if is_new else WIDTH, seed=seed)
    if len(rows) < 2:
        return
    old = table[rows].float().cpu()
    if is_new:
        new = vectors * (SCALE / vectors.std())
    else:
        size = (old - old.mean(0)).norm(dim=1).mean()
        new = old + SHARE * size * rotate(vectors - vectors.mean(0), old - old.mean(0))
    table[rows.to(table.device)] = new.to(table)


def compute_token_vectors(shards: Shards, vocab: int, width: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the ids of the frequent tokens `[R]`, and their vectors `[R, W]`."""
    ids = shards.read_tokens(0, min(len(shards), COUNTED_TOKENS)).astype(np.int64)
    text_ids = np.repeat(np.arange(len(shards.documents) - 1), np.diff(shards.documents))[: len(ids)]
    counts = np.bincount(ids, minlength=vocab)
    rows = np.sort(np.argsort(-counts, kind="stable")[:MAX_WORDS])
    rows = rows[counts[rows] >= MIN_COUNT]
    numbers = np.full(vocab, -1)
    numbers[rows] = np.arange(len(rows))
    ids, is_kept = numbers[ids], numbers[ids] >= 0
    words = WordCorpus(tuple(map(str, rows)), counts[rows], ids[is_kept], text_ids[is_kept], len(ids))
    matrix = Ppmi(width=width, window=WINDOW).fit(words, seed=seed).matrix if len(rows) else np.zeros((0, width))
    return torch.from_numpy(rows), torch.from_numpy(matrix)


def rotate(vectors: Tensor, target: Tensor) -> Tensor:
    """Return vectors `[R, W]` in the space of a target `[R, V]`, at a mean norm of 1.

    Their columns stay orthogonal: the least squares fit without its stretching.
    """
    fit = torch.linalg.lstsq(vectors, target).solution
    u, _, v = torch.linalg.svd(fit, full_matrices=False)
    rotated = vectors @ (u @ v)
    return rotated / rotated.norm(dim=1).mean()
