"""Runs in fp8, on a CPU that is allowed to: near bf16, the same files, exact resume, accumulation; and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.cli import main
from pretune.core.errors import ResourceError, UsageError
from pretune.nn import fp8
from pretune.runs.finetune.entry import finetune
from pretune.training.run_logger import read_metrics
from tests.conftest import Capture, Patch
from tests.runs.small import FAST, Prepared, shrunk

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16
CHANGES = {**shrunk("gpt2-small"), **FAST, "train.checkpoint_every": 2, "train.eval_every": 4}


@pytest.fixture
def allowed(monkeypatch: Patch) -> list[str]:
    """The CPU may multiply in fp8, as it can; the dtype of every rounding is recorded."""
    monkeypatch.setattr(fp8, "check_device", lambda device: None)
    dtypes: list[str] = []
    real = fp8.quantize

    def quantize(x: torch.Tensor, dtype: torch.dtype) -> Any:
        dtypes.append(str(dtype))
        return real(x, dtype)

    monkeypatch.setattr(fp8, "quantize", quantize)
    return dtypes


def run(data: Path, out: Path, precision: str = "fp8", **changes: Any) -> Path:
    overrides = {**CHANGES, "train.precision": precision, **changes}
    return pt.pretrain("gpt2-small", data=data, steps=4, out=out, overrides=overrides, device="cpu").path


def losses(path: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(path) if "loss" in line]


def test_a_run_is_near_bf16_and_resumed_bit_for_bit(prepared: Prepared, tmp_path: Path, allowed: list[str]) -> None:
    data = prepared("bpe", "endoftext")
    usual = run(data, tmp_path / "bf16", "bf16")
    assert not allowed
    path = run(data, tmp_path / "fp8")
    # Four products of one block: x and W in the forward pass, then the gradient; four steps.
    assert allowed.count("torch.float8_e4m3fn") == 2 * allowed.count("torch.float8_e5m2") == 4 * 4 * 2
    assert losses(path) == pytest.approx(losses(usual), rel=2e-3) and losses(path) != losses(usual)
    environment = json.loads((path / "run.json").read_text())["environment"]
    assert environment["precision"] == "fp8"
    step = "checkpoints/step-00000004/{}.safetensors"
    for name in ("model", "optimizer"):
        ours, theirs = (load_file(folder / step.format(name)) for folder in (path, usual))
        assert {key: (value.dtype, value.shape) for key, value in ours.items()} == {
            key: (value.dtype, value.shape) for key, value in theirs.items()
        }
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    for name in ("model.safetensors", "config.json", "MANIFEST.json", "cost.json"):
        (copy / name).unlink()
    pt.pretrain(out=copy, resume=True, device="cpu")
    assert (copy / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_micro_batches_add_up(prepared: Prepared, tmp_path: Path, allowed: list[str]) -> None:
    data = prepared("bpe", "endoftext")
    one, four = run(data, tmp_path / "one"), run(data, tmp_path / "four", **{"train.micro_tokens": 64})
    assert allowed.count("torch.float8_e5m2") == 4 * (4 + 4 * 6)  # few tokens: q, k and v are not one
    assert losses(four) == pytest.approx(losses(one), rel=2e-3)


@pytest.mark.slow
def test_fine_tuning(base: Path, table: Path, tmp_path: Path, allowed: list[str]) -> None:
    changes = {"train.precision": "fp8", "data.max_length": 16}
    tuned = finetune(base, train=table, out=tmp_path / "tuned", steps=2, baselines="none", overrides=changes)
    assert "torch.float8_e5m2" in allowed
    assert tuned.predict(["a good day"])[0]["label"] in ("good", "bad")
    with pytest.raises(UsageError, match=r"train\.precision=fp8 with 'lora': .* use bf16"):
        finetune(base, train=table, out=tmp_path / "lora", method="lora", overrides=changes)
    assert not (tmp_path / "lora").exists()


def test_without_the_hardware(prepared: Prepared, base: Path, table: Path, tmp_path: Path, capsys: Capture) -> None:
    """One line and exit code 6, before a directory is made."""
    command = ["pretrain", "bert-tiny", "--data", str(prepared()), "--steps", "2", "--out", str(tmp_path / "run")]
    assert main([*command, "--device", "cpu", "--set", "train.precision=fp8"]) == 6
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "fp8" in line]
    assert "compute capability 8.9" in line and "'cpu'" in line and "use bf16" in line
    with pytest.raises(ResourceError, match=r"8\.9"):
        finetune(base, train=table, out=tmp_path / "run", steps=2, device="cpu", overrides={"train.precision": "fp8"})
    assert not (tmp_path / "run").exists()


def test_a_recurrent_model_is_refused(prepared: Prepared, tmp_path: Path, allowed: list[str]) -> None:
    with pytest.raises(UsageError, match="no linear layer of this model"):
        pt.pretrain(
            "ulmfit-small", data=prepared("bpe", "endoftext"), steps=2, out=tmp_path / "run", device="cpu",
            overrides={**shrunk("ulmfit-small"), **FAST, "train.precision": "fp8"},
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
