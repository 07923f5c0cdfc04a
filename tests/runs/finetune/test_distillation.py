"""Fine-tuning with a teacher: resume, cost, the saved student, and teachers that do not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError
from tests.conftest import run_command
from tests.runs import tasked

LAYERS = {f"tune.distill.{name}_weight": 1 for name in ("state", "embedding", "attention")}
TWO_STAGES = {**LAYERS, "tune.distill.layer_share": 0.5, "tune.distill.hard_weight": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A deep base, its run on a table, and a shallow, narrow base of the same vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    table = tasked.classes(folder / "own.csv")
    deep, small = tasked.make_base(folder / "deep", depth=4), tasked.make_base(folder / "small", width=16)
    teacher = pt.finetune(deep, train=table, out=folder / "teacher", steps=4, baselines="none", device="cpu")
    return {"table": table, "deep": deep, "small": small, "teacher": teacher.path}


def run(models: dict[str, Path], out: Path, **options: Any) -> Any:
    options = {"steps": 4, "baselines": "none", "teacher": models["teacher"], **options}
    options["overrides"] = {"train.checkpoint_every": 2, "train.eval_every": 2, **options.get("overrides", {})}
    return pt.finetune(models["small"], train=models["table"], out=out, device="cpu", **options)


def resume_from_step_two(run: Path, copy: Path) -> Path:
    """A copy of a run of four steps as it was after two of them, resumed."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    for name in ("model.safetensors", "config.json", "MANIFEST.json", "cost.json", "trial.json", "scores.json"):
        (copy / name).unlink()
    return pt.finetune(out=copy, resume=True, device="cpu").path


@pytest.mark.parametrize("overrides", [TWO_STAGES, pytest.param({}, marks=pytest.mark.slow)])
def test_a_resumed_student_is_the_same(models: dict[str, Path], tmp_path: Path, overrides: dict[str, Any]) -> None:
    """In the second stage of a run that was interrupted in the first; or with cached logits."""
    student = run(models, tmp_path / "student", overrides={**overrides, "train.log_every": 1})
    resumed = resume_from_step_two(student.path, tmp_path / "resumed")
    first, second = (load_file(path / "model.safetensors") for path in (student.path, resumed))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert not any("projection" in name for name in first)
    lines = [json.loads(line) for line in (student.path / "metrics.jsonl").read_text().splitlines()]
    terms = [{*line} & {"task", "soft", "states", "attention"} for line in lines if "loss" in line]
    assert terms == ([{"states", "attention"}] * 2 + [set()] * 2 if overrides else [{"task", "soft"}] * 4)
    settings = json.loads((student.path / "run.json").read_text())
    assert settings["tune"]["distill"]["teacher"] == str(models["teacher"])
    assert len(settings["environment"]["teacher"]) == 64
    assert student.scores["model"]["trained"] == sum(tensor.numel() for tensor in first.values())


@pytest.mark.slow
def test_the_teacher_is_checked_when_a_run_is_resumed(models: dict[str, Path], tmp_path: Path) -> None:
    moved = shutil.copytree(models["teacher"], tmp_path / "teacher")
    student = run(models, tmp_path / "student", teacher=moved)
    shutil.rmtree(moved)
    shutil.copytree(
        pt.finetune(models["deep"], train=models["table"], out=tmp_path / "other", steps=5, baselines="none").path,
        moved,
    )
    with pytest.raises(CheckpointError, match="teacher"):
        resume_from_step_two(student.path, tmp_path / "resumed")


@pytest.mark.slow
def test_cost_counts_the_teacher(models: dict[str, Path], tmp_path: Path) -> None:
    """Cached logits are computed once for all trials; a teacher in every step costs its forward passes."""
    alone = run(models, tmp_path / "alone", teacher=None, steps=6)
    cached = run(models, tmp_path / "cached", seeds=2, steps=6)
    live = run(models, tmp_path / "live", steps=6, overrides={"tune.distill.cache": False})
    costs = [trial["summary"] for scores in (alone, cached, live) for trial in scores.scores["trials"]]
    flops = [cost["cost"]["flops"] for cost in costs]
    teacher = [cost.get("teacher_flops") for cost in costs]
    assert teacher[0] is None and teacher[2] == 0  # the second seed uses the logits of the first
    assert flops[1] - teacher[1] == pytest.approx(flops[0]) and flops[3] - teacher[3] == pytest.approx(flops[0])
    assert teacher[3] == pytest.approx(2 * teacher[1])  # six steps of 32 are two epochs of 96


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "gradual", "frozen", "scalar-mix"])
def test_methods(models: dict[str, Path], tmp_path: Path, method: str) -> None:
    student = run(models, tmp_path / "student", method=method, steps=2)
    assert student.predict(["a lovely house."])[0]["label"] in ("bad", "good")
    settings = LAYERS if method == "lora" else {}
    student = run(models, tmp_path / "layers", method=method, steps=2, overrides=settings)
    assert pt.load(student.path) is not None


@pytest.mark.slow
def test_a_regression_and_tags(models: dict[str, Path], tmp_path: Path) -> None:
    for name, make, kind in (("scores", tasked.scores, "regression"), ("tags", tasked.tags, "tagging")):
        table = make(tmp_path / f"{name}.{'conll' if name == 'tags' else 'csv'}")
        options: dict[str, Any] = {"train": table, "type": kind, "steps": 3, "baselines": "none", "device": "cpu"}
        options |= {"text": "one", "pair": "two", "label": "score"} if name == "scores" else {}
        teacher = pt.finetune(models["deep"], out=tmp_path / f"{name}-teacher", **options)
        student = pt.finetune(models["small"], out=tmp_path / name, teacher=teacher, **options)
        assert student.score is not None


def test_teachers_that_do_not_fit(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(code: int, model: Path, teacher: Path, *words: object) -> str:
        command = [
            "finetune",
            model,
            "--train",
            models["table"],
            "--teacher",
            teacher,
            "--out",
            tmp_path / "out",
            *words,
        ]
        assert main([*map(str, command), "--steps", "1", "--device", "cpu", "--baselines", "none"]) == code
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert not (tmp_path / "out").exists()
        return line

    small, teacher = models["small"], models["teacher"]
    decoder = tasked.make_base(tmp_path / "decoder", "gpt2", "bpe", "endoftext")
    assert "a teacher of the shape 'encoder' cannot teach one of 'decoder'" in refuse(2, decoder, teacher)
    foreign = tasked.make_base(tmp_path / "foreign", kind="unigram", style="s-mask")
    assert "the teacher's vocabulary of 94 tokens differs from the student's of 338" in refuse(4, foreign, teacher)
    assert "no task head" in refuse(2, small, models["deep"])
    settings = ("--set", "tune.distill.state_weight=1", "--set", "tune.distill.layers=[1,9]")
    assert "layers [1, 9] do not map 2 student layers" in refuse(2, small, teacher, *settings)
    assert "nowhere" in refuse(4, small, tmp_path / "nowhere")
    labels = tmp_path / "labels.csv"
    labels.write_text(models["table"].read_text().replace("good", "fine"))
    assert "the teacher's labels are bad, good; the task's are bad, fine" in refuse(
        2, small, teacher, "--train", labels
    )
    assert "is null; set it to one of its kinds first" in _refuse_settings(models, tmp_path, capsys)


def _refuse_settings(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    command = ["finetune", models["small"], "--train", models["table"], "--out", tmp_path / "out"]
    return run_command(capsys, [*map(str, command), "--set", "tune.distill.temperature=4"], code=2).err
