"""Losses of preferences: the published formulas, on the log-probabilities of transformers, whatever the packing."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.preference import DPO, IPO, KTO, ORPO, PreferenceLoss, PreferenceObjective, SimPO
from pretune.core.errors import UsageError
from pretune.core.types import Loss
from pretune.data.sequences import share_prompts
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Items
from pretune.tasks.example import Example
from pretune.tasks.stream import TaskStream
from pretune.tasks.task import Task
from tests.inference.speakers import chatter

TASK = Task(name="own", kind="preference", metrics=("choice_accuracy",), splits={}, labels=("chosen", "rejected"))
ROWS = [("a", "b", "She is."), ("The cat", "sat", "He"), ("Why?", "The end of it", "no"), ("x", "w " * 9, "y z")]
EXAMPLES = [Example(text=p, messages=(("user", p),), choices=(a, b), label=0) for p, a, b in ROWS]
LOSSES = [DPO(), DPO(beta=0.5, nll_weight=0.3), IPO(beta=0.2), KTO(), SimPO(), ORPO(beta=0.25)]


def logsigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def compute_expected(kind: PreferenceLoss, logprobs: list[float], tokens: list[int], references: list[float]) -> float:
    """The loss of one pair, the chosen answer first, by the formulas of the papers."""
    (c, r), (cn, rn), (c0, r0), beta = logprobs, tokens, references, kind.beta
    match kind:
        case IPO():
            return ((c - c0) / cn - (r - r0) / rn - 1 / (2 * beta)) ** 2
        case KTO():
            return 1 - 1 / (1 + math.exp(-beta * (c - c0))) + 1 / (1 + math.exp(-beta * (r - r0)))
        case SimPO():
            return -logsigmoid(beta * (c / cn - r / rn - kind.gamma / beta))
        case ORPO():
            odds = (c / cn - r / rn) - (math.log1p(-math.exp(c / cn)) - math.log1p(-math.exp(r / rn)))
            return -beta * logsigmoid(odds)
    return -logsigmoid(beta * ((c - r) - (c0 - r0)))


@cache
def model() -> ModelWithHead:
    return adapt(chatter("llama-7b"), Generation()).eval()


@cache
def encode() -> Items:
    """All examples, with log-probabilities of a reference that are near those of the model."""
    items = TaskEncoder.from_task(TASK, model(), max_length=64, max_new_tokens=8).encode(EXAMPLES)
    references = np.random.default_rng(1).normal(-40, 8, (2 * len(EXAMPLES), 1)).astype(np.float32)
    return replace(items, sequences=replace(items.sequences, sequence_logits=references))


@cache
def peer_logprobs(folder: Path) -> list[tuple[float, int]]:
    """The log-probability of each answer and its tokens, one sequence at a time, by transformers."""
    transformers = pytest.importorskip("transformers")
    pt.save(model().model, folder / "model")
    peer, sequences = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").eval(), encode().sequences
    values = []
    for start, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True):
        ids, labels = (torch.tensor(part[start:end].astype(np.int64)) for part in (sequences.tokens, sequences.targets))
        with torch.no_grad():
            logits = peer(ids[None]).logits[0]
        values.append((-float(F.cross_entropy(logits, labels, reduction="sum")), int((labels >= 0).sum())))
    return values


@pytest.mark.parametrize("kind", LOSSES, ids=repr)
def test_losses_are_those_of_the_papers(kind: PreferenceLoss, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On the log-probabilities of transformers, to 1e-5 of the mean loss of a pair."""
    values, references = peer_logprobs(tmp_path_factory.getbasetemp()), encode().sequences.sequence_logits
    assert references is not None
    pairs = zip(values[::2], values[1::2], references[::2, 0].tolist(), references[1::2, 0].tolist(), strict=True)
    expected = sum(compute_expected(kind, [c[0], r[0]], [c[1], r[1]], [c0, r0]) for c, r, c0, r0 in pairs) / len(
        EXAMPLES
    )
    expected -= kind.nll_weight * sum(c[0] for c in values[::2]) / sum(c[1] for c in values[::2])
    with torch.no_grad():
        loss = PreferenceObjective(kind).loss(model(), TaskStream(encode(), batch=len(EXAMPLES)).batch(0))
    assert float(loss.mean()) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert int(loss.count) == len(EXAMPLES) and loss.correct is not None


