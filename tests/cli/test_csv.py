"""`--csv`: every command that prints a table, as RFC 4180 has it."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.cli._output import print_csv
from pretune.cli.finetune import _list_records
from pretune.models import catalog
from pretune.tasks import TASKS
from tests.conftest import run_command
from tests.inference.readers import TEXTS, encoder
from tests.reports import report_files as files

Read = Callable[..., list[dict[str, str]]]


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Read:
    """Run a command and return its records."""

    def run(*words: object) -> list[dict[str, str]]:
        capsys.readouterr()
        out = run_command(capsys, [*map(str, words), "--csv"]).out
        assert out.endswith("\r\n") and out.count("\r\n") >= 2
        return list(csv.DictReader(io.StringIO(out, newline=""), strict=True))

    return run


def test_fields_are_quoted_where_they_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(("a", "b"), [('say "x"', "1,5"), ("two\nlines", None)])
    assert capsys.readouterr().out == 'a,b\r\n"say ""x""","1,5"\r\n"two\nlines",\r\n'


@pytest.mark.slow
def test_lists(read: Read) -> None:
    assert [row["name"] for row in read("list", "sizes")] == catalog.list_names()
    assert [row["name"] for row in read("list", "tasks")] == TASKS.list_names()
    assert {row["shapes"] for row in read("list", "objectives")}
    assert {row["kind"] for row in read("list")} >= {"families", "tasks"}
    assert all(row["about"] for row in read("list", "metrics"))


def test_show_has_all_numbers(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read("show", "bert-tiny")
    facts = json.loads(run_command(capsys, ["show", "bert-tiny", "--json"]).out)
    found = {(row["table"], row["row"], row["name"]): row["value"] for row in rows}
    assert found["params", "", "total"] == str(facts["params"]["total"])
    assert found["memory", "training", "total"] == str(facts["memory"]["training"]["total"])
    assert {row["row"] for row in rows if row["table"] == "devices"} == {*facts["devices"]}


def test_env(read: Read) -> None:
    assert {"pretune", "python"} <= {row["name"] for row in read("env")}


def test_scores_of_a_run(tmp_path: Path) -> None:
    scores = json.loads((files.tuned(tmp_path / "films") / "scores.json").read_text())
    run, svm = _list_records(scores)
    assert run[0] == "run" and run[3] == 0.9 and svm[0] == "svm" and svm[-1] == 0.01


def test_hits_words_and_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.chdir(tmp_path)
    pt.save(encoder(), "model")
    Path("docs.txt").write_text("\n".join(TEXTS[:6]))
    assert main(["index", "model", "--input", "docs.txt", "--out", "library", "--device", "cpu", "--quiet"]) == 0
    first, second = read("search", "library", "the dog runs", "-k", 2, "--device", "cpu", "--quiet")
    assert (first["query"], first["rank"], first["text"]) == ("the dog runs", "1", "the dog runs") and second["id"]
    words = read("fill", "model", "the [MASK] runs", "--top", 3, "--device", "cpu", "--quiet")
    assert [(row["blank"], row["rank"]) for row in words] == [("1", "1"), ("1", "2"), ("1", "3")]
    given = ("neighbors", "model", "dog", "--in", "the dog runs", "--corpus", "docs.txt", "-k", 2, "--device", "cpu")
    near = read(*given, "--quiet")
    assert {row["kind"] for row in near} == {"context", "static"} and all(row["score"] for row in near)
    Path("pairs.txt").write_text("the dog runs\ndog the runs\n")
    (score,) = read("evaluate", "model", "--task", "minimal_pairs", "--data", "pairs.txt", "--device", "cpu", "--quiet")
    assert (score["task"], score["score"], score["part"]) == ("minimal_pairs", "accuracy", "")


@pytest.mark.parametrize("words", [("list", "sizes"), ("show", "bert-tiny"), ("env",)])
def test_one_format_at_a_time(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--csv" in run_command(capsys, [*words, "--json", "--csv"], code=2).err
