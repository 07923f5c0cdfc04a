"""Weights in 8 bits: error within half a step of each row, files that are read as float32, and refusals."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune.cli import main as cli
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.compact import COMPACT_FILE, SCALE, compress, quantize_rows, restore_rows
from pretune.models.hf import checkpoint

SIZES = {"width": 16, "depth": 2, "heads": 2, "vocab": 60}


@given(rows=st.integers(1, 5), columns=st.integers(1, 40), power=st.integers(-30, 30), seed=st.integers(0, 999))
def test_each_weight_is_within_half_a_step(rows: int, columns: int, power: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator) * 10.0**power
    matrix[0] = 0
    integers, scales = quantize_rows(matrix)
    assert integers.dtype == torch.int8 and scales.shape == (rows,) and bool(torch.isfinite(scales).all())
    errors = (restore_rows(integers, scales) - matrix).abs()
    assert bool((errors <= 0.5001 * scales[:, None]).all()) and bool((errors[0] == 0).all())


def test_vectors_stay_as_they_are() -> None:
    tensors = {"norm": torch.randn(4), "matrix": torch.randn(3, 4), "ids": torch.arange(6).reshape(2, 3)}
    small = compress(tensors)
    assert small.keys() == {"norm", "matrix", "matrix" + SCALE, "ids"}
    assert small["norm"] is tensors["norm"] and small["ids"] is tensors["ids"]


@pytest.mark.parametrize("family", ["modernbert", "llama2", "t5v1.1"])
def test_a_compact_directory_is_read_as_the_model(family: str, tmp_path: Path) -> None:
    model = pt.build(family, **SIZES).eval()
    checkpoint.save(model, tmp_path / "full")
    pt.export(tmp_path / "full", to="compact", out=tmp_path / "small")
    assert [file.name for file in (tmp_path / "small").glob("*.safetensors")] == [COMPACT_FILE]
    assert (tmp_path / "small" / COMPACT_FILE).stat().st_size < 0.5 * (
        tmp_path / "full" / "model.safetensors"
    ).stat().st_size
    loaded = checkpoint.load(tmp_path / "small")
    for (name, ours), (_, theirs) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        step = ours.detach().abs().amax() / 127
        torch.testing.assert_close(theirs, ours, atol=float(step) * 0.501, rtol=0, msg=name)
    # In full and back again, nothing changes any more.
    pt.export(tmp_path / "small", to="hf", out=tmp_path / "back")
    pt.export(tmp_path / "back", to="compact", out=tmp_path / "again")
    first, second = (load_file(tmp_path / name / COMPACT_FILE) for name in ("small", "again"))
    integers = [name for name in first if first[name].dtype == torch.int8]
    assert integers and all(torch.equal(first[name], second[name]) for name in integers)
    assert pt.verify(tmp_path / "small")


def test_scales_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    checkpoint.save(pt.build("modernbert", **SIZES), tmp_path / "full")
    pt.export(tmp_path / "full", to="compact", out=tmp_path / "small")
    file = tmp_path / "small" / COMPACT_FILE
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(SCALE))
    (tmp_path / "small" / "MANIFEST.json").unlink()
    matrix = name.removesuffix(SCALE)
    for changed in (
        {key: value for key, value in tensors.items() if key != name},
        tensors | {name: tensors[name][:-1].clone()},
        tensors | {name: tensors[name].half()},
        tensors | {matrix: tensors[matrix].float()},
    ):
        save_file(changed, file)
        with pytest.raises(CheckpointError, match=r"scale|I8"):
            checkpoint.load(tmp_path / "small")


def test_the_command_writes_and_refuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint.save(pt.build("modernbert", **SIZES), tmp_path / "full")
    out = str(tmp_path / "small")
    assert cli(["export", str(tmp_path / "full"), "--to", "compact", "--out", out, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["dtype"] == "int8" and (tmp_path / "small" / "README.md").is_file()
    for options in ({"dtype": "float16"}, {"quantize": "int8"}):
        with pytest.raises(UsageError):
            pt.export(tmp_path / "full", to="compact", out=tmp_path / "other", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "other").exists()
