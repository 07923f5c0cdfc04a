"""The trainer: a run of phases, evaluated, saved, locked, stopped early and resumed with the same weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune.core.errors import CheckpointError, StoppedError, UsageError
from pretune.core.run_dir import RunDir
from pretune.core.types import Batch
from pretune.objectives import build_objective
from pretune.training.clock import TrainingClock
from pretune.training.config import LinearSchedule, TrainConfig
from pretune.training.cost import build_flops_counter
from pretune.training.distributed import Ranks
from pretune.training.loop import GracefulShutdown, Loop
from pretune.training.optim import AdamW
from pretune.training.run_logger import read_metrics
from pretune.training.step import StepMetrics
from pretune.training.trainer import RunOutput, RunProcess, TrainedModel, Trainer, TrainingBatches, TrainingPhase
from pretune.training.validation import EarlyStopping, Evaluation
from tests.contracts.tiny import tiny
from tests.training.test_loop import causal_batch, sequences

STEPS = 6


class Stream:
    """Batches by step; keeps the steps that were asked for."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.steps: list[int] = []

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        self.steps.append(step)
        return causal_batch(sequences(self.first + step))


def build(out: Path, streams: Sequence[Stream] | None = None, **options: Any) -> Trainer:
    model = pt.build(tiny("gpt2"), seed=1)
    streams = streams or [Stream()]
    ends = tuple((number + 1) / len(streams) for number in range(len(streams)))
    output = {"fingerprints": {"config": "a"}, **options.pop("output", {})}
    return Trainer(
        trained=TrainedModel(
            model=model,
            objective=build_objective("causal"),
            spec=model.spec,
            count_flops=build_flops_counter(model.spec),
        ),
        batches=TrainingBatches(
            phases=[TrainingPhase(batches=stream, length=8 * (i + 1)) for i, stream in enumerate(streams)]
        ),
        clock=TrainingClock(schedule=LinearSchedule(warmup=0.5), steps=STEPS, phase_ends=ends),
        config=TrainConfig(lr=1e-2, optimizer=AdamW(lr=1e-2), log_every=1, checkpoint_every=2),
        output=RunOutput(run_dir=RunDir(out), settings={}, **output),
        process=RunProcess(Ranks(torch.device("cpu")), GracefulShutdown("resume")),
        **options,
    )


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.trained.model.named_parameters()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def stopping(step: int) -> Any:
    """A hook that asks the run to stop after a step, as a signal does."""

    def hook(loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if loop.state.step == step:
            loop.stop_signal = 15

    return hook


@pytest.fixture
def straight(tmp_path: Path) -> dict[str, Tensor]:
    with build(tmp_path / "straight") as trainer:
        trainer.fit(resume=False)
        return weights(trainer)


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path, straight: dict[str, Tensor]) -> None:
    out, stream = tmp_path / "run", Stream()
    with pytest.raises(StoppedError, match="step 3"), build(out, hooks=[stopping(3)]) as trainer:
        trainer.fit(resume=False)
    with build(out, [stream]) as trainer:
        assert trainer.fit(resume=True).step == STEPS
        assert equal(weights(trainer), straight)
    assert stream.steps == [3, 4, 5]
    assert [line["step"] for line in read_metrics(out)] == [*range(1, STEPS + 1)]


def test_a_phase_reads_its_own_first_batch(tmp_path: Path) -> None:
    streams = [Stream(), Stream(first=100)]
    with build(tmp_path, streams) as trainer:
        state = trainer.fit(resume=False)
    assert state.phases == [0, 3] and [stream.steps for stream in streams] == [[0, 1, 2]] * 2
    assert [line["length"] for line in read_metrics(tmp_path) if line.get("event") == "length"] == [16]


