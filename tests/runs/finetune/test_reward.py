"""Fine-tuning on rewards: a run that learns what is rewarded, faults of the user's function, settings that conflict."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.core.run_dir import RunDir
from pretune.metrics import METRICS
from pretune.training.run_logger import read_metrics
from tests.conftest import Capture
from tests.inference.speakers import speaker

FAILURES = {"step": 1 + 64 + 64 + 24 + 9, "validation": 1 + 64 + 64 + 24 + 64 + 2}
"""Calls of the function: on the first row, on the answers of some steps, and then in the next one, or on dev."""
SETTINGS = {"data.max_new_tokens": 4, "data.max_length": 48, "train.log_every": 1, "train.checkpoint_every": 2}


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are registered for one test."""
    monkeypatch.setattr(METRICS, "_registered", {})
    monkeypatch.setattr(METRICS, "_cache", {})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder, and problems whose answer is one word."""
    folder = tmp_path_factory.mktemp("problems")
    pt.save(speaker("llama-7b", "bpe", "endoftext"), folder / "base")
    rows = [{"question": f"Say {word}", "answer": "the"} for word in ("cat", "dog", "boat", "sea", "sun", "tree")] * 4
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def tune(base: Path, out: Path, reward: Any, **options: Any) -> Any:
    common: dict[str, Any] = {"train": base / "problems.jsonl", "steps": 6, "lr": 1e-2, "baselines": "none"}
    options = {**common, "overrides": SETTINGS, **options}
    return pt.finetune(base / "base", out=out, reward=reward, **options)


def says_word(answer: str, reference: str) -> float:
    return float(reference in answer.split())


def test_a_run_learns_the_rewarded_word(base: Path, tmp_path: Path) -> None:
    run = tune(base, tmp_path / "run", says_word, steps=30, baselines="majority,untuned")
    assert run.score == 1.0
    assert run.predict(["Say cat"])[0]["text"].split()[0] == "the"
    scores = json.loads(RunDir(tmp_path / "run").scores.read_text())
    assert (scores["kind"], scores["metric"]) == ("reward", "reward.says_word")
    assert {*scores["result"]["scores"]} == {"reward.says_word"}
    assert {row["name"]: row["score"] for row in scores["baselines"]} == {"frequent_answer": 1.0, "untuned": 0.0}
    assert "the" in scores["samples"][0]["after"]
    lines = [line for line in read_metrics(tmp_path / "run") if "reward" in line]
    assert all(line["loss"] == -line["reward"] and 1 <= line["length"] <= 5 for line in lines)
    assert lines[0]["reward"] < 0.1 < 0.5 < lines[-1]["reward"] and lines[0]["no_signal"] > lines[-1]["no_signal"]
    rows = [json.loads(line) for line in RunDir(tmp_path / "run").predictions.read_text().splitlines()]
    assert all(row["score"] == 1.0 and row["gold"] == "the" for row in rows)
    assert "(reward 1)" in Path(pt.report([tmp_path / "run"], out=tmp_path / "report.html")).read_text()
    assert pt.load(tmp_path / "run").spec.family == "llama"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["step", "validation"])
def test_a_reward_that_fails_loses_nothing(
    where: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before are saved, and the run resumes as if the function had always worked."""
    calls: Counter[str] = Counter()

    def check(answer: str, reference: str) -> float:
        calls[where] += 1
        if calls[where] == FAILURES[where]:
            raise RuntimeError("out of order")
        return len(answer) / 10

    overrides = {**SETTINGS, "train.checkpoint_every": 100, "train.eval_every": 4}
    with pytest.raises(DataError, match=r"row \d+: reward 'reward.check': raised RuntimeError: out of order"):
        tune(base, tmp_path / "run", check, overrides=overrides)
    (saved,) = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1:]
    assert saved.name == {"step": "step-00000003", "validation": "step-00000004"}[where]
    with monkeypatch.context() as patch:
        patch.setattr(METRICS, "_registered", {})
        patch.setattr(METRICS, "_cache", {})
        with pytest.raises(UsageError, match=r"reward\.check.*--reward"):  # settings name no code
            pt.finetune(out=tmp_path / "run", resume=True)
    pt.finetune(out=tmp_path / "run", resume=True, reward=check)
    tune(base, tmp_path / "straight", check, overrides=overrides)
    names = ("model.safetensors", "predictions.jsonl")
    assert all((tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes() for name in names)


def fails(capsys: Capture, code: int, *arguments: str) -> str:
    """The one line of a command that must fail."""
    assert main(["--quiet", *arguments]) == code
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1, output.err
    return output.err


def test_conflicts_are_one_line(base: Path, tmp_path: Path, capsys: Capture) -> None:
    """Before any computation: nothing is left."""
    command = ["finetune", str(base / "base"), "--out", str(tmp_path / "run"), "--train", str(base / "problems.jsonl")]
    file = tmp_path / "own.py"
    file.write_text("def check(answer, reference):\n    return None\n")
    assert "--reward" in fails(capsys, 2, *command[:-2], "--task", "cola", "--reward", "exact")
    assert "tune.grpo" in fails(capsys, 2, *command, "--set", "tune.grpo={}")
    assert "--teacher" in fails(capsys, 2, *command, "--reward", "exact", "--teacher", str(base / "base"))
    assert "none.py" in fails(capsys, 2, *command, "--reward", "none.py:check")
    assert "own.py:check" in fails(capsys, 2, *command, "--set", f"task.reward={file}:check")  # no code from settings
    assert "TypeError" in fails(capsys, 3, *command, "--reward", f"{file}:check")
    assert "samples" in fails(capsys, 2, *command, "--reward", "exact", "--set", "tune.grpo.samples=1")
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


def test_a_dry_run_of_the_command_line(base: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "own.py"
    file.write_text("def check(answer, reference):\n    return 1\n")
    command = ["finetune", str(base / "base"), "--train", str(base / "problems.jsonl"), "--reward", f"{file}:check"]
    assert main([*command, "--dry-run", "--set", "tune.grpo.samples=4"]) == 0
    output = capsys.readouterr()
    assert "reward.check" in output.out + output.err
