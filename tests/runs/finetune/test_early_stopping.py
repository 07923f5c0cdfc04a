"""Choices on dev: training ends when the official metric has not risen for a while, and the best weights are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.runs.finetune import trial
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.training.validation import EarlyStopping

RISING = [0.2, 0.9, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
LATER = [0.2, 0.3, 0.4, 0.9, 0.5, 0.4, 0.3, 0.2]
NORM = {"mode": "mean", "norm": {"kind": "batch_norm"}}
"""Pooling with running statistics, which must be those of the best weights, too."""


@pytest.mark.parametrize(("patience", "ends"), [(1, 3), (2, 4), (3, 5), (None, None)])
def test_it_ends_when_nothing_better_comes(patience: int | None, ends: int | None) -> None:
    weight = torch.zeros(1)
    judging = EarlyStopping(tensors={"w": weight}, patience=patience)
    over: list[int] = []
    for step, score in enumerate(RISING, start=1):
        weight.fill_(step)
        judging.record(step, score)
        over += [step] if judging.should_stop() else []
    assert over[:1] == ([] if ends is None else [ends])
    assert judging.best_step == 2 and judging.evaluations_since_best == 6
    assert not judging.should_stop() or patience is not None
    judging.restore_best_weights()
    assert weight.item() == 2


def test_of_equal_scores_the_first_is_the_best() -> None:
    weight = torch.zeros(1)
    judging = EarlyStopping(tensors={"w": weight}, patience=2)
    for step in (1, 2, 3):
        weight.fill_(step)
        judging.record(step, 0.5)
    judging.restore_best_weights()
    assert judging.best_step == weight.item() == 1 and judging.should_stop()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What dev says by the official metric, evaluation after evaluation; every other number says the opposite."""
    told: list[float] = []
    real = trial.compute_scores

    def scored(*given: Any) -> dict[str, float]:
        score = told.pop(0) if told else 0.5
        return {name: 1 - score if number else score for number, name in enumerate(real(*given))}

    monkeypatch.setattr(trial, "compute_scores", scored)
    return told


def learnt(base: Path, table: Path, out: Path, **changes: Any) -> tuple[FinetunedRun, dict[str, Any]]:
    usual = {"train.eval_every": 1, "train.schedule": {"kind": "constant"}, "train.log_every": 50, "tune.pooling": NORM}
    more = {name.replace("_", ".", 1): value for name, value in changes.items()}
    run = finetune(base, train=table, out=out, steps=8, lr=1e-3, baselines="none", overrides={**usual, **more})
    return run, run.scores["trials"][0]


@pytest.mark.slow
def test_a_run_ends_early_and_keeps_its_best(base: Path, table: Path, tmp_path: Path, said: list[float]) -> None:
    said[:] = RISING
    early, found = learnt(base, table, tmp_path / "early", train_patience=2)
    assert (found["steps"], found["best_step"]) == (4, 2)
    assert [point["dev"] for point in found["course"]] == RISING[:4]
    said[:] = RISING
    whole, found = learnt(base, table, tmp_path / "whole")
    assert (found["steps"], found["best_step"]) == (8, 2)
    said[:] = LATER
    later, found = learnt(base, table, tmp_path / "later")
    assert (found["steps"], found["best_step"]) == (8, 4)
    kept = [(run.path / "model.safetensors").read_bytes() for run in (early, whole, later)]
    assert kept[0] == kept[1] != kept[2]  # the weights of the best step, whenever it ended


def test_of_several_seeds_the_best_on_dev_is_the_run(
    base: Path, table: Path, tmp_path: Path, said: list[float]
) -> None:
    said[:] = [score for score in (0.3, 0.8, 0.5) for _ in range(3)]  # judged once, then dev and test
    run = finetune(base, train=table, out=tmp_path / "run", steps=1, seeds=3, lr=1e-3, baselines="none")
    assert [len(one["course"]) for one in run.scores["trials"]] == [1, 1, 1] and not said
    assert run.scores["model"]["seed"] == 1 and run.scores["result"]["each"] == [0.3, 0.8, 0.5]
    told = {path.parent.name: path.read_bytes() for path in run.path.glob("trials/*/predictions.jsonl")}
    same = [name for name, text in told.items() if text == (run.path / "predictions.jsonl").read_bytes()]
    assert len(told) == 3 and same == ["labels-all-lr-0.001-seed-1"]
    lines = [json.loads(line) for line in (run.path / "predictions.jsonl").read_text().splitlines()]
    for line, one in zip(lines, run.predict([line["input"] for line in lines]), strict=True):
        assert line["probabilities"] == pytest.approx(one["probabilities"], abs=1e-5)
