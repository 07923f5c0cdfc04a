"""Losses over compared texts: those of sentence-transformers on the same weights, and what counts as wrong."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.contrastive import (
    ContrastiveLoss,
    ContrastiveModel,
    ContrastiveObjective,
    CosineScore,
    InBatch,
    PairClasses,
    Triplet,
)
from pretune.core.errors import UsageError
from pretune.inference import sentence_modules
from pretune.inference.pooling import Embedding, TextEncoder
from pretune.inference.text_model import get_tokenizer
from pretune.tasks.types.embedding import PairDataset, build_text_stream
from tests.inference.readers import encoder

FIRST = ("the cat plays", "a bird sings in the tree", "money in the bank", "the old house")
SECOND = ("a cat runs", "the bird sings", "the bank has money", "the new house by the river and the bridge")
THIRD = ("the dog", "a child plays music", "bank of the river", "music")


def batch_of(model: Any, columns: tuple[tuple[str, ...], ...], gold: Any = (0, 0, 0, 0)) -> Any:
    dataset = PairDataset(texts=list(zip(*columns, strict=True)), gold=list(gold))
    stream, _ = build_text_stream(dataset, get_tokenizer(model), length=None, prompt="", batch_size=99, seed=0)
    order = np.random.default_rng([0, 0]).permutation(len(gold))
    assert stream.steps_per_epoch == 1 and sorted(order.tolist()) == list(range(len(gold)))
    return stream.batch(0)


def ours(
    loss: ContrastiveLoss, columns: tuple[tuple[str, ...], ...], gold: Any = (0, 0, 0, 0), head: Any = None
) -> Any:
    """The mean loss, and its gradient in the token table."""
    model = encoder()
    contrastive_model = ContrastiveModel(TextEncoder(model, Embedding()), loss, columns=len(columns))
    if head is not None:
        contrastive_model.head.load_state_dict(head)
    loss_value = ContrastiveObjective(len(columns)).loss(contrastive_model, batch_of(model, columns, gold))
    assert int(loss_value.count) == len(gold)
    loss_value.mean().backward()
    return loss_value.mean().item(), model.tokens.weight.grad


def theirs(make: Any, columns: Any, gold: Any, tmp_path: Path) -> Any:
    """As sentence-transformers has it, from our directory."""
    reference = pytest.importorskip("sentence_transformers", reason="the reference library is not installed")
    model = encoder()
    model.assets.modules = sentence_modules.write_modules(TextEncoder(model, Embedding()))
    pt.save(model, tmp_path / "m")
    read = reference.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    loss = make(read, reference.sentence_transformer.losses)
    features = [read.preprocess(list(column)) for column in columns]
    value = loss(features, torch.tensor(gold))
    value.backward()
    return value.item(), read[0].auto_model.embeddings.word_embeddings.weight.grad, loss


CASES = {
    "triplet": (
        Triplet(margin=5.0), 3, (0.0,) * 4,
        lambda model, losses: losses.TripletLoss(model, triplet_margin=5.0),
    ),
    "in_batch": (InBatch(), 2, (0.0,) * 4, lambda model, losses: losses.MultipleNegativesRankingLoss(model)),
    "hard": (
        InBatch(scale=7.0), 3, (0.0,) * 4,
        lambda model, losses: losses.MultipleNegativesRankingLoss(model, scale=7.0),
    ),
    "cosine": (CosineScore(), 2, (0.1, 0.9, 0.4, 1.0), lambda model, losses: losses.CosineSimilarityLoss(model)),
    "classes": (
        PairClasses(classes=3), 2, (0, 2, 1, 1),
        lambda model, losses: losses.SoftmaxLoss(model, sentence_embedding_dimension=32, num_labels=3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_losses_are_theirs(name: str, tmp_path: Path) -> None:
    loss, count, gold, make = CASES[name]
    columns = (FIRST, SECOND, THIRD)[:count]
    expected, slope, module = theirs(make, columns, gold, tmp_path)
    head = copy.deepcopy(module.classifier.state_dict()) if name == "classes" else None
    value, gradient = ours(loss, columns, gold, head)
    assert value == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-5)


def test_equal_texts_are_no_wrong_answers() -> None:
    """A positive that stands twice, or an anchor among the candidates, is left out of the choice."""
    first = ("the cat plays", "a bird sings", "money in the bank", "a bird sings")
    second = ("a cat runs", "the bird", "a bird sings", "the bird")
    model = encoder()
    contrastive_model = ContrastiveModel(TextEncoder(model, Embedding()), InBatch(), columns=2)
    vectors, same, _ = (part.detach() for part in contrastive_model(batch_of(model, (first, second))))
    u, v = (torch.nn.functional.normalize(part, dim=-1) for part in vectors)
    expected = []
    for i in range(4):
        scores = [
            20 * float(u[i] @ v[j])
            for j in range(4)
            if j == i or (same[1][j] != same[1][i] and same[1][j] != same[0][i])
        ]
        expected.append(np.log(np.exp(scores).sum()) - 20 * float(u[i] @ v[i]))
    losses = contrastive_model.criterion.compute_losses(vectors, same, torch.zeros(4), None)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-4)
    num_masked = sum(
        int(j != i and (same[1][j] == same[1][i] or same[1][j] == same[0][i])) for i in range(4) for j in range(4)
    )
    assert num_masked == 4


def test_what_does_not_fit() -> None:
    text_encoder = TextEncoder(encoder(), Embedding())
    with pytest.raises(UsageError, match=r"\b3\b.*\b2\b"):
        ContrastiveModel(text_encoder, Triplet(), columns=2)
    with pytest.raises(UsageError, match="static"):
        ContrastiveModel(TextEncoder(encoder(), Embedding(pooling=("static",))), InBatch(), columns=2)
