"""Distillation of every head: soft targets written out per sequence, cached logits, stages, and what does not fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pretune.adaptation import distillation
from pretune.adaptation.adapted import ModelWithHead, MultiTask, adapt
from pretune.adaptation.distillation import LayerStageHook, TaskDistill, TaskTeacher
from pretune.adaptation.heads import HEADS
from pretune.adaptation.heads.sequence import Classification, Regression
from pretune.adaptation.heads.token import Generation, Tagging
from pretune.adaptation.teacher import freeze_teacher
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.models.model import build
from tests.contracts.test_heads import LENGTHS, ROWS, answers, laid, made, sequences
from tests.contracts.tiny import tiny

T = 2.0
WITHOUT_SOFT_TARGETS = {"dependency", "coreference"}  # trees and links: their layers can be imitated
CASES = [("bert" if head != "generation" else "t5", head) for head in HEADS if head not in WITHOUT_SOFT_TARGETS]
LAYERS = {"state_weight": 1.0, "embedding_weight": 1.0, "attention_weight": 1.0}


def make_pair(family: str, head: str) -> tuple[ModelWithHead, TaskTeacher]:
    student, teacher = made(family, head).eval(), made(family, head)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    return student, TaskTeacher("runs/teacher", freeze_teacher(teacher))


def diverge(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """T² KL of one distribution, given its logits."""
    p, q = (teacher / T).softmax(0), (student / T).softmax(0)
    return T**2 * (p * (p / q).log()).sum()


def expect(head: str, student: ModelWithHead, teacher: ModelWithHead, batch: Batch) -> torch.Tensor:
    """The summed soft loss, sequence by sequence."""
    ours, theirs = answers(student, batch), answers(teacher, batch)
    pairs = list(zip(ours, theirs, strict=True))
    found, offsets = sequences(head), np.append(0, np.cumsum(LENGTHS))
    if head in ("classification", "regression", "multi_label"):
        assert found.labels is not None
        is_labelled = (found.labels if found.labels.ndim == 1 else found.labels[:, 0]) != IGNORE_INDEX
        pairs = [pair for pair, is_kept in zip(pairs, is_labelled, strict=True) if is_kept]
    if head == "classification":
        return sum((diverge(*pair) for pair in pairs), torch.zeros(()))
    if head == "regression":
        return sum(((mine - other).square().sum() for mine, other in pairs), torch.zeros(()))
    if head == "multi_label":
        logits = [
            torch.stack((torch.stack((mine, -mine)) / 2, torch.stack((other, -other)) / 2)) for mine, other in pairs
        ]
        return sum((diverge(part[0, :, k], part[1, :, k]) for part in logits for k in range(3)), torch.zeros(()))
    if head == "choice":
        groups = [(torch.cat(ours[i : i + 2]), torch.cat(theirs[i : i + 2])) for i in (0, 2, 4)]
        return sum((diverge(*pair) for pair in groups), torch.zeros(()))
    if head == "span":
        return sum((diverge(mine[:, k], other[:, k]) / 2 for mine, other in pairs for k in (0, 1)), torch.zeros(()))
    assert found.targets is not None
    total = torch.zeros(())
    for number, (mine, other) in enumerate(pairs):
        labels = found.targets[offsets[number] : offsets[number + 1]]
        total = total + sum(diverge(mine[i], other[i]) for i in np.flatnonzero(labels != IGNORE_INDEX))
    return total


@pytest.mark.parametrize(("family", "head"), CASES)
def test_soft_targets_of_a_head(family: str, head: str) -> None:
    student, teacher = make_pair(family, head)
    batch = laid(student, sequences(head), ROWS)
    weights = TaskDistill(temperature=T, hard_weight=0.25)
    objective = teacher.attach(weights, student)
    loss = objective.loss(student, batch)
    terms, plain = loss.get_terms(), student.spec.loss(student, batch)
    assert [*terms] == [*objective.counts(batch)] == ["task", "soft"]
    torch.testing.assert_close(terms["task"].sum, plain.sum)
    torch.testing.assert_close(terms["soft"].sum, expect(head, student, teacher.model, batch), rtol=1e-4, atol=1e-5)
    assert int(terms["soft"].count) == int(plain.count) == int(objective.counts(batch)["soft"]) > 0
    mean = (0.25 * terms["task"].sum + 0.5 * terms["soft"].sum) / terms["soft"].count
    torch.testing.assert_close(loss.mean(), mean)
    loss.mean().backward()
    assert all(weight.grad is None for weight in teacher.model.parameters())
    parts = dict(student.named_parameters())
    assert all(parts[name].grad is not None for name in parts if ".attention.q.weight" in name)


@pytest.mark.parametrize(("family", "head"), [case for case in CASES if case[1] != "generation"])
def test_cached_logits_are_those_of_the_teacher(family: str, head: str) -> None:
    student, teacher = make_pair(family, head)
    weights = TaskDistill(temperature=T)
    objective = teacher.attach(weights, student)
    batch = laid(student, sequences(head), ROWS)
    (cached,) = teacher.add_logits([sequences(head)], weights)
    with_logits = laid(student, cached, ROWS)
    assert with_logits.teacher_logits is not None and teacher.cached_flops > 0
    live = objective.loss(student, batch).get_terms()["soft"].sum
    objective.teacher = None  # type: ignore[assignment]  # takes no part
    torch.testing.assert_close(objective.loss(student, with_logits).get_terms()["soft"].sum, live)
    (live_only,) = teacher.add_logits([sequences(head)], replace(weights, cache=False))
    assert laid(student, live_only, ROWS).teacher_logits is None


@pytest.mark.parametrize(("family", "head"), [("bert", "tagging"), ("t5", "generation"), ("gpt2", "classification")])
def test_layers_are_compared_with_the_task(family: str, head: str) -> None:
    student, teacher = make_pair(family, head)
    batch = laid(student, sequences(head), ROWS)
    objective = teacher.attach(TaskDistill(temperature=T, **LAYERS), student)
    terms = objective.loss(student, batch).get_terms()
    assert [*terms] == [*objective.counts(batch)] == ["task", "soft", "states", "embeddings", "attention"]
    torch.testing.assert_close(terms["soft"].sum, expect(head, student, teacher.model, batch), rtol=1e-4, atol=1e-5)
    assert all(term.sum.item() > 0 for term in terms.values())


def test_layers_first_and_the_head_after_them() -> None:
    student, teacher = make_pair("bert", "classification")
    batch = laid(student, sequences("classification"), ROWS)
    objective = teacher.attach(TaskDistill(hard_weight=0, layer_share=0.3, **LAYERS), student)
    hook, terms = LayerStageHook(objective, steps=10), []
    for step in (0, 2, 3, 9):
        hook(_make_loop(step), [])
        terms.append(objective.loss(student, batch).get_terms())
        assert [*terms[-1]] == [*objective.counts(batch)]
    assert [[*found] for found in terms] == [["states", "embeddings", "attention"]] * 2 + [["soft"]] * 2


def _make_loop(step: int) -> Any:
    return type("Loop", (), {"state": type("State", (), {"step": step})})


def test_each_task_has_its_teacher() -> None:
    """Heads of several tasks are compared with the same head of the teacher."""
    heads = MultiTask((Classification(classes=3), Tagging(classes=4)))
    student = adapt(build(tiny("bert")), heads).eval()
    teacher = TaskTeacher("runs/t", freeze_teacher(adapt(build(tiny("bert"), seed=4), heads, seed=5)))
    parts = [sequences("classification"), sequences("tagging")]
    objective = teacher.attach(TaskDistill(), student)
    cached = teacher.add_logits(parts, TaskDistill())
    for task in (0, 1):
        live, known = (replace(laid(student, part[task], ROWS), task=task) for part in (parts, cached))
        found = [objective.loss(student, batch).get_terms()["soft"].sum for batch in (live, known)]
        torch.testing.assert_close(found[0], found[1])


def test_scores_of_another_range() -> None:
    student, teacher = make_pair("bert", "regression")
    batch = laid(student, sequences("regression"), ROWS)
    objective = teacher.attach(TaskDistill(), student)
    objective.rescaling = (0.5, -0.5)
    total = objective.loss(student, batch).get_terms()["soft"].sum
    ours, theirs = answers(student, batch), answers(teacher.model, batch)
    expected = sum((ours[i] - (0.5 * theirs[i] - 0.5)).square().sum() for i in (0, 1, 3, 4, 5))
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cosine_weight": 1.0}, "cosine_weight is for pre-training"),
        ({"layer_share": 0.5}, "layer_share needs a layer term"),
        ({"layer_share": 0.5, "state_weight": 1.0, "soft_weight": 0, "hard_weight": 0}, "train nothing"),
        ({"cache": True, "state_weight": 1.0}, "layers of a teacher cannot be cached"),
        ({"soft_weight": 0.0, "hard_weight": 0.0}, "all weights of a distillation are 0"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TaskDistill(**settings)


def test_heads_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "check_vocabulary", lambda *parts: None)  # these models have no tokenizer
    student, teacher = make_pair("bert", "classification")
    regression = TaskTeacher("runs/t", adapt(build(tiny("bert")), Regression()))
    named = TaskTeacher("runs/t", adapt(build(tiny("bert")), Classification(classes=3, labels=("a", "b", "c"))))
    cases: list[tuple[TaskTeacher, dict[str, int], str]] = [
        (regression, {}, "runs/t: the teacher's head is 'regression', the task needs 'classification'"),
        (named, {}, "runs/t: the teacher's labels are a, b, c"),
        (teacher, {"slots": 4}, "prompt tuning cannot be distilled"),
        (teacher, {"length": 10_000}, "the teacher reads"),
    ]
    for model, options, message in cases:
        with pytest.raises(UsageError, match=message):
            model.check(student, TaskDistill(), **{"length": 8, **options})
    student, teacher = make_pair("bert", "dependency")
    with pytest.raises(UsageError, match="the head 'dependency' has no soft targets"):
        teacher.check(student, TaskDistill(), length=8)
    layers = TaskDistill(soft_weight=0, **LAYERS)
    teacher.check(student, layers, length=8)
    terms = teacher.attach(layers, student).loss(student, laid(student, sequences("dependency"), ROWS)).get_terms()
    assert [*terms] == ["task", "states", "embeddings", "attention"]
    generation = TaskTeacher("runs/t", adapt(build(tiny("t5")), Generation()))
    with pytest.raises(UsageError, match="too large to be cached"):
        generation.add_logits([sequences("generation")], TaskDistill(cache=True))
