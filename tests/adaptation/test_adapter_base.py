"""The base of an adapter: found from any working directory, by its hash; refused in one line where it is not."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead
from pretune.cli.app import main
from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.hf import checkpoint
from tests.runs import tasked

TEXTS = ["the old sea.", "a quiet house."]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a base and a LoRA run, made with relative paths."""
    folder = tmp_path_factory.mktemp("place")
    tasked.make_base(folder)
    tasked.classes(folder / "t.csv", 60)
    old_directory = Path.cwd()
    os.chdir(folder)
    try:
        pt.finetune("base", train="t.csv", method="lora", steps=2, out="runs/lora")
    finally:
        os.chdir(old_directory)
    return folder


@pytest.fixture
def moved_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, seen from another working directory; the first is out of reach."""
    shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    edit(tmp_path / "copy/runs/lora", path=str(tmp_path / "gone/base"))
    return tmp_path / "copy"


def edit(run: Path, **changes: Any) -> None:
    """Change what an adapter says of its base; None removes it."""
    record = json.loads((run / "adapter.json").read_text())
    record["base"] = {name: value for name, value in (record["base"] | changes).items() if value is not None}
    (run / "adapter.json").write_text(json.dumps(record))
    io.write_manifest(run, [*json.loads((run / io.MANIFEST).read_text())["files"]])


def test_what_is_stored(place: Path) -> None:
    run = place / "runs/lora"
    base_info = json.loads((run / "adapter.json").read_text())["base"]
    assert base_info["path"] == str((place / "base").resolve()) and base_info["relative"] == "../../base"
    assert len(base_info["sha256"]) == 64
    peft = json.loads((run / "adapter_config.json").read_text())
    assert peft["base_model_name_or_path"] == base_info["path"] and peft["peft_type"] == "LORA"


def test_from_another_working_directory(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(pt.predict(place / "runs/lora", TEXTS)) == 2


def test_both_moved_together(moved_run: Path) -> None:
    assert len(pt.predict(moved_run / "runs/lora", TEXTS)) == 2


def test_the_run_moved_alone(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs/lora", tmp_path / "lora")
    assert len(pt.predict(tmp_path / "lora", TEXTS)) == 2


def test_the_hash_decides_between_two(moved_run: Path, place: Path) -> None:
    """Another model lies at the relative path; the one at the absolute path is the right one."""
    other_model = checkpoint.load(moved_run / "base")
    with torch.no_grad():
        for parameter in other_model.parameters():
            parameter.add_(1.0)
    pt.save(other_model, moved_run / "base", overwrite=True)
    with pytest.raises(CheckpointError):
        pt.load(moved_run / "runs/lora")
    edit(moved_run / "runs/lora", path=str(place / "base"))
    assert isinstance(pt.load(moved_run / "runs/lora"), ModelWithHead)


def test_a_run_of_an_earlier_release(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(place, tmp_path / "old")
    edit(tmp_path / "old/runs/lora", path="base", relative=None)
    monkeypatch.chdir(tmp_path / "old")
    assert isinstance(pt.load("runs/lora"), ModelWithHead)


def test_base_is_given(moved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, new_base = moved_run / "runs/lora", moved_run / "now"
    (moved_run / "base").rename(new_base)
    with pytest.raises(CheckpointError):
        pt.load(run)
    assert isinstance(pt.load(run, base=new_base), ModelWithHead)
    assert len(pt.predict(run, TEXTS, base=new_base)) == 2
    for verb in (
        ["predict", run, "--input", moved_run / "t.csv"],
        ["evaluate", run, "--test", moved_run / "t.csv"],
        ["export", run, "--to", "hf", "--out", moved_run / "share"],
        ["embed", run, "--input", moved_run / "t.csv", "--out", moved_run / "v.npy"],
        ["verify", run],
    ):
        words = [str(word) for word in verb]
        assert main(words) == CheckpointError.exit_code, verb
        assert "--base" in capsys.readouterr().err
        assert main([*words, "--base", str(new_base)]) == 0, verb
        capsys.readouterr()


def test_base_of_another_model_or_of_none(moved_run: Path) -> None:
    other_base = tasked.make_base(moved_run / "other", width=48, heads=2)
    with pytest.raises(CheckpointError):
        pt.load(moved_run / "runs/lora", base=other_base)
    with pytest.raises(CheckpointError):
        pt.load(moved_run / "runs/lora", base=moved_run / "nothing")
    with pytest.raises(UsageError):
        pt.load(moved_run / "base", base=other_base)


@pytest.mark.parametrize("path", ["x" * 100_000, "a/" * 50_000, "nul\0", "", 5, ["base"]], ids=lambda p: repr(p)[:12])
def test_a_path_that_is_none(moved_run: Path, path: object) -> None:
    edit(moved_run / "runs/lora", path=path, relative=None)
    with pytest.raises(CheckpointError) as caught:
        pt.load(moved_run / "runs/lora")
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


def test_an_adapter_that_is_its_own_base(moved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = moved_run / "runs/lora", moved_run / "runs/twin"
    edit(first, path=str(first), relative=".")
    with pytest.raises(CheckpointError):
        pt.load(first)
    shutil.copytree(first, second)
    edit(first, path=str(second), relative="../twin")
    edit(second, path=str(first), relative="../lora")
    for run in (first, second):
        assert main(["predict", str(run), "--input", str(moved_run / "t.csv")]) == CheckpointError.exit_code
        assert capsys.readouterr().err.strip().count("\n") == 0
