"""How the network starts: a tokenizer, and embeddings that are static vectors of its pieces, trained in seconds.

On two slow cores this buys most: a skip-gram reads all text once in the time that the network reads a hundredth of it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from pretune.adapt.static.vectors import Floats, Vectors
from pretune.adapt.static.word2vec import Word2Vec
from pretune.models import catalog, checkpoint
from pretune.models.families import FAMILIES
from pretune.models.model import build
from pretune.objectives.masked import Masked
from pretune.recipes.quickstart.plan import Plan
from pretune.recipes.resolve import fitted, with_heads
from pretune.text.tokenizer import Tokenizer

SPREAD = 0.05
"""The standard deviation of the embeddings: above that of the positions (0.02), so that words are heard."""

RARELY = 1e-4
"""The share of the text from which on a piece is left out now and then: half the work, and rarer words are heard."""


def piece_vectors(tokenizer: Tokenizer, texts: Sequence[str], plan: Plan) -> Vectors:
    """A vector for every piece that is met twice, under its number as text."""
    found = tokenizer.encode_batch(texts, literal=True)
    pieces = [[str(piece) for piece in found[i].tolist()] for i in range(len(found))]
    return Word2Vec(width=plan.width, epochs=plan.static, subsample=RARELY, least=2).train(pieces)


def averages(vectors: Vectors, tokenizer: Tokenizer, texts: Sequence[str]) -> Floats:
    """The mean vector of the pieces of each text."""
    found = tokenizer.encode_batch(texts, literal=True)
    return vectors.average([[str(piece) for piece in found[i].tolist()] for i in range(len(found))])


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
