"""Runs that do not learn: warnings in log, summary, card and report; early stopping with exact resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.runs.data_phases import compute_unigram_loss
from pretune.runs.samples import SampleHook
from pretune.training.checkpoints.manager import open_if_intact
from pretune.training.run_logger import read_metrics
from pretune.training.validation import LearningCheck
from tests.runs.small import FAST, Prepared, shrunk

CHANGES = {
    **shrunk("gpt2-small"), **FAST, "data.max_length": 32, "train.schedule": {"kind": "constant"}, "train.clip": None,
    "train.eval_every": 4, "train.checkpoint_every": 8, "train.samples_every": 0,
}  # fmt: skip


def run(data: Path, out: Path, lr: float, steps: int = 24, **options: Any) -> Any:
    overrides = {**CHANGES, "train.lr": lr, **options.pop("overrides", {})}
    return pt.pretrain("gpt2-small", data=data, steps=steps, out=out, overrides=overrides, device="cpu", **options)


def check(losses: list[float], unigram: float | None = 5.0, warmup: float = 0.1) -> list[tuple[int, str]]:
    """Return the steps and kinds of the warnings of a run with an evaluation every 10 steps."""
    learning, found = LearningCheck(compute_unigram_loss=lambda: unigram, warmup=warmup), []
    total = 10 * (len(losses) - 1)
    for number, loss in enumerate(losses):
        texts = learning.record(10 * number, {"loss": loss, "perplexity": float(np.exp(loss))}, total)
        found += [(10 * number, "unigram" if "unigram" in text else "rising") for text in texts]
    return found


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([9, 6, 5.5, 4.9, 4, 3, 3, 3, 3, 3], []),  # above the unigram loss only at the start
        ([9, 6, 5.5, 5.5, 5.5, 5.5, 5.5, 5.5, 5.5, 5.5], [(30, "unigram")]),  # once
        ([9, 4, 3, 7, 7, 7, 7, 7, 7, 7], [(30, "unigram"), (50, "rising")]),
        ([9, 4, 3, 3.1, 3.2, 3.3, 3.4, 3.3, 3.2, 3.1], [(50, "rising")]),
        ([9, 4, 3, 3.001, 3.002, 3.001, 3.002, 3.003, 3.002, 3.001], []),  # a plateau
        ([9, 4, 3, 3.1, 3.2, 2.9, 2.8, 2.9, 2.95, 2.7], []),
        ([9, 4, 3, float("nan"), float("nan"), float("nan")], [(30, "unigram"), (40, "rising")]),
        ([9, 9], []),  # too few steps to say anything
    ],
)
def test_signs_of_a_run_that_does_not_learn(losses: list[float], expected: list[tuple[int, str]]) -> None:
    assert check(losses) == expected


def test_a_long_warmup_and_objectives_without_a_unigram_loss() -> None:
    assert check([9, 6, 5.5, 5.5, 5.5, 4, 3], warmup=50) == []
    assert check([9, 6, 5.5, 5.5, 5.5, 5.5, 5.5], unigram=None) == []


@pytest.mark.parametrize(("loss", "kinds"), [(5.1, ["unigram"]), (4.3, ["plateau"]), (4.2, [])])
def test_a_run_that_ends_on_the_plateau(loss: float, kinds: list[str]) -> None:
    """Hardly below the unigram loss at the end of a run is a warning, before it is not."""
    learning = LearningCheck(compute_unigram_loss=lambda: 5.0, plateau_hint="read on")
    metrics = {"loss": loss + 1.0, "perplexity": float(np.exp(loss))}  # of two terms
    assert not any("hardly" in text for text in learning.record(90, metrics, 100))
    warnings = learning.find_warnings(90, 100, trained_steps=100)
    assert [*warnings] == kinds and ("read on" in str(warnings)) == (kinds == ["plateau"])
    assert learning.find_unigram_loss(90) == 5.0
    assert learning.find_unigram_loss(80) is None  # not evaluated
    learning.record(100, {"loss": loss}, 100)
    assert learning.find_unigram_loss(100) is None  # an objective that predicts no tokens


@pytest.mark.parametrize(
    ("losses", "total", "is_rate"),
    [
        ([9, 8, 7.5], 22, False),  # few steps
        ([9, 8, 8], 22, False),
        ([9, 8, 9.5], 22, True),  # rising: the rate is too high, even after few steps
        ([9, 8, float("nan")], 22, True),
        ([9, 7, 6, 5.5], 9000, False),  # still falling
        ([9, 5.5, 5.5, 5.5], 9000, True),
    ],
)
def test_advice_fits_the_cause(losses: list[float], total: int, is_rate: bool) -> None:
    learning = LearningCheck(compute_unigram_loss=lambda: 5.0, hint="RATE")
    steps = [round(total * number / (len(losses) - 1)) for number in range(len(losses))]
    for step, loss in zip(steps, losses, strict=True):
        learning.record(step, {"loss": loss, "perplexity": float(np.exp(loss))}, total)
    warning = learning.find_warnings(total, total, trained_steps=total)["unigram"]
    assert ("RATE" in warning) == is_rate and ("train longer" in warning) != is_rate
    assert (f"{total} steps are few" in warning) == (total == 22 and not is_rate)


def test_the_unigram_loss_by_hand() -> None:
    train, targets = np.array([0, 5, 2, 0]), np.array([2, 3, 1, 0])
    # A quarter (counts plus one: 6, 3, 1 of 10) of what the special token 0 leaves: two thirds of the targets.
    expected = -(2 * np.log(2 / 6) + 3 * np.log(4 / 6 * 0.6) + np.log(4 / 6 * 0.3)) / 6
    assert compute_unigram_loss(train, targets, [0]) == pytest.approx(expected)
    assert compute_unigram_loss(train, np.zeros(4, dtype=np.int64), [0]) is None


@pytest.mark.slow
def test_a_run_that_diverges_warns_everywhere_and_a_good_one_nowhere(
    prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = prepared("bpe", "endoftext")
    bad = run(data, tmp_path / "bad", lr=3.0)
    err = capsys.readouterr().err
    assert "unigram model" in err and "lower train.lr (now 3)" in err
    warnings = bad.summary["warnings"]
    assert any("unigram model" in text for text in warnings)
    assert "unigram model" in (tmp_path / "bad" / "README.md").read_text()
    pt.report([tmp_path / "bad"], out=tmp_path / "report.html")
    assert "unigram model" in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    good = run(data, tmp_path / "good", lr=2e-2, steps=96)
    err = capsys.readouterr().err
    assert good.summary["warnings"] == [] and "unigram model" not in err and "unigram loss" in err
    card = (tmp_path / "good" / "README.md").read_text()
    assert "| warning |" not in card and f"| unigram loss | {good.summary['unigram_loss']:.4g} |" in card
    assert good.loss < 0.85 * good.summary["unigram_loss"] == 0.85 * bad.summary["unigram_loss"]


def test_stop_early_ends_at_the_best_and_resumes_bit_for_bit(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that rises in the middle of the run: the loss falls, then rises."""
    data = prepared("bpe", "endoftext")
    rising = {"train.schedule": {"kind": "slanted", "cut": 0.99, "ratio": 1000.0}}

    def start(out: str, **options: Any) -> Any:
        return run(data, tmp_path / out, lr=1.0, steps=120, stop_early=True, overrides=rising, **options)

    first = start("a")
    lines = [line for line in read_metrics(first.path) if "held_out" in line]
    losses = {line["step"]: line["held_out"]["loss"] for line in lines}
    best = min(losses, key=lambda step: losses[step])
    assert first.summary["steps"] == best + 12 < 120 and first.summary["best_step"] == best
    assert first.loss == losses[best] and not any("risen" in text for text in first.summary["warnings"])
    assert f"weights of step {best}" in (first.path / "README.md").read_text()
    stored = load_file(max((first.path / "checkpoints").iterdir()) / "best.safetensors")
    model = dict(pt.load(first.path).named_parameters())
    assert stored and all(torch.equal(model[name].detach(), tensor) for name, tensor in stored.items())
    with monkeypatch.context() as patch:  # a bug, after the best step and a checkpoint
        patch.setattr(SampleHook, "__call__", lambda self, loop, reports: 1 / (loop.state.step - best - 10))
        with pytest.raises(ZeroDivisionError):
            start("b")
    again = run(data, tmp_path / "b", lr=1.0, steps=120, resume=True, stop_early=True, overrides=rising)
    assert (first.path / "model.safetensors").read_bytes() == (again.path / "model.safetensors").read_bytes()
    assert again.loss == first.loss and again.summary["steps"] == first.summary["steps"]


