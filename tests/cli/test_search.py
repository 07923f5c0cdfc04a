"""`pretune index` and `pretune search` from the shell."""

import json
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from tests.conftest import run_command
from tests.inference.readers import TEXTS, decoder, encoder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pt.save(encoder(), "model")
    rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS[:6])]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("more.txt").write_text("bank of the river\n")
    assert main(["index", "model", "--input", "docs.jsonl", "--out", "library", "--device", "cpu", "--quiet"]) == 0
    return tmp_path


def test_hits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    told = run_command(capsys, ["search", "library", "the dog runs", "-k", "2", "--device", "cpu"])
    lines = told.out.splitlines()
    assert len(lines) == 2 and lines[0].split() == ["1", "1.0000", "d2", "the", "dog", "runs"]
    (found,) = json.loads(run_command(capsys, ["search", "library", "rivers", "--bm25", "--json", "--quiet"]).out)
    assert [hit["id"] for hit in found["hits"]] == ["d5"]
    told = run_command(capsys, ["search", "library", "zzz", "--bm25"])
    assert told.out == "" and "warning: " in told.err


def test_additions_and_scores(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["index", "model", "--input", "more.txt", "--out", "library", "--add", "--device", "cpu", "--json"]) == 0
    )
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{\n") :])["texts"] == 7
    Path("queries.jsonl").write_text(
        '{"id": "q1", "text": "the dog runs"}\n{"id": "q2", "text": "bank of the river"}\n'
    )
    Path("qrels.txt").write_text("query-id corpus-id score\nq1 d2 1\nq2 7 2\nq2 d4 1\n")
    options = ["--queries", "queries.jsonl", "--qrels", "qrels.txt", "--device", "cpu", "--quiet"]
    found = json.loads(run_command(capsys, ["search", "library", *options, "--json"]).out)
    assert found["index"]["mrr"] == 1.0 and found["bm25"]["mrr"] == 1.0 and found["index"]["queries"] == 2
    assert "nDCG@10" in run_command(capsys, ["search", "library", *options]).out


def test_prompts_before_texts_and_queries(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["--prompt", "a bird ", "--query-prompt", "the river "]
    assert main(["index", "model", "--input", "docs.jsonl", "--out", "asked", *prompts, "--quiet"]) == 0
    capsys.readouterr()
    (found,) = json.loads(run_command(capsys, ["search", "asked", "the dog runs", "-k", "1", "--json", "--quiet"]).out)
    documents = pt.embed("model", [f"a bird {text}" for text in TEXTS[:6]])
    (query,) = pt.embed("model", ["the river the dog runs"])
    cosines = documents @ query / np.linalg.norm(documents, axis=1) / np.linalg.norm(query)
    assert found["hits"][0]["score"] == pytest.approx(float(cosines.max()), abs=1e-5)


def test_answers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = decoder()
    reader = pt.build("gpt2", seed=1, width=32, depth=1, heads=4, hidden=48, vocab=small.spec.vocab, positions=600)
    reader.assets = small.assets
    pt.save(reader, "reader")
    capsys.readouterr()
    options = ["--answer", "--reader", "reader", "-k", "1", "--max-new-tokens", "3", "--device", "cpu", "--quiet"]
    (found,) = json.loads(run_command(capsys, ["search", "library", "the dog runs", *options, "--json"]).out)
    assert found["read"] == ["d2"] and "[1] the dog runs" in found["prompt"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["search", "library"], 2, ["--queries"]),
        (["search", "library", " "], 2, ["query"]),
        (["search", "library", "x", "--answer"], 2, ["--reader"]),
        (["search", "library", "x", "-k", "0"], 2, ["k must", "got 0"]),
        (["search", "model", "x"], 4, ["model"]),
        (["search", "library", "x", "--model", "reader"], 4, ["reader"]),
        (["search", "library", "--queries", "more.txt", "--qrels", "bad.txt"], 3, ["bad.txt:1: "]),
        (["index", "model", "--input", "empty.txt", "--out", "i"], 3, ["empty.txt"]),
        (["index", "model", "--input", "docs.jsonl", "--out", "library"], 2, ["library"]),
        (["index", "model", "--input", "docs.jsonl", "--out", "library", "--add"], 3, ["d0"]),
    ],
)
def test_one_line_of_what_is_wrong(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: list[str]
) -> None:
    Path("empty.txt").write_text("")
    Path("bad.txt").write_text("only two\n")
    capsys.readouterr()
    assert main([*arguments, "--device", "cpu", "--quiet"]) == code
    told = capsys.readouterr().err
    assert all(word in told for word in words) and told.count("\n") == 1
