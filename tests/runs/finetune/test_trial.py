"""A trial in a process that has not used the GPU yet."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.runs import tasked


@pytest.mark.gpu
def test_a_given_precision_is_trained_in_a_fresh_process(tmp_path: Path) -> None:
    base, table = tasked.make_base(tmp_path), tasked.classes(tmp_path / "own.csv", 40)
    command = [
        sys.executable,
        "-m",
        "pretune",
        "finetune",
        str(base),
        "--train",
        str(table),
        "--out",
        str(tmp_path / "r"),
    ]
    command += ["--steps", "1", "--baselines", "none", "--device", "cuda", "--set", "train.precision=fp32"]
    run = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
