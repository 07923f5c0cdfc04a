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
    before = Path.cwd()
    os.chdir(folder)
    try:
        pt.finetune("base", train="t.csv", method="lora", steps=2, out="runs/lora")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def moved(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, seen from another working directory; the first is out of reach."""
    shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    edit(tmp_path / "copy/runs/lora", path=str(tmp_path / "gone/base"))
    return tmp_path / "copy"


def edit(run: Path, **changes: Any) -> None:
    """Change what an adapter says of its base; None removes it."""
    said = json.loads((run / "adapter.json").read_text())
    said["base"] = {name: value for name, value in (said["base"] | changes).items() if value is not None}
    (run / "adapter.json").write_text(json.dumps(said))
    io.write_manifest(run, [*json.loads((run / io.MANIFEST).read_text())["files"]])


def test_what_is_stored(place: Path) -> None:
    run = place / "runs/lora"
    said = json.loads((run / "adapter.json").read_text())["base"]
    assert said["path"] == str((place / "base").resolve()) and said["relative"] == "../../base"
    assert len(said["sha256"]) == 64
    peft = json.loads((run / "adapter_config.json").read_text())
    assert peft["base_model_name_or_path"] == said["path"] and peft["peft_type"] == "LORA"


def test_from_another_working_directory(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(pt.predict(place / "runs/lora", TEXTS)) == 2


def test_both_moved_together(moved: Path) -> None:
    assert len(pt.predict(moved / "runs/lora", TEXTS)) == 2


def test_the_run_moved_alone(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs/lora", tmp_path / "lora")
    assert len(pt.predict(tmp_path / "lora", TEXTS)) == 2


def test_the_hash_decides_between_two(moved: Path, place: Path) -> None:
    """Another model lies at the relative path; the one at the absolute path is the right one."""
    other = checkpoint.load(moved / "base")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    pt.save(other, moved / "base", overwrite=True)
    with pytest.raises(CheckpointError):
        pt.load(moved / "runs/lora")
    edit(moved / "runs/lora", path=str(place / "base"))
    assert isinstance(pt.load(moved / "runs/lora"), ModelWithHead)


def test_a_run_of_an_earlier_release(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(place, tmp_path / "old")
    edit(tmp_path / "old/runs/lora", path="base", relative=None)
    monkeypatch.chdir(tmp_path / "old")
    assert isinstance(pt.load("runs/lora"), ModelWithHead)


def test_base_is_given(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, now = moved / "runs/lora", moved / "now"
    (moved / "base").rename(now)
    with pytest.raises(CheckpointError):
        pt.load(run)
    assert isinstance(pt.load(run, base=now), ModelWithHead)
    assert len(pt.predict(run, TEXTS, base=now)) == 2
    for verb in (
        ["predict", run, "--input", moved / "t.csv"],
        ["evaluate", run, "--test", moved / "t.csv"],
        ["export", run, "--to", "hf", "--out", moved / "share"],
        ["embed", run, "--input", moved / "t.csv", "--out", moved / "v.npy"],
        ["verify", run],
    ):
        words = [str(word) for word in verb]
        assert main(words) == CheckpointError.exit_code, verb
        assert "--base" in capsys.readouterr().err
        assert main([*words, "--base", str(now)]) == 0, verb
        capsys.readouterr()


def test_base_of_another_model_or_of_none(moved: Path) -> None:
    other = tasked.make_base(moved / "other", width=48, heads=2)
    with pytest.raises(CheckpointError):
        pt.load(moved / "runs/lora", base=other)
    with pytest.raises(CheckpointError):
        pt.load(moved / "runs/lora", base=moved / "nothing")
    with pytest.raises(UsageError):
        pt.load(moved / "base", base=other)


@pytest.mark.parametrize("path", ["x" * 100_000, "a/" * 50_000, "nul\0", "", 5, ["base"]], ids=lambda p: repr(p)[:12])
def test_a_path_that_is_none(moved: Path, path: object) -> None:
    edit(moved / "runs/lora", path=path, relative=None)
    with pytest.raises(CheckpointError) as caught:
        pt.load(moved / "runs/lora")
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


def test_an_adapter_that_is_its_own_base(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = moved / "runs/lora", moved / "runs/twin"
    edit(first, path=str(first), relative=".")
    with pytest.raises(CheckpointError):
        pt.load(first)
    shutil.copytree(first, second)
    edit(first, path=str(second), relative="../twin")
    edit(second, path=str(first), relative="../lora")
    for run in (first, second):
        assert main(["predict", str(run), "--input", str(moved / "t.csv")]) == CheckpointError.exit_code
        assert capsys.readouterr().err.strip().count("\n") == 0
