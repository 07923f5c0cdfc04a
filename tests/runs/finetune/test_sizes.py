"""Numbers of training examples: those a run used are written, and too few are refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import DataError
from pretune.reports.facts import build_finetuning_rows
from pretune.runs.finetune.trial import TrialOutlook
from tests.conftest import Capture, run_command
from tests.runs import tasked


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.classes(tmp_path_factory.mktemp("table") / "own.csv", 100)


def run(base: Path, train: Path, out: Path, **wishes: Any) -> dict[str, Any]:
    return pt.finetune(base, train=train, out=out, steps=1, baselines="none", **wishes).scores


@pytest.mark.parametrize(
    "wish",
    [
        {"train_examples": (20,)},
        {"overrides": {"task.train_examples": 20}},
        {"overrides": {"task.max_examples_per_task": 20}},
    ],
)
def test_what_is_written_is_what_was_used(base: Path, table: Path, tmp_path: Path, wish: Any, capsys: Capture) -> None:
    scores = run(base, table, tmp_path / "run", **wish)
    assert scores["examples"] == {"train": 20, "dev": 10, "test": 10}
    assert scores["pool"] == {"train": 80, "dev": 10, "test": 10}
    assert re.search("20 of 80.*bad 10.*good 10", capsys.readouterr().err)
    assert "20 of 80" in (tmp_path / "run" / "README.md").read_text()
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["examples"]["train"] == 20
    page = tmp_path / "report.html"
    assert main(["--quiet", "report", str(tmp_path / "run"), f"--out={page}"]) == 0
    assert "20 of 80" in page.read_text()


def test_the_largest_number_of_a_curve_counts(base: Path, table: Path, tmp_path: Path) -> None:
    scores = run(base, table, tmp_path / "run", train_examples=(10, 30), overrides={"task.max_eval_examples": 6})
    assert scores["examples"] == {"train": 30, "dev": 6, "test": 6}
    assert scores["pool"] == {"train": 80, "dev": 10, "test": 10}
    before = {name: value for name, value in scores.items() if name != "pool"}  # as runs were written before
    tree = json.loads((tmp_path / "run" / "run.json").read_text())
    assert re.findall(r"\d+", dict(build_finetuning_rows(tree, before))["examples"]) == ["30", "6", "6"]


def test_a_dry_run_states_what_is_used(base: Path, table: Path, capsys: Capture) -> None:
    given = ["--quiet", "finetune", str(base), f"--train={table}", "--train-examples=20", "--dry-run"]
    assert main(given) == 0 and "20 of 80" in capsys.readouterr().out
    found = json.loads(run_command(capsys, [*given, "--json"]).out)["forecast"]
    assert (found["examples"]["train"], found["pool"]["train"]) == (20, 80)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["--train-examples=4"], ["--train-examples=4,all"], ["--set", "task.train_examples=4"]]
)
def test_fewer_than_a_handful_is_refused(base: Path, table: Path, tmp_path: Path, more: list[str]) -> None:
    given = ["--quiet", "finetune", str(base), f"--train={table}", "--steps=1", "--baselines=none", *more]
    out = f"--out={tmp_path / 'run'}"
    assert main([*given, out]) == 3 and not (tmp_path / "run").exists()
    assert main([*given, "--dry-run"]) == 3
    assert main([*given, out, "--force"]) == 0
    assert main(["--quiet", "finetune", out, "--resume"]) == 0
    five = [word.replace("=4", "=5") for word in given]
    assert main([*five, f"--out={tmp_path / 'five'}"]) == 0


def test_a_class_without_examples_is_refused(base: Path, tmp_path: Path) -> None:
    rows = [(f"the {word} sea {at}", word) for at in range(10) for word in tasked.WORDS[:8]]
    table = tasked.table(tmp_path / "own.csv", ("text", "label"), rows)
    with pytest.raises(DataError, match=r"\b2\b.*\b8\b") as fault:
        run(base, table, tmp_path / "run", train_examples=(6,))
    assert "--force" in str(fault.value)
    assert run(base, table, tmp_path / "run", train_examples=(6,), force=True)["examples"]["train"] == 6
    assert run(base, table, tmp_path / "more", train_examples=(8,))["examples"]["train"] == 8


@pytest.mark.parametrize("counts", ["10,all", "10", "all"])
def test_two_statements_of_the_examples_are_refused(base: Path, table: Path, tmp_path: Path, counts: str) -> None:
    given = [
        "--quiet",
        "finetune",
        str(base),
        f"--train={table}",
        "--set",
        "task.train_examples=20",
        f"--train-examples={counts}",
    ]
    assert main([*given, f"--out={tmp_path / 'run'}"]) == 2 and not (tmp_path / "run").exists()
    assert main([*given, "--dry-run"]) == 2
    given[-1] = "--train-examples=20"
    assert main([*given, "--dry-run"]) == 0


def test_text_that_the_vocabulary_does_not_have_is_warned_of(base: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = [("这部电影很好看" if at % 2 else "这部电影不好看", "ab"[at % 2]) for at in range(40)]
    table = tasked.table(tmp_path / "own.csv", ("text", "label"), rows)
    scores = run(base, table, tmp_path / "run")
    warning = "unknown"
    assert capsys.readouterr().err.count(warning) == 1
    assert any(warning in note for note in scores["notes"]) and warning in (tmp_path / "run" / "README.md").read_text()
    assert warning in run_command(capsys, ["--quiet", "finetune", str(base), f"--train={table}", "--dry-run"]).out


def test_known_text_is_not_warned_of(base: Path, table: Path, tmp_path: Path) -> None:
    assert not any("unknown" in note for note in run(base, table, tmp_path / "run")["notes"])


def test_the_time_left_counts_evaluation_and_baselines(base: Path, table: Path, tmp_path: Path) -> None:
    found: list[TrialOutlook] = []

    class Watched(TrialOutlook):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pretune.runs.finetune.trial.TrialOutlook", Watched)
        pt.finetune(base, train=table, out=tmp_path / "run", steps=4, seeds=2, baselines="majority,svm")
    first, second = found
    assert (first.remaining_trials, second.remaining_trials) == (1, 0) and first.baseline_seconds > 0
    assert first.final_examples == 20 and first.predictions >= first.final_examples and first.get_elapsed() > 0
    assert (
        first.estimate_remaining(1.0, 4) > first.baseline_seconds + 4.0
    )  # the second trial's four steps of a second, too
    assert second.estimate_remaining(1.0, 0) > second.estimate_remaining(1.0, 4) > second.baseline_seconds
