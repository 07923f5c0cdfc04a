"""bench/quality/transfer.py: methods with a first stage or a shared run give cells like all others."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.test_guard import load
from tests.runs import tasked
from tests.runs.test_finetune_shapes import two_tasks

STAGED = ("full", "decay", "extra-layers", "domain", "intermediate", "multi")
FIELDS = {"task", "method", "seed", "metric", "split", "score", "scores", "dev", "lr", "steps", "best_step", "trained"}
FIELDS |= {"parameters", "memory", "examples_per_second", "alone", "seconds", "baselines"}


@pytest.fixture
def transfer() -> ModuleType:
    return load("transfer")


@pytest.mark.slow
def test_cells_of_methods_with_stages(
    transfer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_tasks(tmp_path, (40, 60))
    base = tasked.make_base(tmp_path)
    monkeypatch.setattr(transfer, "GROUPS", (("cola", "sst2"),))
    monkeypatch.setattr(transfer, "SOURCES", {"cola": "sst2", "sst2": "cola"})
    monkeypatch.setattr(transfer, "DOMAIN", {**transfer.DOMAIN, "train.batch_tokens": 256, "data.max_length": 32})
    monkeypatch.setattr(transfer, "TASKS", {"cola": {}, "sst2": {"task.train_examples": 50}})
    out = tmp_path / "cells.json"
    words = f"--base {base} --data {tmp_path} --out {out} --seeds 0 --steps 2 --batch 8 --scratch {tmp_path}"
    more = f"--tasks cola,sst2 --methods {','.join(STAGED)} --set data.max_length=16 --set task.max_eval_examples=6"
    monkeypatch.setattr(sys, "argv", ["transfer.py", *words.split(), *more.split()])
    transfer.main()
    said = capsys.readouterr()
    assert json.loads(said.out) == {"cells": 12, "wanted": 12}, said.err

    cells: dict[tuple[str, str], dict[str, Any]] = {
        (one["task"], one["method"]): one for one in json.loads(out.read_text())
    }
    assert all(cell.keys() >= FIELDS and cell["steps"] == 2 for cell in cells.values())
    assert {name for name, cell in cells.items() if "first" in cell} == {
        (task, method) for task in ("cola", "sst2") for method in ("domain", "intermediate")
    }
    assert cells["cola", "intermediate"]["first"]["task"] == "sst2"
    first, last = cells["sst2", "domain"]["first"]["held_out"]
    assert last < first and cells["sst2", "domain"]["first"]["tokens"] > 100
    assert cells["cola", "multi"]["together"] == ["cola", "sst2"]
    assert cells["cola", "multi"]["seconds"] == cells["sst2", "multi"]["seconds"]  # one run
    assert cells["sst2", "multi"]["metric"] == "accuracy" and cells["cola", "multi"]["metric"] == "matthews"
    whole, extra = cells["cola", "full"], cells["cola", "extra-layers"]
    assert whole["trained"] == whole["parameters"] < extra["parameters"] and extra["trained"] < extra["parameters"]
    assert not any(path.name.startswith("tmp") for path in tmp_path.iterdir())  # the scratch folder is empty

    monkeypatch.setattr(sys, "argv", ["transfer.py", "--out", str(out), "--table"])
    transfer.main()
    table = capsys.readouterr().out.splitlines()
    assert [line.split(" |")[0] for line in table[2:8]] == [f"| {name}" for name in STAGED]
    assert any(line.startswith("`domain`: ") and re.search(r"\d+ s\b", line) for line in table)
