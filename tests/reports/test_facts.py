"""Facts of runs as rows: the table of scores has no column without a value."""

import json
from pathlib import Path
from typing import Any

from pretune.reports.facts import build_score_table
from pretune.reports.load import read_run
from pretune.reports.scores import render_scores
from tests.reports import report_files

ONE_SEED = {"split": "test", "examples": 6, "score": 0.9, "std": None, "low": None, "high": None, "seeds": [0]}


def read_scores(folder: Path, **changes: Any) -> dict[str, Any]:
    return json.loads((report_files.tuned(folder, **changes) / "scores.json").read_text())


def test_a_table_of_scores_has_an_interval_only_with_several_seeds(tmp_path: Path) -> None:
    header, run, baseline = build_score_table(read_scores(tmp_path / "several"))
    assert header == ("", "score", "interval", "better by", "p") and "2 seeds" in run[2] and baseline[2] == ""
    header, run, baseline = build_score_table(read_scores(tmp_path / "single", result=ONE_SEED))
    assert header == ("", "score", "better by", "p") and run[1:] == ("0.9000", "", "") and baseline[-1] == "0.01"
    header, run = build_score_table(read_scores(tmp_path / "alone", result=ONE_SEED, baselines=[]))
    assert header == ("", "score") and len(run) == 2


def test_a_report_has_an_interval_over_seeds_only_with_several(tmp_path: Path) -> None:
    several = read_run(report_files.tuned(tmp_path / "several"))
    single = read_run(report_files.tuned(tmp_path / "single", result=ONE_SEED))
    assert "CI over seeds" in render_scores([several])
    assert "CI over seeds" not in render_scores([single])
    both = render_scores([several, single])
    assert "CI over seeds" in both and "1 seed" in both
