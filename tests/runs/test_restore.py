"""Finished runs that lost a part of their model: refused, and restored by the command that the error names."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError
from pretune.core.run_dir import RunDir
from pretune.runs.finetune.entry import finetune
from pretune.runs.verify import check_model
from tests.conftest import Capture
from tests.runs.small import FAST, Prepared, shrunk

LOST = {
    "weights": ["model.safetensors"],
    "manifest": ["MANIFEST.json"],
    "all": ["model.safetensors", "config.json", "tokenizer.json", "MANIFEST.json"],
}


@pytest.fixture(scope="module")
def pretrained(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.checkpoint_every": 2}
    out = tmp_path_factory.mktemp("runs") / "pretrained"
    return pt.pretrain("bert-tiny", data=prepared(), objective="masked", steps=4, out=out, overrides=changes).path


@pytest.fixture(scope="module")
def tuned(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One trial, and two of them."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: finetune(base, train=table, out=folder / name, steps=3, seeds=seeds, method=method, baselines="none").path
        for name, seeds, method in (("one", 1, "full"), ("two", 2, "lora"))
    }


def typed(error: str) -> list[list[str]]:
    """The commands of an error, as words."""
    (command,) = re.findall(r"`([^`]+)`", error)
    return [shlex.split(part) for part in command.split("&&")]


def restore(run: Path, lost: list[str], capsys: Capture, verb: str) -> None:
    """Lose files, be refused twice, do what the error says, and have the same files again."""
    before = {name: (run / name).read_bytes() for name in lost}
    for name in lost:
        (run / name).unlink()
    with pytest.raises(CheckpointError, match=lost[-1]):
        check_model(RunDir(run))
    assert main(["verify", str(run)]) == 4
    capsys.readouterr()
    assert main([verb, "--out", str(run), "--resume"]) == 4
    remove, again = typed(capsys.readouterr().err)
    assert (remove[0], again[0]) == ("rm", "pretune")
    for name in remove[1:]:
        Path(name).unlink()
    assert main(again[1:]) == 0
    assert {name: (run / name).read_bytes() for name in lost} == before
    assert main(["verify", str(run)]) == 0
    assert main([verb, "--out", str(run), "--resume"]) == 0


@pytest.mark.parametrize("lost", LOST)
def test_a_pretrained_run(pretrained: Path, tmp_path: Path, capsys: Capture, lost: str) -> None:
    run = shutil.copytree(pretrained, tmp_path / "run")
    restore(run, LOST[lost], capsys, "pretrain")


def test_from_an_older_checkpoint(pretrained: Path, tmp_path: Path, capsys: Capture) -> None:
    """The newest whole one is named, and the steps behind it are taken again."""
    run = shutil.copytree(pretrained, tmp_path / "run")
    (run / "checkpoints/step-00000004/state.json").write_text("{}")
    model = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="step-00000002") as error:
        check_model(RunDir(run))
    remove, again = typed(str(error.value))
    Path(remove[1]).unlink()
    assert main(again[1:]) == 0
    assert (run / "model.safetensors").read_bytes() == model


def test_without_a_checkpoint(pretrained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        check_model(RunDir(run))


@pytest.mark.parametrize(("name", "lost"), [("one", "model.safetensors"), ("two", "adapter_model.safetensors")])
def test_a_finetuned_run(tuned: dict[str, Path], capsys: Capture, name: str, lost: str) -> None:
    """From the checkpoint of its only trial; of several trials, the one whose model it had is trained again."""
    restore(tuned[name], [lost], capsys, "finetune")


def test_what_is_no_finished_run_is_not_asked_for(pretrained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(pretrained, tmp_path / "run")
    (run / "MANIFEST.json").unlink()
    (run / "cost.json").unlink()
    check_model(RunDir(run))
    check_model(RunDir(tmp_path))
