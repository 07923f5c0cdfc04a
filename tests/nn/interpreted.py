"""Kernels of Triton under test: on a GPU as they are; elsewhere by its interpreter, in a process of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from tests.conftest import ROOT

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
MARKS = [pytest.mark.gpu] if CUDA else []
_HERE = os.environ.get("TRITON_INTERPRET") == "1"
able = pytest.mark.skipif(not CUDA and not _HERE, reason="done by test_by_the_interpreter, in its own process")
elsewhere = pytest.mark.skipif(CUDA or _HERE, reason="the kernels themselves can run")


def passes(file: str, count: int, *options: str) -> None:
    """So many tests of a file pass there. NOTE: the interpreter is chosen when triton is imported, maybe long ago."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and f"{count} passed" in done.stdout, done.stdout
