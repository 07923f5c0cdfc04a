"""The directory of a run: whether it is free, and how its run is resumed."""

import json
from pathlib import Path

import pytest

from pretune.core.errors import CheckpointError, UsageError
from pretune.core.run_dir import RunDir


@pytest.mark.parametrize("files", [[], ["slurm.out", "train.log", ".hidden"], ["run.json", "metrics.jsonl"]])
def test_a_directory_without_a_run_is_free(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    RunDir(tmp_path).check_free()
    RunDir(tmp_path / "new").check_free()


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["thesis.tex"], r"other files \(thesis\.tex\)"),
        (["a", "b", "c", "d"], r"other files \(a, b, c, …\)"),
        (["run.json", "config.json"], "a model"),
        (["run.json", "task.json"], "a run"),
        (["run.json", "checkpoints/step-00000005/state.json"], "a run"),
        (["run.json", "trials/labels-all-lr-1e-05-seed-0/checkpoints/step-00000005/state.json"], "a run"),
    ],
)
def test_a_directory_that_holds_something_is_not(tmp_path: Path, files: list[str], problem: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=problem):
        RunDir(tmp_path).check_free()


def test_a_run_is_finished_when_its_cost_is_known(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert not run_dir.is_finished
    run_dir.write_cost({"steps": 3, "cost": {"seconds": 1.0}})
    assert run_dir.is_finished
    assert json.loads(run_dir.cost.read_text()) == {"seconds": 1.0, "run": {"steps": 3}}


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with pytest.raises(CheckpointError, match="no run to resume"):
        run_dir.read_settings()
    run_dir.write_settings({"train": {"lr": 1.0}})
    assert run_dir.read_settings()["train"] == {"lr": 1.0}


def test_the_command_that_resumes_can_be_pasted(tmp_path: Path) -> None:
    assert RunDir(Path("my runs/a")).build_resume_command("pretrain") == "pretune pretrain --out 'my runs/a' --resume"