def test_a_phase_is_resumed_in_its_middle(tmp_path: Path) -> None:
    with build(tmp_path / "straight", [Stream(), Stream(first=100)]) as trainer:
        trainer.fit(resume=False)
        straight = weights(trainer)
    out, streams = tmp_path / "run", [Stream(), Stream(first=100)]
    with pytest.raises(StoppedError), build(out, [Stream(), Stream(first=100)], hooks=[stopping(4)]) as trainer:
        trainer.fit(resume=False)
    with build(out, streams) as trainer:
        trainer.fit(resume=True)
        assert equal(weights(trainer), straight)
    assert [stream.steps for stream in streams] == [[], [1, 2]]


def test_the_directory_is_locked_until_the_results_are_written(tmp_path: Path) -> None:
    with build(tmp_path / "run") as trainer:
        trainer.fit(resume=False)
        with pytest.raises(UsageError, match="in use"), build(tmp_path / "run") as other:
            other.fit(resume=True)
    with build(tmp_path / "run") as other:
        assert other.fit(resume=True).step == STEPS


def test_a_new_run_does_not_replace_another(tmp_path: Path, straight: dict[str, Tensor]) -> None:
    with pytest.raises(UsageError, match="already holds a run"), build(tmp_path / "straight") as trainer:
        trainer.fit(resume=False)


def test_a_run_without_checkpoints_starts_again(tmp_path: Path) -> None:
    with build(tmp_path / "run") as trainer:
        assert trainer.fit(resume=True).step == STEPS


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path, straight: dict[str, Tensor]) -> None:
    other = build(tmp_path / "straight", output={"fingerprints": {"config": "b"}})
    with pytest.raises(CheckpointError, match="another run"), other as trainer:
        trainer.fit(resume=True)


def test_a_new_run_starts_once(tmp_path: Path) -> None:
    started: list[int] = []
    output = {"write_settings": lambda: started.append(1)}
    with pytest.raises(StoppedError), build(tmp_path, hooks=[stopping(2)], output=output) as first:
        first.fit(resume=False)
    with build(tmp_path, output={"write_settings": lambda: started.append(2)}) as second:
        second.fit(resume=True)
    assert started == [1]


@pytest.mark.parametrize(("at_start", "steps"), [(True, [0, 2, 4, 6]), (False, [2, 4, 6])])
def test_the_lowest_loss_is_the_best(tmp_path: Path, at_start: bool, steps: list[int]) -> None:
    losses = {0: 3.0, 2: 1.0, 4: 1.0, 6: 2.0}
    seen: list[int] = []

    def evaluate(loop: Loop) -> dict[str, float]:
        seen.append(loop.state.step)
        return {"loss": losses[loop.state.step]}

    evaluation = Evaluation(evaluate=evaluate, every=2, compute_loss=lambda found: found["loss"], at_start=at_start)
    with build(tmp_path, evaluation=evaluation) as trainer:
        state = trainer.fit(resume=False)
        assert trainer.summarize()["held_out"] == {"loss": 2.0}
    assert seen == steps and (state.best, state.best_step) == (1.0, 2)


def test_early_stopping_ends_the_run_with_its_best_weights(tmp_path: Path) -> None:
    scores, passed = [0.2, 0.9, 0.5, 0.4, 0.3, 0.2], dict[int, dict[str, Tensor]]()

    def evaluate(loop: Loop) -> dict[str, float]:
        passed[loop.state.step] = {name: p.detach().clone() for name, p in loop.module.model.named_parameters()}
        return {"score": scores[loop.state.step - 1]}

    trainer = build(tmp_path)
    trainer.evaluation = Evaluation(
        evaluate=evaluate,
        every=1,
        compute_loss=lambda found: -found["score"],
        at_start=False,
        early_stopping=EarlyStopping(tensors=dict(trainer.trained.model.named_parameters()), patience=2),
    )
    with trainer:
        state = trainer.fit(resume=False)
        assert state.step == 4 and (state.best, state.best_step) == (-0.9, 2)
        assert equal(weights(trainer), passed[2]) and not equal(passed[2], passed[4])
