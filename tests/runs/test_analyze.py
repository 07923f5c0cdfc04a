"""Forgetting of a saved run is what was measured while it trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.runs.finetune.forgetting import analyze_forgetting
from pretune.runs.prepare import prepare
from tests.conftest import Capture, run_command
from tests.runs import tasked
from tests.selection import keep_quick

FAMILIES = {
    "bert-tiny": ("wordpiece", "cls-sep"),
    "gpt2-small": ("bpe", "endoftext"),
    "t5-small": ("unigram", "sentinels"),  # without biases
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forgetting")
    tasked.classes(folder / "table.csv", 40)
    (folder / "text.txt").write_text("\n\n".join(tasked.corpus()))
    for family, (kind, style) in FAMILIES.items():
        base = tasked.make_base(folder / family, family, kind, style)
        prepare([folder / "text.txt"], tokenizer=base, out=folder / family / "data", holdout=0.2, workers=0)
    return folder


def finetune(made: Path, family: str, method: str) -> tuple[Path, dict[str, Any]]:
    """A run that measured its forgetting, and what it measured."""
    run = made / f"{family}-{method}"
    command = ["finetune", str(made / family / "base"), "--train", str(made / "table.csv"), "--method", method,
               "--steps", "4", "--baselines", "none", "--out", str(run), "--set", "train.lr=0.05",
               "--set", "train.eval_every=4", "--forgetting", str(made / family / "data")]  # fmt: skip
    assert main(["--quiet", *command]) == 0
    return run, json.loads((run / "scores.json").read_text())["forgetting"]


CASES = [
    (family, method)
    for family in FAMILIES
    for method in ("full", "lora", "bitfit", "adapter", "frozen")
    if (family, method) != ("t5-small", "frozen")  # which would have nothing to train
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method"), keep_quick(CASES, ("bert-tiny", "lora"), ("t5-small", "bitfit")))
def test_it_is_what_was_measured_in_training(family: str, method: str, made: Path) -> None:
    run, expected = finetune(made, family, method)
    found = analyze_forgetting(run, data=made / family / "data")
    assert found.objective == expected["objective"]
    assert found.before == pytest.approx(expected["before"], rel=1e-5)
    assert found.after == pytest.approx(expected["after"], rel=1e-4)
    assert found.difference == pytest.approx(expected["difference"], abs=1e-4)
    if method != "frozen":
        assert found.difference != 0
    for layer in found.changes.layers:
        stack, _, place = layer.name.partition(" ")
        part = f"{stack}.{int(place) - 1}" if place.isdecimal() else layer.name.replace(" ", ".")
        if part != "heads" and method != "adapter":
            assert layer.distance == pytest.approx(expected["by_part"][part], abs=1e-6), part
    assert "loss" in repr(found) and found.to_dict()["kind"] == "forgetting"


@pytest.mark.slow
def test_mistakes(made: Path, tmp_path: Path, capsys: Capture) -> None:
    base = made / "bert-tiny" / "base"
    with pytest.raises(UsageError, match="not a run that started from a model"):
        analyze_forgetting(base)
    run = tmp_path / "run"
    command = ["finetune", str(base), "--train", str(made / "table.csv"), "--steps", "1", "--baselines", "none"]
    assert main(["--quiet", *command, "--out", str(run)]) == 0
    with pytest.raises(DataError, match="pass --data"):
        analyze_forgetting(run)
    capsys.readouterr()
    assert run_command(capsys, ["--quiet", "analyze", "forgetting", str(run)], code=3).err.count("\n") == 1
    assert main(["--quiet", "analyze", "forgetting", str(run), "--data", str(made / "gpt2-small" / "data")]) == 2
    assert "mask token" in capsys.readouterr().err  # of another tokenizer
    data = ["--data", str(made / "bert-tiny" / "data"), "--out", str(run / "analysis")]
    said = run_command(capsys, ["analyze", "forgetting", str(run), *data])
    assert "pre-training loss" in said.out and "next: pretune report" in said.err
    assert main(["--quiet", "report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "forgetting" in (tmp_path / "report.html").read_text()
