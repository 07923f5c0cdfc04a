"""The directory of a run: whether it is free, and how its run is resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.run_dir import MovedPath, RunDir, describe_paths, get_path, locate_paths


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


# Paths in run.json: found again from anywhere, or reported with all places; hostile records are refused.


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of the run `project/runs/first`, started in `project`."""
    (tmp_path / "project/runs/first").mkdir(parents=True)
    (tmp_path / "project/data").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    settings = {"data": {"path": "data"}, "train": {"init_from": "hf:owner/name"}}
    return {**settings, "paths": describe_paths(settings, "runs/first")}


def test_only_files_and_directories_are_described(tree: dict[str, Any], tmp_path: Path) -> None:
    record = {"relative": "../../data", "absolute": str(tmp_path / "project/data")}
    assert tree["paths"] == {"data.path": record}


def test_a_path_that_is_where_it_was_stays_as_typed(tree: dict[str, Any]) -> None:
    located = locate_paths(tree, "runs/first")
    assert (located.tree, located.moved, located.missing) == (tree, {}, {})


def test_a_run_behind_a_link(tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("project/runs/first")
    (tmp_path / "project").rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("moved/runs/first")
    monkeypatch.chdir(tmp_path)
    assert locate_paths(tree, "link").moved == {"data.path": MovedPath(str(tmp_path / "moved/data"), "data")}


def test_another_directory_of_the_same_name_is_not_taken(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    located = locate_paths(tree, tmp_path / "project/runs/first")
    assert get_path(located.tree, "data.path") == str(tmp_path / "project/data")


def test_a_missing_path_is_an_error_unless_it_is_replaced_or_optional(tree: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "project/data").rmdir()
    located = locate_paths(tree, "runs/first")
    assert get_path(located.tree, "data.path") == "data"
    with pytest.raises(DataError, match=str(tmp_path / "project/data")):
        located.check(tree)
    located.check(tree, optional=("data.path",))
    located.check({"data": {"path": "new"}})


@pytest.mark.parametrize(
    "record", [3, [], {"data.path": 3}, {"data.path": {"relative": 1, "absolute": "/"}}, {"data.path": {}}]
)
def test_invalid_records(tree: dict[str, Any], record: Any) -> None:
    with pytest.raises(CheckpointError, match="paths"):
        locate_paths({**tree, "paths": record}, "runs/first")


@pytest.mark.parametrize("place", ["x" * 5000, "a\0b", "", "y/" * 4000])
def test_impossible_names_are_missing(tree: dict[str, Any], tmp_path: Path, place: str) -> None:
    (tmp_path / "project/data").rmdir()
    record = {"data.path": {"relative": place + "x", "absolute": place}}
    with pytest.raises(DataError):
        locate_paths({**tree, "paths": record}, "runs/first").check(tree)
