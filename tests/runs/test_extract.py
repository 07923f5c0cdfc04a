"""Answers extracted from hits by a run with a span head."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import pretune as pt
from pretune.inference.index import Hit
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.inference import extract_answers, load_extractive_run
from tests.conftest import Capture, Patch, run_command
from tests.runs import tasked

PASSAGES = ["the old sea is grey", "a quiet house by the river", "the long road in winter"]
HITS = [Hit(f"p{number}", text, 1.0 - number / 10) for number, text in enumerate(PASSAGES)]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder fine-tuned on a few questions, some without an answer."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "tasks" / "squad2").mkdir(parents=True)
    for split, count in (("train-v2.0", 16), ("dev-v2.0", 8)):
        asked = [
            {"id": f"{i}", "question": "what is old?", "answers": [{"text": "sea", "answer_start": 8}] if i % 4 else []}
            for i in range(count)
        ]
        pages = [{"title": "t", "paragraphs": [{"context": PASSAGES[0], "qas": asked}]}]
        (folder / "tasks" / "squad2" / f"{split}.json").write_text(json.dumps({"version": "v2.0", "data": pages}))
    changes = {"data.max_length": 32, "data.stride": 8}
    base = tasked.make_base(folder)
    finetune(base, task="squad2", data=folder, out=folder / "run", steps=3, baselines="none", overrides=changes)
    set_threshold(folder / "run", 1e9)
    return folder / "run"


def set_threshold(run: Path, value: float) -> None:
    """Change above which no answer is given."""
    task = json.loads((run / "task.json").read_text())
    (run / "task.json").write_text(json.dumps({**task, "threshold": value}))


def test_the_best_span_of_all_hits(reader: Path) -> None:
    run = load_extractive_run(reader, device="cpu")
    assert run is not None
    (found,) = extract_answers(run, ["what is old?"], [HITS])
    alone = [extract_answers(run, ["what is old?"], [[hit]])[0] for hit in HITS]
    best = max(alone, key=lambda one: one.score or 0.0)
    assert found._replace(score=None) == best._replace(score=None)
    assert found.score == pytest.approx(
        best.score, abs=1e-6
    )  # rows of one text are shorter, so sums are rounded otherwise
    assert found.hit in HITS and found.span is not None and found.hit is not None
    assert found.hit.text[slice(*found.span)] == found.text
    said = run.predict([{"question": "what is old?", "context": hit.text} for hit in HITS])
    assert found.score == pytest.approx(max(-one["no_answer"] for one in said), abs=1e-5)
    both = extract_answers(run, ["what is old?", "who?"], [HITS, []])
    assert both[0] == found and both[1].text == "" and both[1].hit is None


def test_none_where_no_passage_has_one(reader: Path) -> None:
    run = load_extractive_run(reader, device="cpu")
    assert run is not None
    sceptical = replace(run, saved_task=replace(run.saved_task, threshold=-1e9), _predictor=None)
    (found,) = extract_answers(sceptical, ["what is old?"], [HITS])
    assert found == ("", None, None, None)


def test_other_models_are_not_extractive(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path)
    assert load_extractive_run(base) is None and load_extractive_run("hf:owner/name") is None
    table = tasked.classes(tmp_path / "own.csv", 40)
    run = finetune(base, train=table, out=tmp_path / "run", steps=1, baselines="none")
    assert load_extractive_run(run) is None


def test_from_the_shell(reader: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docs.txt").write_text("\n".join(PASSAGES))
    pt.index(reader.parent / "base", PASSAGES, out="library", ids=["a", "b", "c"])
    words = ["search", "library", "what is old?", "--bm25", "--answer", "--reader", str(reader), "--device", "cpu"]
    capsys.readouterr()
    (found,) = json.loads(run_command(capsys, [*words, "--quiet", "--json"]).out)
    assert found["id"] == "a" and found["answer"] and found["passage"][slice(*found["span"])] == found["answer"]
    assert run_command(capsys, [*words, "--quiet", "--csv"]).out.startswith("query,answer,score,id,passage\r\n")
    out, err = run_command(capsys, words)
    assert out == f"{found['answer']}\n" and "from a" in err
