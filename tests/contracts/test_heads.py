"""Every family with every head: it builds, learns, is saved and read bit for bit, and reads packed as alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads import HEADS
from pretune.adaptation.heads.base import build_encoder_decoder_inputs
from pretune.adaptation.heads.coreference import Coreference, encode_mentions
from pretune.adaptation.heads.dependency import UNKNOWN_HEAD, Dependency, encode_arcs
from pretune.adaptation.heads.sequence import Choice, Classification, build_group_labels
from pretune.adaptation.heads.token import END, START, Generation, Span, Tagging
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences
from pretune.models.families import FAMILIES
from pretune.models.model import build
from pretune.nn.heads import PoolingConfig
from pretune.training.step import ModelWithLoss
from tests.contracts.tiny import rough, take_steps, text, tiny
from tests.selection import keep_quick

LENGTHS, ROW = (6, 3, 8, 2, 5, 4), 14
ROWS = np.repeat([0, 1, 3], 2)  # the options of a question in one row; row 2 is empty
SETTINGS: dict[str, dict[str, Any]] = {
    "classification": {"classes": 3},
    "multi_label": {"classes": 3},
    "tagging": {"classes": 4},
    "dependency": {"classes": 3, "arc": 12, "relation": 8, "dropout": 0.0},
    "coreference": {"hidden": 12, "max_width": 3, "ratio": 0.7, "dropout": 0.0},
}


def made(family: str, head: str) -> ModelWithHead:
    spec = tiny(family)
    return adapt(rough(build(spec)), HEADS.get(head)(**SETTINGS.get(head, {})))


def sequences(head: str, which: list[int] | None = None) -> Sequences:
    """Six sequences with what a head learns from; some of them have no label."""
    tokens = [np.array(one) for one in text(*LENGTHS)]
    flat = np.concatenate(tokens)
    offsets = np.append(0, np.cumsum(LENGTHS))
    more: dict[str, Any] = {}
    if head == "classification":
        more["labels"] = np.array([0, 2, IGNORE_INDEX, 1, 1, 2])
    elif head == "regression":
        more["labels"] = np.array([0.5, -1.5, IGNORE_INDEX, 1.0, 2.0, 0.0], dtype=np.float32)
    elif head == "multi_label":
        more["labels"] = np.array(
            [[0, 1, 1], [1, 0, 0], [IGNORE_INDEX] * 3, [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=np.float32
        )
    elif head == "choice":
        more["labels"] = build_group_labels(np.array([2, 2, 2]), np.array([1, 0, 1]))
    elif head == "tagging":
        more["targets"] = np.where(np.arange(len(flat)) % 3 == 0, IGNORE_INDEX, flat % 4)
    elif head == "dependency":
        words = np.arange(len(flat)) - np.repeat(offsets[:-1], LENGTHS)  # every token is a word
        distance = np.where(words % 4 == 2, -2, np.where(words == 0, 0, -1))
        more["targets"] = encode_arcs(distance, flat % 3, 3)
        more["targets"][offsets[3] - 1] = UNKNOWN_HEAD
    elif head == "coreference":
        more["words"] = np.ones(len(flat), dtype=bool)  # every token is a word, and three are a sentence
        more["sentences"] = (np.arange(len(flat)) - np.repeat(offsets[:-1], LENGTHS)) % 3 == 0
        more["targets"] = np.full(len(flat), IGNORE_INDEX)
        for start, length in zip(offsets, LENGTHS, strict=False):
            last = length - 1
            places = [(0, 1), (0, 2), (last, 1)] if length > 3 else [(0, 1), (last, 1)]
            for slot, (place, width) in enumerate(places):
                mention = (np.array(value) for value in (place - slot, width, slot % 2 * (length > 3)))
                more["targets"][start + slot] = encode_mentions(*mention)
    elif head == "generation":
        more["targets"] = np.where(np.arange(len(flat)) % 2 == 0, IGNORE_INDEX, flat)
    else:
        more["targets"] = np.full(len(flat), IGNORE_INDEX)
        more["targets"][offsets[:-1]] = START
        more["targets"][offsets[1:] - 1] = END
        more["targets"][offsets[2]] = START + END  # no answer
        more["targets"][offsets[3] - 1] = IGNORE_INDEX
    found = Sequences(tokens=flat, offsets=offsets, **more)
    return found if which is None else found.take(np.array(which))


def laid(model: ModelWithHead, found: Sequences, place: np.ndarray, row: int = ROW) -> pt.Batch:
    both = model.model.spec.is_encoder_decoder
    shape = BatchShape(rows=int(place[-1]) + 1, length=row, source=row if both else None, sequences=3, slots=16)
    return lay_out(build_encoder_decoder_inputs(found, model.model.spec), place, shape)


def answers(model: ModelWithHead, batch: pt.Batch) -> list[torch.Tensor]:
    """What is said of every sequence: one row, or one for each token."""
    with torch.no_grad():
        out = model(replace(batch, targets=None))
    if isinstance(model.spec, Dependency):  # a row for each token, a column for each head of its sequence
        return [rows[:, : 1 + len(rows)].flatten(1) for rows in batch.split(out)]
    return batch.split(out) if isinstance(model.spec, Tagging | Coreference | Span | Generation) else [*out]


CELLS = [(family, head) for family in FAMILIES for head in HEADS]
QUICK = {"bert"} & set(FAMILIES)
"""Families with every head in `make test`; some others, of each shape, have classification there."""
WITH_CLASSES = {
    *("deberta", "modernbert", "xlnet"),
    *("gpt2", "t5", "elmo", "ulmfit"),
}


def is_quick(family: str, head: str) -> bool:
    return family in QUICK or (family in WITH_CLASSES and head == "classification")


@pytest.mark.parametrize(
    ("family", "head"),
    keep_quick(CELLS, *(cell for cell in CELLS if is_quick(*cell))),
    ids=lambda part: part,
)
def test_a_family_with_a_head(family: str, head: str, tmp_path: Path) -> None:
    spec = tiny(family)
    if head == "generation" and (spec.decoder is None or spec.head is None):
        with pytest.raises(UsageError, match="'generation'") as refused:
            made(family, head)
        assert "\n" not in str(refused.value)
        return
    model = made(family, head).eval()
    batch = laid(model, sequences(head), ROWS)
    packed = answers(model, batch)
    assert all(torch.isfinite(one).all() for one in packed)
    for i in (0, 2, 3):  # packed is alone
        one = packed[i]
        alone = answers(model, laid(model, sequences(head, [i]), np.array([0]), row=LENGTHS[i]))[0]
        torch.testing.assert_close(one, alone, rtol=0, atol=1e-5)
    with torch.no_grad():  # a batch split in two has the same loss, and so has one half the spare room
        whole = model.spec.loss(model, batch)
        halves = [model.spec.loss(model, laid(model, sequences(head, which), np.zeros(len(which), dtype=int), row=24))
                  for which in ([0, 1], [2, 3], [4, 5])]  # fmt: skip
    assert whole.count == sum(half.count for half in halves) == model.spec.counts(batch)["loss"] > 0
    torch.testing.assert_close(whole.sum, torch.stack([half.sum for half in halves]).sum(), rtol=1e-5, atol=1e-5)
    falls(model, batch)
    pt.save(model, tmp_path)
    again = pt.load(tmp_path)
    if head == "generation":  # the model's own head: nothing was added, and nothing but the model is saved
        torch.testing.assert_close(again(batch).logits, model.eval()(batch), rtol=0, atol=0)
        return
    assert isinstance(again, ModelWithHead) and again.spec == model.spec
    ours, theirs = dict(model.eval().named_parameters()), dict(again.named_parameters())
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(*pair) for pair in zip(answers(again, batch), answers(model, batch), strict=True))


def falls(model: ModelWithHead, batch: pt.Batch) -> None:
    """A few steps on one batch lower its loss; head and body both move."""
    trainee = ModelWithLoss(model, model.spec)
    watched = [model.model.tokens.weight, *(model.head or model).parameters()]
    before = [parameter.detach().clone() for parameter in watched]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = take_steps(optimizer, lambda _: trainee(batch).mean(), 4)
    assert losses[-1] < losses[0], losses
    assert any(not torch.equal(a, b) for a, b in zip(before, watched, strict=True))


def test_the_body_is_shared_and_the_model_is_as_it_was() -> None:
    model = build(tiny("bert"))
    parts = model.spec.parts
    new = adapt(model, Classification(classes=2))
    assert model.spec.parts == parts and model.head is not None and model.pooler is not None
    assert new.model.tokens.weight is model.tokens.weight and new.model.head is None and not new.model.spec.parts
    assert torch.equal(new.head.dense.weight, model.pooler.dense.weight)
    assert torch.equal(adapt(model, Classification(classes=2)).head.out.weight, new.head.out.weight)
    assert not torch.equal(adapt(model, Classification(classes=2), seed=1).head.out.weight, new.head.out.weight)


def test_mean_reads_all_of_a_sequence() -> None:
    model = adapt(rough(build(tiny("bert"))), Classification(classes=3, pooling=PoolingConfig(mode="mean"))).eval()
    batch = laid(model, sequences("classification"), ROWS)
    states = batch.split(model.states(batch))
    for said, one in zip(answers(model, batch), states, strict=True):
        torch.testing.assert_close(said, model.head.out(one.mean(0)), rtol=0, atol=1e-5)


def test_the_language_loss_beside(tmp_path: Path) -> None:
    """GPT's auxiliary loss: two terms, the head over the vocabulary kept and saved."""
    model = adapt(rough(build(tiny("gpt"))), Classification(classes=3, lm_loss_weight=0.5)).eval()
    found = replace(sequences("classification"), targets=sequences("generation").targets)
    batch = laid(model, found, ROWS)
    loss = model.spec.loss(model, batch)
    counts = model.spec.counts(batch)
    assert loss.parts["language"].weight == 0.5 and counts.keys() == loss.parts.keys()
    assert all(counts[name] == loss.parts[name].count for name in counts)
    assert loss.mean() > loss.parts["loss"].mean()
    pt.save(model, tmp_path)
    again = pt.load(tmp_path)
    assert again.spec == model.spec and again.model.head is not None
    assert torch.equal(torch.cat(answers(again, batch)), torch.cat(answers(model, batch)))
    with pytest.raises(UsageError):
        adapt(build(tiny("electra")), Classification(classes=3, lm_loss_weight=0.5))


def test_right_answers_are_counted() -> None:
    model = adapt(rough(build(tiny("bert"))), Choice()).eval()
    batch = laid(model, sequences("choice"), ROWS)
    with torch.no_grad():
        scores = [float(one) for one in answers(model, batch)]
        right = sum((scores[2 * i] < scores[2 * i + 1]) == bool(k) for i, k in enumerate((1, 0, 1)))
        assert int(model.spec.loss(model, batch).correct) == right


def test_what_a_head_needs_is_asked_for() -> None:
    model = made("bert", "classification")
    bare = pt.batch([[1, 2, 3]])
    with pytest.raises(UsageError):
        model.spec.counts(bare)
    with pytest.raises(UsageError):
        HEADS.get("tagging")(classes=2).counts(bare)
    with pytest.raises(UsageError):
        Classification(classes=2, labels=("a",))
    with pytest.raises(UsageError):
        build_group_labels(np.array([2]), np.array([2]))
