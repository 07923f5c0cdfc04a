"""The files of every task: one line names the layout that is read, in the error and in `list tasks --missing`."""

import json
import re
from pathlib import Path

import pytest

from pretune.cli import main
from pretune.core.errors import DataError
from pretune.tasks import TASKS
from pretune.tasks.benchmarks.licences import COMPANION_FILES, TASKS_BY_LICENCE, UNKNOWN_LICENCE
from tests.conftest import Capture, run_command

PUBLISHED = [name for name in TASKS if not TASKS.get(name).has_own_paths]
UNSTATED = {
    "sst2", "rte", "cb", "record", "superglue_rte", "superglue_ax", "superglue_axb", "superglue_axg", "imdb", "sst5",
    "mr", "trec", "convai2", "convai2_choice", "cranfield",
}  # fmt: skip
"""Tasks whose publisher states no licence."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_line_of_a_task_is_the_layout_that_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    task = TASKS.get(name)
    line = task.describe_files()
    assert "\n" not in line and line.endswith(f"; licence: {task.licence}")
    for data in (None, tmp_path):
        assert task.find_available(data) == {}
        for split in task.splits:
            with pytest.raises(DataError) as error:
                task.find(split, data)
            assert str(error.value).endswith(f"expected: {line}") and str(error.value).startswith(f"task '{name}'")
    # Folders and files as the line names them: each alternative of a split is read from each folder.
    layout = line.partition(", plain or compressed")[0]
    folders, _, listed = layout.partition("/ with ")
    for number, folder in enumerate(folders.split("/ or ")):
        for split, paths in re.findall(r"(?:^|, )([^,()]+) \((\w+)\)", listed):
            for place, path in enumerate(split.split(" or ")):
                root = tmp_path / f"{number}-{paths}-{place}"
                file = root / "tasks" / folder / path.replace("**", "deep").replace("*", "some")
                file.parent.mkdir(parents=True)
                file.touch()
                assert task.find(paths, root).paths == (file,)
    assert {split for _, split in re.findall(r"(?:^|, )([^,()]+) \((\w+)\)", listed)} == {*task.splits}


def test_every_task_has_a_licence_or_is_known_to_have_none() -> None:
    assert {name for name in TASKS if TASKS.get(name).licence == UNKNOWN_LICENCE} == UNSTATED
    names = " ".join(TASKS_BY_LICENCE.values()).split()
    assert len(names) == len({*names}) and {*names, *COMPANION_FILES} <= {*TASKS}
    assert TASKS.get("cloze").licence == "Apache-2.0" and TASKS.get("cloze").has_own_paths


def test_missing_tasks_are_those_without_files(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    missing = json.loads(run_command(capsys, ["list", "tasks", "--missing", "--json"]).out)["tasks"]
    assert [*missing] == PUBLISHED
    assert all(row["files"] == TASKS.get(name).describe_files() for name, row in missing.items())
    assert "--missing" in run_command(capsys, ["list", "tasks"]).err
    monkeypatch.setenv("PRETUNE_DATA", str(tmp_path))
    (tmp_path / "tasks" / "CoLA").mkdir(parents=True)
    (tmp_path / "tasks" / "CoLA" / "dev.tsv.gz").touch()
    out, err = run_command(capsys, ["list", "tasks", "--missing"])
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == [name for name in PUBLISHED if name != "cola"]
    assert all(line.split(maxsplit=1)[1] == TASKS.get(line.split()[0]).describe_files() for line in lines)
    assert f"{len(lines)} of {len(TASKS)} tasks" in err
    for kind in ("families", ""):
        assert main(["list", *kind.split(), "--missing"]) == 2
        assert "pretune list tasks --missing" in capsys.readouterr().err
