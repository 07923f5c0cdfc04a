"""Fine-tuning on chats: baselines of the model before, samples, and a run that chats."""

import json
from pathlib import Path

import pytest

import pretune as pt
from pretune.core.errors import DataError
from pretune.core.run_dir import RunDir
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.untuned import UntunedModel
from tests.conftest import Capture
from tests.inference.speakers import speaker
from tests.text.chat_templates import TEMPLATES, chat


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder without a chat template, and chats."""
    folder = tmp_path_factory.mktemp("chats")
    pt.save(speaker("llama-7b", "bpe", "endoftext"), folder / "base")
    rows = [{"messages": chat(f"Say {word}", word)} for word in ("cat", "dog", "boat", "sea", "sun", "tree")] * 4
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_run(method: str, base: Path, tmp_path: Path) -> None:
    out, overrides = tmp_path / "run", {"data.max_new_tokens": 6, "data.max_length": 96}
    run = pt.finetune(
        base / "base", train=base / "chats.jsonl", out=out, method=method, steps=12, lr=1e-2, overrides=overrides
    )
    scores = json.loads(RunDir(out).scores.read_text())
    assert scores["kind"] == "instruction" and "type instruction" in " ".join(scores["notes"])
    rows = {row["name"]: row for row in scores["baselines"]}
    assert {*rows} == {"first_words", "untuned", "few_shot"}
    assert scores["result"]["scores"]["loss"] < rows["untuned"]["scores"]["loss"], "training helps"
    assert {*scores["result"]["scores"]} == {"rouge_l", "exact_match", "loss", "perplexity"}
    assert {*scores["samples"][0]} == {"input", "gold", "before", "after"}
    assert scores["counts"]["cut"] == 0
    assert (out / "chat_template.jinja").read_text() == TEMPLATES["default"]
    (answer,) = run.predict([{"messages": chat("Say cat")}])
    again = FinetunedRun.open(out).predict(["Say cat"])[0]
    assert again == answer
    said = pt.chat(pt.load(out), "Say cat", temperature=0, max_new_tokens=7).strip()
    assert said == answer["text"]
    page = pt.report([out], out=tmp_path / "report.html")
    assert "before and after fine-tuning" in Path(page).read_text()


def test_cut_chats_are_told(base: Path, tmp_path: Path, capsys: Capture) -> None:
    overrides = {"data.max_new_tokens": 2, "data.max_length": 30}
    pt.finetune(
        base / "base", train=base / "chats.jsonl", out=tmp_path / "run", steps=1, baselines="none", overrides=overrides
    )
    assert "chats are cut at data.max_length (30)" in capsys.readouterr().err
    scores = json.loads(RunDir(tmp_path / "run").scores.read_text())
    assert scores["counts"]["cut"] > 0 and scores["baselines"] == [] and "samples" not in scores


def test_a_baseline_that_fails_does_not_end_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: UntunedModel, train: object) -> None:
        raise DataError("no answer fits")

    monkeypatch.setattr(UntunedModel, "answer", fail)
    options = {"data.max_new_tokens": 2, "data.max_length": 96}
    pt.finetune(
        base / "base", train=base / "chats.jsonl", out=tmp_path / "run", steps=1, baselines="untuned", overrides=options
    )
    scores = json.loads(RunDir(tmp_path / "run").scores.read_text())
    assert scores["baselines"] == [] and scores["not_run"]["untuned"] == "no answer fits"
