"""Trained parts of each strategy; the rest does not change."""

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import MultiTask, adapt
from pretune.adaptation.freeze import (
    Decay,
    Epochs,
    FirstFrozen,
    FreezeStrategy,
    Frozen,
    Full,
    Gradual,
    LastOnly,
    Plateau,
    UnfreezingHook,
    freeze,
)
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Classification
from pretune.adaptation.heads.token import Tagging
from pretune.adaptation.peft.lora import LoRA
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.errors import UsageError
from pretune.nn.lstm import BiLSTM
from pretune.training.optim import build_parameter_groups, split_parts
from tests.contracts.tiny import CASES
from tests.training.test_loop import looped, run, weights


def list_trained_parts(strategy: FreezeStrategy, case: str = "bert-base") -> list[str]:
    model = pt.build(CASES[case])
    names = set(freeze(model, strategy))
    parts = split_parts(model)
    assert all(names.issuperset(part_names) or names.isdisjoint(part_names) for part_names in parts.values())
    return [part for part, part_names in parts.items() if names.issuperset(part_names)]


def test_what_each_strategy_trains() -> None:
    every = ["embeddings", "encoder.0", "encoder.1", "heads"]
    assert list_trained_parts(Full()) == every
    assert list_trained_parts(Frozen()) == ["heads"]
    assert list_trained_parts(FirstFrozen(layers=0)) == every[1:]
    assert list_trained_parts(FirstFrozen(layers=1)) == every[2:]
    assert list_trained_parts(FirstFrozen(layers=2)) == ["heads"]
    assert list_trained_parts(LastOnly()) == ["encoder.1", "heads"]
    assert list_trained_parts(LastOnly(layers=5)) == every[1:]
    assert list_trained_parts(FirstFrozen(layers=3), "bart-base") == [
        "decoder.1"
    ]  # its head is the token table and a buffer
    with pytest.raises(UsageError, match=r"\b2\b.*\b3\b"):
        list_trained_parts(FirstFrozen(layers=3))
    with pytest.raises(UsageError):
        list_trained_parts(Frozen(), "gpt2-small")  # its head is the token table


@pytest.mark.parametrize(
    "head",
    [
        Classification(classes=2, scalar_mix=Mixing(lstm=BiLSTM(hidden=4, depth=2))),
        Tagging(classes=2, scalar_mix=Mixing(lstm=BiLSTM(hidden=4))),
        MultiTask((Classification(classes=2), Tagging(classes=3))),
    ],
)
def test_a_head_is_one_part_whatever_it_is_made_of(head: TaskHead) -> None:
    model = adapt(pt.build(CASES["bert-base"]), head)
    assert model.head is not None
    assert list(split_parts(model)) == ["embeddings", "model.encoder.0", "model.encoder.1", "heads"]
    assert set(freeze(model, Frozen())) == {f"head.{name}" for name, _ in model.head.named_parameters()}


def test_a_method_and_a_strategy_combine() -> None:
    model = pt.build(CASES["bert-base"])
    LoRA(targets=("q",)).apply(model)
    assert freeze(model, LastOnly()) == ("encoder.1.attention.q.a", "encoder.1.attention.q.b")
    assert [group.lr_factor for group in build_parameter_groups(model, lr_factor=Decay(factor=0.5))] == [0.5]


def test_layerwise_rates() -> None:
    groups = build_parameter_groups(pt.build(CASES["bert-base"]), lr_factor=Decay(factor=0.5))
    assert {group.part: group.lr_factor for group in groups} == {
        "embeddings": 0.125,
        "encoder.0": 0.25,
        "encoder.1": 0.5,
        "heads": 1.0,
    }
    for wrong in (0.0, 1.5):
        with pytest.raises(UsageError, match="factor"):
            Decay(factor=wrong)


def test_parts_are_opened_from_above_epoch_after_epoch() -> None:
    loop = looped()
    parts = split_parts(loop.module.model)
    start, changes = weights(loop), {}
    unfreezing = Gradual(when=Epochs(every=1.0)).build_hook(loop.module.model, epoch=2)

    def watch(loop: object, reports: object) -> None:
        current = weights(loop)  # type: ignore[arg-type]
        step = loop.state.step  # type: ignore[attr-defined]
        changes[step] = [p for p, names in parts.items() if any(not torch.equal(current[n], start[n]) for n in names)]

    loop.hooks = [unfreezing, watch]
    run(loop, 7)
    order = list(parts)
    assert order == ["embeddings", "decoder.0", "decoder.1"]
    assert changes[1] == changes[2] == order[2:]
    assert changes[3] == changes[4] == order[1:]
    assert changes[5] == changes[7] == order


@pytest.mark.parametrize(("steps", "opened"), [(8, [0, 1, 1, 2, 2, 2, 2, 2]), (2, [1, 2])])
def test_all_parts_are_open_in_the_second_half_where_nobody_says_when(steps: int, opened: list[int]) -> None:
    loop = looped()
    unfreezing = Gradual().build_hook(loop.module.model, epoch=1000, steps=steps)
    assert len(unfreezing.parts) == 3
    counts = []
    for step in range(1, steps + 1):
        loop.state.step = step
        unfreezing(loop, [])
        counts.append(unfreezing.num_unfrozen)
    assert counts == opened


def test_parts_are_opened_on_a_plateau() -> None:
    loop = looped()
    unfreezing = Gradual(when=Plateau(patience=2)).build_hook(loop.module.model, epoch=10)
    counts = []
    for step, best in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (5, 3), (6, 3), (7, 3), (8, 3), (9, 3)]:
        loop.state.last_eval_step, loop.state.best_step = step, best
        unfreezing(loop, [])
        counts.append(unfreezing.num_unfrozen)
    assert counts == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_what_a_method_froze_stays_frozen() -> None:
    model = pt.build(CASES["bert-base"])
    names = LoRA().apply(model)
    unfreezing = UnfreezingHook(model, Gradual(), 1.0)
    assert all(name.startswith("encoder.1.") for name, p in model.named_parameters() if p.requires_grad)
    unfreezing.num_unfrozen = 1
    unfreezing.update_requires_grad()
    assert tuple(name for name, p in model.named_parameters() if p.requires_grad) == names
