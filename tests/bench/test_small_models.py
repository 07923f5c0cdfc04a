"""bench/quality/small_models.py: from a run to the directory that is shipped."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.analysis.held_out import find_data, iterate_runs
from pretune.core.errors import CheckpointError
from pretune.core.hub import INSTALLED_MODELS
from pretune.models.compact import COMPACT_FILE
from pretune.reports.load import RunRecord, load_directory
from pretune.runs.finetune.defaults import find_brief_rate
from pretune.runs.finetune.forgetting import find_objective
from tests.bench.test_guard import load
from tests.runs.small import FAST, make, shrunk

SCORES = {
    "Fine-tuning": [{"task": "SST-2", "accuracy": 0.871}, {"task": "CoLA", "matthews": 0.2}],
    "Held-out text": {"bits per byte": 1.21},
    "Note": "Measured on one GPU.",
}
RUNS = {
    "small-encoder": ("modernbert-base", "wordpiece", "cls-sep"),
    "small-decoder": ("qwen3-0.6b", "bpe", "endoftext"),
}
Write = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind, of a few steps."""
    folders = {}
    for name, (family, kind, style) in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        data, out = make(folder, kind, style), folder / "run"
        overrides = {**FAST, **shrunk(family), "train.eval_every": 2}
        pt.pretrain(family, data=data, steps=4, overrides=overrides, out=out, device="cpu")
        folders[name] = out
    return folders


@pytest.fixture
def script() -> ModuleType:
    return load("small_models")


@pytest.fixture
def write(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Write:
    """Run the script and return what it prints."""

    def run_script(run: Path, name: str, *options: object) -> dict[str, Any]:
        words = [run, "--name", name, "--out", tmp_path / "shipped" / name, *options]
        monkeypatch.setattr(sys, "argv", ["small_models.py", *map(str, words)])
        script.main()
        facts: dict[str, Any] = json.loads(capsys.readouterr().out)
        return facts

    return run_script


@pytest.mark.parametrize("name", [*RUNS])
def test_a_run_becomes_a_small_directory(name: str, runs: dict[str, Path], tmp_path: Path, write: Write) -> None:
    (tmp_path / "scores.json").write_text(json.dumps(SCORES))
    command = f"pretune pretrain encoder --text {tmp_path}/corpora/wikipedia-en --budget 20m"
    facts = write(runs[name], name, "--scores", tmp_path / "scores.json", "--command", command)
    out = tmp_path / "shipped" / name
    assert facts["bytes"] == sum(path.stat().st_size for path in out.iterdir()) == sum(facts["files"].values())
    assert 0 <= facts["divergence"] < 0.01 and facts["same_token"] > 0.9
    assert facts["brief_rate"] == find_brief_rate(runs[name]) > 0
    assert "SHA-256" in pt.verify(out)[0]
    card = (out / "README.md").read_text()
    parts = (
        "| SST-2 | 0.871 |",
        "bits per byte",
        "Measured on one GPU.",
        "--text wikipedia-en --budget 20m",
        "| step |",
    )
    assert [part for part in (*parts, "CC BY-SA 3.0", "CC BY 2.5", "CC BY 4.0") if part not in card] == []
    texts = [path.read_text() for path in out.iterdir() if path.suffix in (".json", ".jsonl", ".md")]
    assert not any(str(tmp_path) in text or str(runs[name].parent) in text for text in texts)
    run = json.loads((out / "run.json").read_text())
    assert run["data"]["path"] == f"{name}-data" and "paths" not in run and run["train"]["lr"] > 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "held_out" in line] == [0, 2, 4]
    assert all({"held_out", "loss"} & {*line} for line in lines)


@pytest.mark.parametrize("name", [*RUNS])
def test_a_compact_export_gives_the_same_files(
    name: str, runs: dict[str, Path], tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes back from another machine: the export, and three files of the run beside it."""
    folder = tmp_path / "back"
    pt.export(runs[name], to="compact", out=folder)
    for file in ("run.json", "cost.json", "metrics.jsonl"):
        shutil.copy(runs[name] / file, folder)
    write(runs[name], name)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "shipped" / name).iterdir()}
    facts = write(folder, name)  # over the first
    assert {path.name: path.read_bytes() for path in (tmp_path / "shipped" / name).iterdir()} == expected
    assert "divergence" not in facts and COMPACT_FILE in expected
    model, other = pt.load(folder), pt.load(tmp_path / "shipped" / name)
    batch = model.tokenizer(["the old sea"])
    with torch.no_grad():
        assert torch.equal(model(batch).logits, other(batch).logits)


def test_what_may_not_be_shipped(
    script: ModuleType, runs: dict[str, Path], tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(runs["small-encoder"], run)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="bytes, but the package allows"):
        patch.setattr(script, "MAX_BYTES", 1000)
        write(run, "small-encoder")
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-3] ^= 1
    (run / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="SHA-256"):
        write(run, "small-encoder")
    pt.export(runs["small-encoder"], to="compact", out=tmp_path / "other")
    script.check_weights(runs["small-encoder"], tmp_path / "other")
    monkeypatch.setattr(script, "quantize_rows", lambda matrix: (matrix.to(torch.int8), torch.ones(len(matrix))))
    with pytest.raises(CheckpointError, match="is not that of"):
        script.check_weights(runs["small-encoder"], tmp_path / "other")
    assert not (tmp_path / "shipped").exists() or not [*(tmp_path / "shipped").iterdir()]


def test_paths_are_stripped(script: ModuleType) -> None:
    tree = {"/folder/x/wikipedia-en": ["--text /folder/shared/news.txt", "3 tokens/s and 1/2, https://a.org/b"], "n": 1}
    stripped = {"wikipedia-en": ["--text news.txt", "3 tokens/s and 1/2, https://a.org/b"], "n": 1}
    assert script.strip_paths(tree) == stripped


def test_its_name_stands_for_its_run(
    runs: dict[str, Path], tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings, cost and curve are found by the name, as by the path of a run."""
    name = "small-decoder"
    write(runs[name], name)
    out = tmp_path / "shipped" / name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(INSTALLED_MODELS, name, INSTALLED_MODELS[name]._replace(path=str(out)))
    assert find_brief_rate(name) == find_brief_rate(runs[name]) > 0
    assert [*iterate_runs(Path(name))] == [out] and find_data(Path(name)) is None
    assert find_objective(pt.load(name), Path(name)) == find_objective(pt.load(runs[name]), runs[name])
    (run,) = load_directory(name)
    assert isinstance(run, RunRecord) and run.metrics and run.summary["steps"] == 4
    (tmp_path / "text.txt").write_text("the old sea and the grey wind " * 20)
    (result,), (other,) = (pt.evaluate(model, text=["text.txt"]) for model in (name, out))
    assert result.scores == other.scores and result.notes == other.notes
    assert "32 tokens" in result.notes[0]  # windows as long as those of its training
    (out / COMPACT_FILE).write_bytes((out / COMPACT_FILE).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="copy or create the directory again"):
        pt.verify(name)
