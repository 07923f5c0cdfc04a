"""How the network starts: a tokenizer, and embeddings that are static vectors of its pieces, trained in seconds.

On two slow cores this buys most: counting who stands near whom takes seconds for all text, of which the network reads a
hundredth in that time.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pretune.adapt.static.ppmi import Ppmi
from pretune.adapt.static.words import Words
from pretune.data.prepare import Data
from pretune.models import catalog, checkpoint
from pretune.models.families import FAMILIES
from pretune.models.model import build
from pretune.objectives.masked import Masked
from pretune.recipes.quickstart.plan import Plan
from pretune.recipes.resolve import fitted, with_heads
from pretune.text.tokenizer import Tokenizer
from pretune.use.word_vectors import Floats, Vectors

SPREAD = 0.05
"""The standard deviation of the embeddings: above that of the positions (0.02), so that words are heard."""


def piece_vectors(data: Data, plan: Plan, device: str = "cpu") -> Vectors:
    """A vector for every piece that is met twice in prepared data, under its number as text."""
    return Ppmi(width=plan.width, window=plan.window).fit(pieces_of(data), device=device)


def pieces_of(data: Data) -> Words:
    """The pieces of prepared data by falling frequency, those that are met twice."""
    shards = data.shards("train")
    edges = np.asarray(shards.documents)
    flat = np.asarray(shards.tokens(int(edges[0]), int(edges[-1])), dtype=np.int64)
    counts = np.bincount(flat)
    kept = np.argsort(-counts, kind="stable")
    kept = kept[counts[kept] > 1]
    place = np.full(len(counts), -1)
    place[kept] = np.arange(len(kept))
    ids, owner = place[flat], np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    known = ids >= 0
    return Words(tuple(map(str, kept.tolist())), counts[kept], ids[known], owner[known], len(flat))


def averages(vectors: Vectors, tokenizer: Tokenizer, texts: Sequence[str]) -> Floats:
    """The mean vector of the pieces of each text."""
    found = tokenizer.encode_batch(texts, literal=True)
    place = np.full(tokenizer.vocab, -1)
    place[[int(word) for word in vectors.words]] = np.arange(len(vectors))
    rows = place[found.ids]
    known = rows >= 0
    starts = np.concatenate([[0], np.cumsum(known)])[found.offsets[:-1]]
    ids, matrix, begins = (torch.from_numpy(part) for part in (rows[known], vectors.matrix, starts))
    mean: Floats = torch.nn.functional.embedding_bag(ids, matrix, begins, mode="mean").numpy()
    return mean


def begin(tokenizer: Tokenizer, vectors: Vectors, plan: Plan, out: Path) -> None:
    """Write a model whose embeddings are the vectors, and whose other weights are new."""
    # NOTE: the first encoder of the table is the plainest one: learned positions, post-norm blocks, no tricks.
    family = next(name for name in FAMILIES if FAMILIES.get(name).shape == "encoder")
    changes = {
        "vocab": tokenizer.vocab, "width": plan.width, "depth": plan.depth, "heads": plan.heads,
        "hidden": plan.hidden, "positions": max(plan.length, plan.crop), "dropout": 0.0,
    }  # fmt: skip
    model = build(with_heads(fitted(catalog.resolve(family, changes), tokenizer), Masked()))
    ids = torch.tensor([int(word) for word in vectors.words])
    rows = torch.from_numpy(vectors.matrix)
    with torch.no_grad():
        model.tokens.weight[ids] = rows / rows.std() * SPREAD
    model.assets.files = tokenizer.files()
    checkpoint.save(model, out, overwrite=True)