def share(items: Items) -> Items:
    sequences, owners = share_prompts(items.sequences, 2)
    rows = items.examples[owners]
    return replace(items, sequences=sequences, examples=rows, sizes=np.bincount(rows))


def gradients(kind: PreferenceLoss, size: int, parts: int, items: Items | None = None) -> tuple[Tensor, list[Tensor]]:
    """The loss of all examples, and the gradients of the vocabulary's and a layer's weights."""
    objective, body = PreferenceObjective(kind), model()
    parameters = [body.model.tokens.weight, next(body.model.decoder.parameters())]
    stream = TaskStream(items or encode(), batch=size, seed=3)
    batches = [stream.batch(step, part=part, parts=parts) for step in stream.steps(0) for part in range(parts)]
    totals: dict[str, Any] = {}
    for batch in batches:
        totals = {name: totals.get(name, 0) + count for name, count in objective.counts(batch).items()}
    loss = torch.stack([objective.loss(body, batch).normalize(totals) for batch in batches]).sum()
    return loss.detach(), list(torch.autograd.grad(loss, parameters))


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(LOSSES), st.integers(1, 4), st.integers(1, 3))
def test_packing_and_accumulation_change_nothing(kind: PreferenceLoss, size: int, parts: int) -> None:
    torch.testing.assert_close(gradients(kind, size, parts), gradients(kind, 4, 1), rtol=1e-4, atol=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(LOSSES), st.integers(1, 4), st.integers(1, 3))
def test_shared_prompts_change_nothing(kind: PreferenceLoss, size: int, parts: int) -> None:
    shared = share(encode())
    assert len(shared.sequences.tokens) < len(encode().sequences.tokens) and set(shared.sizes) == {3}
    torch.testing.assert_close(gradients(kind, size, parts, shared), gradients(kind, 4, 1), rtol=1e-4, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(LOSSES), st.lists(st.floats(-80, -0.01), min_size=4, max_size=4), st.integers(1, 9))
def test_exchanged_answers_negate_the_margin(kind: PreferenceLoss, values: list[float], tokens: int) -> None:
    """The loss falls with the margin."""
    logprobs, references = torch.tensor(values).view(2, 2)
    first, second = kind.reward(logprobs, torch.tensor([tokens, 3]), references)
    margin, exchanged = first - second, second - first
    assert margin == -exchanged
    if abs(margin) > 1e-3 and not isinstance(kind, IPO | KTO):
        assert (kind.compute(first, second) < kind.compute(second, first)) == (margin > 0)


@pytest.mark.parametrize("kind", LOSSES, ids=repr)
def test_answers_without_tokens_are_finite(kind: PreferenceLoss) -> None:
    """Of answers that are cut, and of a model that is certain."""
    logprobs = torch.zeros(2, requires_grad=True)
    loss = kind.compute(*kind.reward(logprobs, torch.ones(2), torch.zeros(2)))
    loss.backward()
    assert loss.isfinite() and logprobs.grad is not None and logprobs.grad.isfinite().all()


def test_a_batch_without_a_reference_is_refused() -> None:
    items = replace(encode(), sequences=replace(encode().sequences, sequence_logits=None))
    batch = TaskStream(items, batch=4).batch(0)
    with pytest.raises(UsageError, match="reference"):
        PreferenceObjective(DPO()).loss(model(), batch)
    assert isinstance(PreferenceObjective(SimPO()).loss(model(), batch), Loss)
