"""`pretune quickstart`, stopped: what is there is not gone on with, and that is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretune.cli import main
from pretune.core.errors import UserInterruptError
from tests.conftest import Capture, Patch


@pytest.mark.parametrize("stop", [KeyboardInterrupt, UserInterruptError("go on with --resume")])
def test_ctrl_c_says_what_to_do(stop: Any, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def work(out: Path, **wishes: Any) -> None:
        if wishes["budget"] == "2m":
            (out / "texts").mkdir(parents=True)
        raise stop

    monkeypatch.setattr("pretune.runs.quickstart.quickstart", work)
    out = tmp_path / "q"
    for budget, exists in (("1m", False), ("2m", True)):
        assert main(["quickstart", f"--budget={budget}", f"--out={out}"]) == 130
        said = capsys.readouterr().err
        assert said.startswith("pretune: interrupted") and "--resume" not in said
        assert (str(out) in said) == ("--out" in said) == exists
        assert said.count("\n") == 1


def test_csv_has_a_record_for_each_row(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    row = {"method": "LoRA", "labels": 200, "mean": 0.5, "low": None, "high": None, "seeds": [{"seed": 0}]}
    results = {"rows": [row], "story": ["It is a tie."], "use": ["pretune list"]}
    work = lambda out, **options: SimpleNamespace(results=results, page=out / "report.html")  # noqa: E731
    monkeypatch.setattr("pretune.runs.quickstart.quickstart", work)
    assert main(["--quiet", "quickstart", f"--out={tmp_path / 'q'}", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["method,labels,mean,low,high,seeds", "LoRA,200,0.5,,,1"]
    assert main(["quickstart", f"--out={tmp_path / 'q'}", "--csv", "--json"]) == 2
