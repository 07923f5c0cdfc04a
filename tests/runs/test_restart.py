"""Runs that are started again: killed before their first checkpoint, from another directory, or without their data."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError
from pretune.runs.embedding import train_embeddings
from pretune.training.checkpoints import CheckpointManager
from pretune.training.trainer import Trainer
from tests.inference.readers import encoder
from tests.runs.small import FAST, Prepared, shrunk

STEPS = 4
SETTINGS = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.checkpoint_every": 2}


class KilledError(BaseException):
    """The end of a process, which nothing catches."""


def pretrain(data: Path, out: Path, **options: Any) -> Path:
    return pt.pretrain(
        "bert-tiny", data=data, objective="masked", steps=STEPS, out=out, overrides=SETTINGS, **options
    ).path


def die(*arguments: Any, **options: Any) -> None:
    raise KilledError


@pytest.fixture(scope="module")
def straight(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    return pretrain(prepared(), tmp_path_factory.mktemp("straight") / "run")


class TestBeforeTheFirstCheckpoint:
    """A killed process left run.json, but no checkpoint."""

    def leave(self, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointManager, "save", die)
            with pytest.raises(KilledError):
                pretrain(data, out, **options)
        assert (out / "run.json").is_file() and not [*out.glob("checkpoints/*")]

    def test_pretraining_starts_again(
        self,
        prepared: Prepared,
        straight: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        out = tmp_path / "run"
        self.leave(prepared(), out, monkeypatch)
        settings = (out / "run.json").read_bytes()
        capsys.readouterr()
        assert main(["pretrain", "--out", str(out), "--resume"]) == 0
        assert any(str(out) in line and "checkpoint" in line for line in capsys.readouterr().err.splitlines())
        assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
        assert (out / "run.json").read_bytes() == settings

    def test_initial_weights_are_those_of_the_first_start(
        self, prepared: Prepared, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = {"data": prepared(), "steps": 2, "init_from": straight, "overrides": FAST}
        whole = pt.pretrain(out=tmp_path / "whole", **options).path
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(CheckpointManager, "save", die)
            pt.pretrain(out=tmp_path / "run", **options)
        again = pt.pretrain(out=tmp_path / "run", resume=True).path
        assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    def test_without_settings_the_whole_command_starts_it(
        self, prepared: Prepared, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "run"
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(Trainer, "_build", die)
            pretrain(prepared(), out)
        assert not (out / "run.json").exists()
        with pytest.raises(CheckpointError, match=r"run\.json"):
            pt.pretrain(out=out, resume=True)
        pretrain(prepared(), out, resume=True)
        assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()

    def test_damaged_checkpoints_are_an_error(
        self, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "run"
        self.leave(prepared(), out, monkeypatch)
        (out / "checkpoints/step-00000002").mkdir(parents=True)
        with pytest.raises(CheckpointError, match="step-00000002"):
            pt.pretrain(out=out, resume=True)

    def test_a_lost_checkpoint_of_a_saved_model_is_an_error(self, straight: Path, tmp_path: Path) -> None:
        out = Path(shutil.copytree(straight, tmp_path / "run"))
        shutil.rmtree(out / "checkpoints")
        (out / "cost.json").unlink()
        with pytest.raises(CheckpointError, match="checkpoint"):
            pt.pretrain(out=out, resume=True)
        assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()

    @pytest.mark.parametrize("has_settings", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_embedding_training_starts_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_settings: bool
    ) -> None:
        monkeypatch.chdir(tmp_path)
        pt.save(encoder(), "model")
        Path("pairs.tsv").write_text("anchor\tpositive\nthe cat\ta cat runs\nthe dog\ta dog runs\nthe old\tthe bird\n")
        options: dict[str, Any] = {"train": "pairs.tsv", "batch": 2, "steps": 2, "lr": 1e-3, "device": "cpu"}
        whole = train_embeddings("model", out="whole", **options)
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(*((CheckpointManager, "save") if has_settings else (Trainer, "_build")), die)
            train_embeddings("model", out="run", **options)
        assert Path("run/run.json").exists() == has_settings
        again = train_embeddings("model", out="run", resume=True, **options)
        assert np.array_equal(pt.embed(whole.path, ["the cat"]), pt.embed(again.path, ["the cat"]))
