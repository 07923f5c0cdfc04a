"""Runs that are started again: killed before their first checkpoint, from another directory, or without their data."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.analysis.held_out import find_base, find_data
from pretune.cli import main
from pretune.core.errors import CheckpointError, DataError, PretuneError
from pretune.core.run_dir import RunDir
from pretune.runs.embedding import train_embeddings
from pretune.runs.finetune.entry import finetune
from pretune.training.checkpoints.manager import CheckpointManager
from pretune.training.loop import Loop
from pretune.training.trainer import Trainer
from tests.conftest import Capture, Patch
from tests.inference.readers import encoder
from tests.runs.configs import build_pretrain_config
from tests.runs.small import FAST, Prepared, shrunk

STEPS = 4
SETTINGS = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.checkpoint_every": 2}

PAIRS = "anchor\tpositive\nthe cat\ta cat runs\nthe dog\ta dog runs\nthe old\tthe bird\n"


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

    def leave(self, data: Path, out: Path, monkeypatch: Patch, **options: Any) -> None:
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
        monkeypatch: Patch,
        capsys: Capture,
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
        self, prepared: Prepared, straight: Path, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        options = {"data": prepared(), "steps": 2, "init_from": straight, "overrides": FAST}
        whole = pt.pretrain(out=tmp_path / "whole", **options).path
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(CheckpointManager, "save", die)
            pt.pretrain(out=tmp_path / "run", **options)
        again = pt.pretrain(out=tmp_path / "run", resume=True).path
        assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    def test_without_settings_the_whole_command_starts_it(
        self, prepared: Prepared, straight: Path, tmp_path: Path, monkeypatch: Patch
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

    def test_damaged_checkpoints_are_an_error(self, prepared: Prepared, tmp_path: Path, monkeypatch: Patch) -> None:
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
    def test_embedding_training_starts_again(self, tmp_path: Path, monkeypatch: Patch, has_settings: bool) -> None:
        monkeypatch.chdir(tmp_path)
        pt.save(encoder(), "model")
        Path("pairs.tsv").write_text(PAIRS)
        options: dict[str, Any] = {"train": "pairs.tsv", "batch": 2, "steps": 2, "lr": 1e-3, "device": "cpu"}
        whole = train_embeddings("model", out="whole", **options)
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(*((CheckpointManager, "save") if has_settings else (Trainer, "_build")), die)
            train_embeddings("model", out="run", **options)
        assert Path("run/run.json").exists() == has_settings
        again = train_embeddings("model", out="run", resume=True, **options)
        assert np.array_equal(pt.embed(whole.path, ["the cat"]), pt.embed(again.path, ["the cat"]))


@dataclass
class Project:
    """A folder of data, models and killed runs, all called by relative paths."""

    folder: Path

    @contextmanager
    def enter(self, folder: Path | None = None) -> Iterator[Path]:
        """Work in this folder, or in another one."""
        with Patch.context() as patch:
            patch.chdir(folder or self.folder)
            yield self.folder

    @contextmanager
    def kill(self, step: int) -> Iterator[None]:
        """Kill a run at the checkpoint of a step; the one before it is complete."""
        save = CheckpointManager.save

        def save_or_die(manager: CheckpointManager, number: int, *arguments: Any, **options: Any) -> float:
            if number == step:
                manager.wait()
                raise KilledError
            return save(manager, number, *arguments, **options)

        with Patch.context() as patch, pytest.raises(KilledError):
            patch.setattr(CheckpointManager, "save", save_or_die)
            yield

    def copy(self, run: str, target: str | Path) -> Path:
        """Return a copy of a killed run."""
        with self.enter():
            return Path(shutil.copytree(run, target)).absolute()


class TestPretrainingFromAnotherDirectory:
    """Data and initial weights have relative paths."""

    @pytest.fixture(scope="class")
    def project(self, prepared: Prepared, straight: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
        project = Project(tmp_path_factory.mktemp("parent") / "project")
        project.folder.mkdir()
        with project.enter():
            shutil.copytree(prepared(), "data")
            shutil.copytree(straight, "initial")
            options: dict[str, Any] = {"data": "data", "steps": STEPS, "init_from": "initial"}
            options["overrides"] = {**FAST, "train.checkpoint_every": 2}
            pt.pretrain(out="whole", **options)
            with project.kill(STEPS):
                pt.pretrain(out="killed", **options)
            with Patch.context() as patch, pytest.raises(KilledError):
                patch.setattr(CheckpointManager, "save", die)
                pt.pretrain(out="begun", **options)
        return project

    def resume(self, project: Project, run: Path, folder: Path, **options: Any) -> None:
        with project.enter(folder):
            pt.pretrain(out=run, resume=True, **options)
        whole = next(folder.parent.rglob("whole/model.safetensors"))
        assert (run / "model.safetensors").read_bytes() == whole.read_bytes()

    @pytest.mark.parametrize("name", ["killed", "begun"])
    def test_the_working_directory_is_another(self, project: Project, name: str) -> None:
        run = project.copy(name, f"{name}-copy")
        self.resume(project, run, project.folder.parent)
        settings = json.loads((run / "run.json").read_text())
        if name == "killed":
            assert settings == json.loads((project.folder / name / "run.json").read_text())
        with project.enter(project.folder.parent):
            assert pt.pretrain(out=run, resume=True).path == run  # finished

    def test_the_run_was_moved(self, project: Project) -> None:
        self.resume(project, project.copy("killed", project.folder.parent / "other/place/run"), project.folder)

    def test_run_and_data_were_moved_together(self, project: Project) -> None:
        project.copy("killed", "moved-copy")
        target = project.folder.with_name("moved")
        project.folder.rename(target)
        try:
            self.resume(project, target / "moved-copy", target.parent)
            assert not project.folder.exists()
        finally:
            target.rename(project.folder)

    def test_settings_of_earlier_versions(self, project: Project) -> None:
        run = project.copy("killed", "old-copy")
        settings = json.loads((run / "run.json").read_text())
        del settings["paths"]
        (run / "run.json").write_text(json.dumps(settings))
        with project.enter(project.folder.parent), pytest.raises(PretuneError, match="data"):
            pt.pretrain(out=run, resume=True)
        self.resume(project, run, project.folder)

    def test_missing_data_are_named_with_all_places_and_may_be_passed(self, project: Project) -> None:
        run = project.copy("killed", project.folder.parent / "third/place/run")
        hidden = (project.folder / "data").rename(project.folder / "hidden")
        try:
            with pytest.raises(DataError) as caught:
                pt.pretrain(out=run, resume=True)
            places = (project.folder / "data", run.parent / "data")
            assert all(str(place) in str(caught.value) for place in places)
            self.resume(project, run, project.folder, data=hidden)
        finally:
            hidden.rename(project.folder / "data")

    def test_a_config_is_repeated_from_anywhere(self, project: Project) -> None:
        with project.enter(project.folder.parent):
            config = build_pretrain_config(config=project.folder / "killed/run.json")
            assert Path(config.data.path).samefile(project.folder / "data")
        with project.enter():
            assert build_pretrain_config(config="killed/run.json").data.path == "data"

    def test_tools_find_data_and_base(self, project: Project) -> None:
        run = project.copy("killed", project.folder.parent / "fourth/far/away/place/run")
        data = find_data(find_base(run))
        assert data is not None and find_base(run).samefile(project.folder / "initial")


class TestFinetuningFromAnotherDirectory:
    """Model and tables have relative paths."""

    @pytest.fixture(scope="class")
    def project(self, base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
        project = Project(tmp_path_factory.mktemp("project"))
        with project.enter():
            shutil.copytree(base, "model")
            for name in ("train.csv", "dev.csv"):
                shutil.copy(table, name)
            options: dict[str, Any] = {"train": "train.csv", "dev": "dev.csv", "steps": 4, "method": "lora"}
            options |= {"baselines": "none", "overrides": {"train.checkpoint_every": 2}}
            finetune("model", out="whole", **options)
            with project.kill(4):
                finetune("model", out="killed", **options)
        return project

    def test_it_resumes(self, project: Project) -> None:
        run = project.copy("killed", "killed-copy")
        with project.enter(project.folder.parent):
            finetune(out=run, resume=True)
        for name in ("adapter_model.safetensors", "predictions.jsonl", "run.json"):
            assert (run / name).read_bytes() == (project.folder / "whole" / name).read_bytes()

    @pytest.mark.parametrize(
        ("name", "option", "error"), [("dev.csv", "dev", DataError), ("model", None, PretuneError)]
    )
    def test_what_is_missing_is_named_and_may_be_passed(
        self, project: Project, name: str, option: str | None, error: type[PretuneError]
    ) -> None:
        run = project.copy("killed", f"without-{name}")
        hidden = (project.folder / name).rename(project.folder / f"hidden-{name}")
        try:
            with (
                project.enter(project.folder.parent),
                pytest.raises(error, match=re.escape(str(project.folder / name))),
            ):
                finetune(out=run, resume=True)
            if option is None:
                finetune(hidden, out=run, resume=True)
            else:
                finetune(out=run, resume=True, **{option: hidden})
        finally:
            hidden.rename(project.folder / name)
        whole = project.folder / "whole/adapter_model.safetensors"
        assert (run / "adapter_model.safetensors").read_bytes() == whole.read_bytes()


class TestVanishedFiles:
    """What a run has read may be deleted while it trains: its model and its results are written all the same."""

    @contextmanager
    def delete(self, *paths: Path) -> Iterator[None]:
        """Delete files and folders after the first step."""
        compute = Loop._compute_gradients

        def compute_without_files(loop: Loop, *arguments: Any) -> Any:
            for path in paths if loop.state.step == 1 else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            return compute(loop, *arguments)

        with Patch.context() as patch:
            patch.setattr(Loop, "_compute_gradients", compute_without_files)
            yield
        assert not any(path.exists() for path in paths)

    @pytest.mark.parametrize("schedule", [None, (0.5, 16)])
    def test_pretraining(
        self, prepared: Prepared, straight: Path, tmp_path: Path, schedule: Any, capsys: Capture
    ) -> None:
        data = Path(shutil.copytree(prepared(), tmp_path / "data"))
        options: dict[str, Any] = {"objective": "masked", "steps": STEPS, "data": data, "out": tmp_path / "run"}
        with self.delete(data):
            run = pt.pretrain("bert-tiny", **options, overrides={**SETTINGS, "data.length_schedule": schedule}).path
        assert any(str(data) in line for line in capsys.readouterr().err.splitlines())
        assert RunDir(run).is_finished and RunDir(run).card.is_file()
        if schedule is None:
            assert (run / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()

    def test_finetuning(self, base: Path, table: Path, tmp_path: Path) -> None:
        model, own = Path(shutil.copytree(base, tmp_path / "model")), Path(shutil.copy(table, tmp_path / "own.csv"))
        vectors_file = tmp_path / "vectors.txt"
        pt.train_vectors(table, kind="ppmi", out=vectors_file, width=4, min_count=1)
        with self.delete(model, own, vectors_file):
            run = finetune(
                model, train=own, out=tmp_path / "run", steps=2, baselines="majority,vectors,probe,random",
                vectors=vectors_file,
            )  # fmt: skip
        scores = json.loads((run.path / "scores.json").read_text())
        assert [row["name"] for row in scores["baselines"]] == ["majority"]
        assert {"probe", "random"} <= set(scores["not_run"])
        assert RunDir(run.path).is_finished and run.predict(["a lovely house"])

    def test_embedding_training(self, tmp_path: Path, monkeypatch: Patch) -> None:
        monkeypatch.chdir(tmp_path)
        pt.save(encoder(), "model")
        Path("pairs.tsv").write_text(PAIRS)
        with self.delete(Path("model"), Path("pairs.tsv")):
            run = train_embeddings("model", train="pairs.tsv", out="run", batch=2, steps=2, device="cpu")
        assert RunDir(run.path).is_finished and pt.embed(run.path, ["the cat"]).shape == (1, 32)
