"""`pretune report` from the shell."""

import json
from pathlib import Path

import pytest

from pretune.cli import main
from tests.conftest import run_command
from tests.reports import report_files as files


def test_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    files.pretrained(Path("runs/books"))
    files.tuned(Path("runs/films"))
    Path("pages").mkdir()
    assert main(["report", "runs/books", "runs/films", "--out", "pages/report.html", "--title", "Films & co"]) == 0
    told = capsys.readouterr()
    assert told.out == "pages/report.html\n" and "pages/report.html" in told.err
    page = Path("pages/report.html").read_text()
    assert "<h1>Films &amp; co</h1>" in page
    assert "pretune report runs/books runs/films --out pages/report.html" in page
    told = run_command(capsys, ["report", "runs/books", "--json", "--quiet"])
    assert told.err == "" and json.loads(told.out) == {
        "report": "report.html",
        "bytes": Path("report.html").stat().st_size,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "'RUN'"),
        (["nowhere"], 2, "nowhere: "),
        (["empty"], 2, "`pretune pretrain`"),
        (["half"], 4, "half/run.json: "),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("half").mkdir()
    Path("half/run.json").write_text('{"model":')
    assert main(["report", *arguments]) == code
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and words in told.err


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "pretune report runs/" in run_command(capsys, ["report", "--help"]).out
