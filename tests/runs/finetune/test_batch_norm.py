"""Running statistics of a head belong to the weights: in checkpoints, saved runs, adapters and averages of runs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pretune as pt
from tests.runs import tasked
from tests.selection import keep_quick


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("ulmfit"), "ulmfit-small", "words", "plain", hidden=12)


def tune(base: Path, table: Path, out: Path, method: str, **settings: Any) -> Path:
    """A run of four steps whose best weights are those of one of its evaluations."""
    overrides = {"train.checkpoint_every": 2, "train.eval_every": 2}
    overrides |= {name.replace("_", ".", 1): value for name, value in settings.items()}
    return pt.finetune(
        base, train=table, out=out, method=method, steps=4, baselines="none", device="cpu", overrides=overrides
    ).path


def read_tensors(run: Path) -> dict[str, Tensor]:
    """All tensors of a run's model, or of its adapter and head."""
    files = sorted(run.glob("*.safetensors"))
    return {f"{file.stem}/{name}": value for file in files for name, value in load_file(file).items()}


@pytest.mark.parametrize("method", keep_quick(["full", "frozen", "lora", "gradual"], "lora"))
def test_a_resumed_run_has_the_same_statistics(base: Path, table: Path, tmp_path: Path, method: str) -> None:
    """Also where only a part of the weights is in the checkpoints."""
    run = tune(base, table, tmp_path / "run", method)
    tensors = read_tensors(run)
    statistics = {name: value for name, value in tensors.items() if "running_" in name}
    assert len(statistics) == 4 and all(not torch.equal(value, value.round()) for value in statistics.values())
    stored = load_file(run / "checkpoints" / "step-00000002" / "best.safetensors")
    assert sum("running_" in name for name in stored) == 4

    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    for name in ("config.json", "adapter.json", "MANIFEST.json", "cost.json", "trial.json", "scores.json"):
        (copy / name).unlink(missing_ok=True)
    for file in copy.glob("*.safetensors"):
        file.unlink()
    pt.finetune(out=copy, resume=True, device="cpu")
    again = read_tensors(copy)
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)
    texts = ["the lovely sea.", "the dreadful sea."]
    assert pt.predict(copy, texts) == pt.predict(run, texts)


@pytest.mark.slow
def test_averages_of_runs_have_averaged_statistics(table: Path, tmp_path: Path) -> None:
    base, pooling = tasked.make_base(tmp_path / "bert"), {"mode": "mean", "norm": {"kind": "batch_norm"}}
    runs = [tune(base, table, tmp_path / str(i), "full", train_seed=i, tune_pooling=pooling) for i in (0, 1)]
    pt.export(runs, out=tmp_path / "soup")
    first, second = (read_tensors(run) for run in runs)
    mean, var, weight, bias = (
        (first[name] + second[name]) / 2
        for name in (f"model/task.input_norm.{part}" for part in ("running_mean", "running_var", "weight", "bias"))
    )
    assert not torch.equal(first["model/task.input_norm.running_var"], second["model/task.input_norm.running_var"])
    out_weight, out_bias = (
        (first[name] + second[name]) / 2 for name in ("model/task.out.weight", "model/task.out.bias")
    )
    scale = weight / (var + 1e-5).sqrt()
    dense = load_file(tmp_path / "soup/2_Dense/model.safetensors")  # the norm is a part of this layer
    torch.testing.assert_close(dense["linear.weight"], out_weight * scale)
    torch.testing.assert_close(dense["linear.bias"], out_bias + out_weight @ (bias - mean * scale))
