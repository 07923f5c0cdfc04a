"""Ids of inputs: the same in the output, whatever their type and spelling; numbers where there is none."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pretune.cli import main
from tests.cli import world
from tests.conftest import Capture, run_command

TEXTS = ["a lovely sea.", "the dreadful wind.", "an old house by the river."]
BASE = "my runs/base"


def write(path: Path, ids: list[Any], name: str = "id") -> str:
    """Write JSON lines; an id of `...` is left out."""
    rows = [{**({} if value is ... else {name: value}), "text": text} for value, text in zip(ids, TEXTS, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("ids", "name", "read"),
    [
        (["a", "b", "c"], "id", ["a", "b", "c"]),
        ([7, 8, 9], "ID", ["7", "8", "9"]),
        (["x", None, ...], "id", ["x", None, None]),
        (["x", "x", "x"], "id", ["x", "x", "x"]),
        ([..., ..., ...], "id", [None, None, None]),
    ],
)
def test_ids_of_predictions_and_vectors(
    ids: list[Any], name: str, read: list[str | None], workshop: Path, tmp_path: Path, capsys: Capture
) -> None:
    inputs, out = write(tmp_path / "in.jsonl", ids, name), tmp_path / "out.jsonl"
    with world.inside(workshop):
        assert main(["--quiet", "predict", "my runs/tuned", "--input", inputs]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["id"] for line in lines] == [value or str(number) for number, value in enumerate(read)]
        assert main(["--quiet", "embed", BASE, "--input", inputs, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == [value or str(number) for number, value in enumerate(read, 1)]
    assert [row["text"] for row in rows] == TEXTS


def test_ids_of_json_on_standard_input(workshop: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"id": value, "text": text}) for value, text in zip([None, 5, "z"], TEXTS, strict=True)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    with world.inside(workshop):
        assert main(["--quiet", "predict", "my runs/tuned", "--input", "-"]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["0", "5", "z"]


@pytest.mark.parametrize("value", [True, ["a"], {"a": 1}])
def test_ids_that_are_no_names(value: Any, workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    inputs = write(tmp_path / "in.jsonl", ["a", value, "c"])
    with world.inside(workshop):
        for words in (
            ["predict", "my runs/tuned", "--input", inputs],
            ["embed", BASE, "--input", inputs, "--out", str(tmp_path / "o.jsonl")],
        ):
            assert "in.jsonl:2: 'id'" in run_command(capsys, ["--quiet", *words], code=3).err


def test_ids_of_an_index_that_look_like_numbers_of_rows(workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    inputs, out = write(tmp_path / "in.jsonl", ["1", "2", "3"]), str(tmp_path / "index")
    with world.inside(workshop):
        words = ["--quiet", "index", BASE, "--input", inputs, "--out", out]
        assert main(words) == 0
        capsys.readouterr()
        assert main([*words, "--add"]) == 3, "the ids are there already, and are not replaced by others"
        assert "'1'" in capsys.readouterr().err
        (tmp_path / "more.txt").write_text("the sea\n")
        assert main(["--quiet", "index", BASE, "--input", str(tmp_path / "more.txt"), "--out", out, "--add"]) == 0
        capsys.readouterr()
        assert main(["--quiet", "search", out, "the sea", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert sorted(hit["id"] for hit in result["hits"]) == ["1", "2", "3", "4"] and "query_id" not in result


def test_ids_of_queries(workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    queries = write(tmp_path / "queries.jsonl", ["q1", 2, "q3"])
    with world.inside(workshop):
        words = ["--quiet", "search", "my index", "--queries", queries, "-k", "1"]
        results = json.loads(run_command(capsys, [*words, "--json"]).out)
        assert [result["query_id"] for result in results] == ["q1", "2", "q3"]
        assert [result["query"] for result in results] == TEXTS
        assert main([*words, "--csv"]) == 0
        rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
        assert [(row["query_id"], row["id"]) for row in rows] == [("q1", "d0"), ("2", "d1"), ("q3", "d2")]
        write(Path(queries), ["q1", "q1", "q3"])
        assert "'q1'" in run_command(capsys, [*words, "--json"], code=3).err
