"""`pretune embed`: files in, files out, and what is wrong with them in one line."""

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from tests.conftest import run_command
from tests.inference.readers import TEXTS, encoder


@pytest.fixture
def model(tmp_path: Path) -> str:
    pt.save(encoder(), tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def lines(tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return str(tmp_path / "texts.txt")


def test_an_array(model: str, lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "v.npy"
    assert main(["embed", model, "--input", lines, "--out", str(out), "--device", "cpu"]) == 0
    np.testing.assert_allclose(np.load(out), pt.embed(model, TEXTS), atol=1e-6)
    told = capsys.readouterr()
    assert told.out.startswith(f"{out}: 8 vectors") and "32" in told.out
    assert "1 empty" in told.err and "next: pretune index" in told.err


def test_formats_agree(model: str, lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    options = ["--pooling", "cls", "--layer", "1", "--normalise", "--device", "cpu", "--json", "--quiet"]
    for name in ("v.npy", "v.jsonl", "v.parquet"):
        assert main(["embed", model, "--input", lines, "--out", str(tmp_path / name), *options]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["texts"] == 8 and facts["width"] == 32 and facts["empty"] == 1 and facts["cut"] == 0
    expected = np.load(tmp_path / "v.npy")
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == list(TEXTS) and rows[2]["id"] == "3"
    np.testing.assert_allclose([row["vector"] for row in rows], expected, rtol=1e-6)
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table["text"].to_pylist() == list(TEXTS)
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), expected)


def test_other_inputs(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, and compressed JSONL with a field of another name."""
    out = str(tmp_path / "v.npy")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\r\n\r\nthe dog")))
    assert main(["embed", model, "--input", "-", "--out", out, "--device", "cpu"]) == 0
    np.testing.assert_allclose(np.load(out), pt.embed(model, ["the cat", "", "the dog"]), atol=1e-6)
    rows = b"".join(json.dumps({"body": text, "id": i}).encode() + b"\n" for i, text in enumerate(TEXTS))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(rows))
    arguments = ["--input", str(tmp_path / "t.jsonl.gz"), "--field", "body", "--out", out, "--device", "cpu"]
    assert main(["embed", model, *arguments]) == 0
    np.testing.assert_allclose(np.load(out), pt.embed(model, TEXTS), atol=1e-6)


def test_a_table(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its header is no text, nor are its other columns; what follows reads the same column."""
    table, out = tmp_path / "t.csv", str(tmp_path / "v.npy")
    table.write_text('id,note\n7,the cat\n8,"the dog, too"\n')
    arguments = ["embed", model, "--input", str(table), "--out", out, "--device", "cpu"]
    error = run_command(capsys, arguments, code=3).err
    assert all(part in error for part in ("t.csv", "'text'", "id, note", "--field")), error
    assert main([*arguments, "--field", "note"]) == 0
    np.testing.assert_allclose(np.load(out), pt.embed(model, ["the cat", "the dog, too"]), atol=1e-6)
    assert f"--input {table} --field note --out " in capsys.readouterr().err
    table.write_text("text\nthe cat\nthe dog, too\n")  # one column: no comma divides it
    assert main(arguments) == 0 and len(np.load(out)) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--input", "empty.txt", "--out", "v.npy"], 3, ["empty.txt: no texts"]),
        (["--input", "absent.txt", "--out", "v.npy"], 3, ["absent.txt"]),
        (["--input", ".", "--out", "v.npy"], 3, [".: a folder"]),
        (["--input", "texts.txt", "--out", "v.csv"], 2, [".npy, .parquet, .jsonl"]),
        (["--input", "texts.txt", "--out", "v.npy", "--layer", "9"], 2, ["layer", "got 9"]),
        (["--input", "texts.txt", "--out", "no/where/v.npy"], 2, ["'no/where'"]),
        (["--input", "numbers.jsonl", "--out", "v.npy"], 3, ["numbers.jsonl:1: field 'text'"]),
    ],
)
def test_one_line_of_what_is_wrong(
    model: str,
    lines: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("")
    Path("numbers.jsonl").write_text('{"text": 3}\n')
    assert main(["embed", model, *arguments, "--device", "cpu", "--quiet"]) == code
    told = capsys.readouterr().err
    assert all(word in told for word in words) and told.count("\n") == 1


def test_a_blank_cell_keeps_its_place(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": null}\n{"id": 3}\n')
    (tmp_path / "a.csv").write_text('text\na\n""\n ""\n')
    for name in ("a.jsonl", "a.csv"):
        out = tmp_path / f"{name}.npy"
        assert main(["embed", model, f"--input={tmp_path / name}", f"--out={out}", "--device=cpu", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["texts"] == len(np.load(out)) == 3
