"""Runs with averaged weights: what is evaluated, saved and resumed is the average, in pre-training and fine-tuning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.runs import pretrain_run
from pretune.runs.finetune import trial
from pretune.runs.finetune.entry import finetune
from pretune.runs.samples import SampleHook
from pretune.training.checkpoints.manager import collect_weights
from pretune.training.loop import DivergenceGuard, Loop
from pretune.training.run_logger import read_metrics
from tests.conftest import Capture, Patch
from tests.runs.small import FAST, Prepared, shrunk

STEPS, TRIGGERED = 10, 4
SGD = {"kind": "asgd", "lr": 0.5, "weight_decay": 0.0, "nonmonotone_interval": 2}
CHANGES = {
    **shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.optimizer": SGD,
    "train.schedule": {"kind": "constant"},
    "train.eval_every": 1, "train.checkpoint_every": 3,
}  # fmt: skip
Passed = dict[int, dict[str, torch.Tensor]]


def mean(passed: Passed, step: int, name: str) -> torch.Tensor:
    """The average by its definition: from the second step after the trigger on."""
    return torch.stack([passed[number][name] for number in range(TRIGGERED + 2, step + 1)]).mean(0)


@pytest.fixture
def losses(monkeypatch: Patch) -> None:
    """Validation losses that fall until the step of the trigger; perplexities are those of the model."""
    real = pretrain_run.build_evaluator

    def evaluator(*given: Any, **options: Any) -> Callable[[Loop], dict[str, float] | None]:
        work = real(*given, **options)

        def evaluate(loop: Loop) -> dict[str, float] | None:
            found, step = work(loop), loop.state.step
            return None if found is None else {**found, "loss": 20.0 - step if step < TRIGGERED else 30.0 - step}

        return evaluate

    monkeypatch.setattr(pretrain_run, "build_evaluator", evaluator)


@pytest.fixture
def passed(monkeypatch: Patch) -> Passed:
    """The weights that a run passes, by the number of steps."""
    found: Passed = {}

    def record(self: DivergenceGuard, loop: Loop, reports: Any) -> None:
        found[loop.state.step] = {name: w.detach().clone() for name, w in collect_weights(loop.module.model).items()}

    monkeypatch.setattr(DivergenceGuard, "__call__", record)
    return found


def run(data: Path, out: Path, **wishes: Any) -> Any:
    return pt.pretrain(
        "bert-tiny", data=data, objective="masked", steps=STEPS, out=out, overrides=CHANGES, device="cpu", **wishes
    )


def same(one: Path, other: Path) -> None:
    for name in ("model", "optimizer", "trigger"):
        for step in (9, STEPS):
            file = f"checkpoints/step-{step:08}/{name}.safetensors"
            assert (one / file).read_bytes() == (other / file).read_bytes()
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    told = [[line.get("held_out") for line in read_metrics(path)] for path in (one, other)]
    assert told[0] == told[1]


def test_the_average_is_what_is_evaluated_and_saved(
    prepared: Prepared, tmp_path: Path, losses: None, passed: Passed, capsys: Capture
) -> None:
    data, out = prepared(), tmp_path / "a"
    summary = run(data, out).summary
    events = [line for line in read_metrics(out) if "event" in line]
    assert events == [{"step": TRIGGERED, "event": "averaging"}]
    assert f"step {TRIGGERED}: " in capsys.readouterr().err
    model = collect_weights(pt.load(out))
    for name, tensor in model.items():
        torch.testing.assert_close(tensor.detach(), mean(passed, STEPS, name), rtol=1e-5, atol=1e-6)
    for step in (9, STEPS):
        folder = out / f"checkpoints/step-{step:08}"
        stored, state = load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")
        for name in (key.removesuffix(".average") for key in state if key.endswith(".average")):
            torch.testing.assert_close(stored[name], mean(passed, step, name), rtol=1e-5, atol=1e-6)
            assert torch.equal(state[f"{name}.average"], passed[step][name])
    assert any(not torch.equal(model[name], passed[STEPS][name]) for name in model)
    # A run of no steps from the averaged weights has their validation loss.
    again = pt.pretrain(
        data=data, objective="masked", steps=1, out=tmp_path / "b", device="cpu", init_from=out,
        overrides={key: value for key, value in CHANGES.items() if not key.startswith("model.")},
    )  # fmt: skip
    first = next(line["held_out"] for line in read_metrics(again.path) if "held_out" in line)
    assert summary["held_out"]["perplexity"] == pytest.approx(first["perplexity"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [TRIGGERED + 1, TRIGGERED + 4])
def test_a_resumed_run_is_the_same_bit_for_bit(
    prepared: Prepared, tmp_path: Path, losses: None, monkeypatch: Patch, fault: int
) -> None:
    """From a checkpoint before the trigger, and from one after it."""
    data = prepared()
    run(data, tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(
            SampleHook, "__call__", lambda self, loop, reports: 1 / (loop.state.step - fault)
        )  # a bug, at a step
        with pytest.raises(ZeroDivisionError):
            run(data, tmp_path / "b")
    run(data, tmp_path / "b", resume=True)
    same(tmp_path / "a", tmp_path / "b")


def test_too_few_evaluations_are_warned_of(prepared: Prepared, tmp_path: Path, capsys: Capture) -> None:
    changes = {**CHANGES, "train.eval_every": 5}
    pt.pretrain("bert-tiny", data=prepared(), objective="masked", steps=6, out=tmp_path / "a", overrides=changes)
    assert "nonmonotone_interval" in capsys.readouterr().err


def test_in_finetuning_the_best_is_an_average(
    base: Path, table: Path, tmp_path: Path, passed: Passed, monkeypatch: Patch
) -> None:
    """Dev has the higher score at the end: the model of the run is the average there."""
    scores, real = [0.1, 0.2, 0.3, 0.0, *[0.4] * 5, 0.9], trial.compute_scores
    monkeypatch.setattr(
        trial, "compute_scores", lambda *given: dict.fromkeys(real(*given), scores.pop(0) if scores else 0.5)
    )
    changes = {"train.optimizer": {**SGD, "lr": 0.05}, "train.eval_every": 1, "train.schedule": {"kind": "constant"}}
    out = tmp_path / "run"
    found = finetune(base, train=table, out=out, steps=STEPS, baselines="none", overrides=changes, device="cpu")
    assert found.scores["trials"][0]["best_step"] == STEPS and not scores
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines() if '"event"' in line]
    assert events == [{"step": TRIGGERED, "event": "averaging"}]
    best = load_file(max((out / "checkpoints").iterdir()) / "best.safetensors")
    for name, tensor in best.items():
        torch.testing.assert_close(tensor, mean(passed, STEPS, name), rtol=1e-5, atol=1e-6)
    model = collect_weights(found.load())
    assert best and all(torch.equal(model[name].detach(), tensor) for name, tensor in best.items())