def test_a_checkpoint_has_the_loss_of_its_own_step(prepared: Prepared, tmp_path: Path) -> None:
    changes = {"train.eval_every": 4, "train.checkpoint_every": 3, "train.max_checkpoints": 9}
    run(prepared("bpe", "endoftext"), tmp_path / "run", lr=1e-3, steps=12, overrides=changes)
    losses = {line["step"]: line["held_out"]["loss"] for line in read_metrics(tmp_path / "run") if "held_out" in line}
    checkpoints = [open_if_intact(folder) for folder in (tmp_path / "run/checkpoints").iterdir()]
    scores = {checkpoint.step: checkpoint.score for checkpoint in checkpoints if checkpoint is not None}
    assert sorted(losses) == [0, 4, 8, 12] and sorted(scores) == [0, 3, 6, 9, 12]
    assert scores == {step: losses.get(step) for step in scores}


def test_stop_early_needs_evaluations(prepared: Prepared, tmp_path: Path) -> None:
    data = prepared("bpe", "endoftext")
    with pytest.raises(UsageError, match=r"train\.eval_every"):
        pt.pretrain("gpt2-small", data=data, budget=5.0, out=tmp_path / "a", stop_early=True, device="cpu")
    with pytest.raises(UsageError, match="--holdout"):
        run(data, tmp_path / "b", lr=1e-3, stop_early=True, overrides={"train.eval_tokens": 0})
    run(data, tmp_path / "c", lr=1e-3, steps=2)
    (tmp_path / "c" / "cost.json").unlink()
    with pytest.raises(CheckpointError, match=r"train\.patience was None"):
        pt.pretrain(out=tmp_path / "c", resume=True, stop_early=True, device="cpu")
