"""Pre-training with a teacher: the student's own files, exact resume, other teachers, and cost."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError, UsageError
from pretune.runs.estimate import estimate_pretrain
from pretune.runs.prepare import prepare
from pretune.runs.pretrain_run import PretrainedRun
from pretune.text.tokenizer.training import train
from tests.conftest import Capture
from tests.runs.configs import build_pretrain_config
from tests.runs.small import FAST, Prepared, shrunk

TEACHER = {**shrunk("bert-tiny"), **FAST, "model.depth": 4, "data.length_schedule": None}
STUDENT = {**TEACHER, "model.depth": 2, "train.checkpoint_every": 2}
NARROW = {**STUDENT, "model.width": 16} | {
    f"objective.{name}": value
    for name, value in {"state_weight": 1, "embedding_weight": 1, "attention_weight": 1}.items()
}


def run(data: Path, out: Path, overrides: dict[str, Any], name: str = "bert-tiny", **options: Any) -> PretrainedRun:
    options = {"objective": "masked", "steps": 4, **options}
    return pt.pretrain(name, data=data, out=out, overrides=overrides, device="cpu", **options)


@pytest.fixture(scope="module")
def teacher(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(prepared(), tmp_path_factory.mktemp("teacher") / "run", TEACHER).path


def resume_from_step_two(student: Path, copy: Path) -> Path:
    """A copy of a run of four steps as it was after two of them, resumed."""
    shutil.copytree(student, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    for name in ("model.safetensors", "config.json", "MANIFEST.json", "cost.json"):
        (copy / name).unlink()
    return pt.pretrain(out=copy, resume=True, device="cpu").path


@pytest.mark.parametrize("overrides", [NARROW, pytest.param(STUDENT, marks=pytest.mark.slow)])
def test_a_resumed_student_is_the_same(
    prepared: Prepared, teacher: Path, tmp_path: Path, overrides: dict[str, Any]
) -> None:
    """Projections are resumed from checkpoints, and are no part of the student."""
    student = run(prepared(), tmp_path / "student", overrides, teacher=teacher)
    resumed = resume_from_step_two(student.path, tmp_path / "resumed")
    first, second = (load_file(path / "model.safetensors") for path in (student.path, resumed))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert not any("projection" in name for name in first)
    stored = load_file(student.path / "checkpoints" / "step-00000004" / "model.safetensors")
    assert any("projections.states" in name for name in stored) == (overrides is NARROW)
    assert pt.load(resumed).spec == pt.load(student.path).spec
    settings = json.loads((student.path / "run.json").read_text())
    assert settings["objective"]["kind"] == "distill" and settings["objective"]["teacher"] == str(teacher)
    assert settings["objective"]["base"]["kind"] == "masked" and len(settings["environment"]["teacher"]) == 64
    line = json.loads((student.path / "metrics.jsonl").read_text().splitlines()[1])
    assert {"masked", "soft", "cosine"} <= {*line}


@pytest.mark.slow
def test_the_teacher_is_checked_when_a_run_is_resumed(prepared: Prepared, teacher: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(teacher, tmp_path / "teacher")
    student = run(prepared(), tmp_path / "student", STUDENT, teacher=moved)
    other = run(prepared(), tmp_path / "other", {**TEACHER, "train.seed": 1})
    shutil.rmtree(moved)
    shutil.copytree(other.path, moved)
    with pytest.raises(CheckpointError, match="teacher"):
        resume_from_step_two(student.path, tmp_path / "resumed")


@pytest.mark.slow
def test_cost_counts_the_teacher(prepared: Prepared, teacher: Path, tmp_path: Path) -> None:
    alone = run(prepared(), tmp_path / "alone", STUDENT)
    student = run(prepared(), tmp_path / "student", STUDENT, teacher=teacher, config=None)
    teacher_run = json.loads((teacher / "cost.json").read_text())
    total, part = student.summary["cost"]["flops"], student.summary["teacher_flops"]
    assert total - part == pytest.approx(alone.summary["cost"]["flops"], rel=1e-6)
    assert part == pytest.approx(teacher_run["flops"] / 3, rel=1e-6)  # forward passes over the same batches
    assert json.loads((student.path / "cost.json").read_text())["run"]["teacher_flops"] == part
    config = build_pretrain_config(
        "bert-tiny", data=prepared(), objective="masked", teacher=teacher, steps=4, overrides=STUDENT, device="cpu"
    )
    plain = build_pretrain_config("bert-tiny", data=prepared(), objective="masked", steps=4, overrides=STUDENT)
    assert estimate_pretrain(config)["flops"] > 1.5 * estimate_pretrain(plain)["flops"]


@pytest.mark.slow
def test_students_start_from_layers_of_the_teacher(prepared: Prepared, teacher: Path, tmp_path: Path) -> None:
    """With a learning rate of almost nothing the student stays what it was at the start."""
    still = {**STUDENT, "train.lr": 1e-12}
    copied = run(prepared(), tmp_path / "copied", still, teacher=teacher, steps=1).load()
    for layer, teacher_layer in ((0, 0), (1, 3)):
        weight = pt.load(teacher).encoder[teacher_layer].attention.q.weight  # type: ignore[attr-defined]
        torch.testing.assert_close(copied.encoder[layer].attention.q.weight, weight)
    random = run(prepared(), tmp_path / "r", {**still, "objective.init": "random"}, teacher=teacher, steps=1).load()
    assert not torch.allclose(random.tokens.weight, pt.load(teacher).tokens.weight)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_families_of_one_vocabulary(prepared: Prepared, teacher: Path, tmp_path: Path) -> None:
    electra = {**shrunk("electra-small"), **FAST, "model.depth": 1, "data.length_schedule": None}
    student = run(prepared(), tmp_path / "student", electra, "electra-small", teacher=teacher, steps=1)
    assert student.summary["teacher_flops"] > 0


def test_teachers_that_do_not_fit(prepared: Prepared, teacher: Path, tmp_path: Path, capsys: Capture) -> None:
    def refuse(code: int, *words: object) -> str:
        settings = [
            word for path, value in STUDENT.items() for word in ("--set", f"{path}={value}".replace("None", "null"))
        ]
        command = ["pretrain", "bert-tiny", "--objective", "masked", "--steps", "1", "--device", "cpu", *settings]
        assert main([*command, "--out", str(tmp_path / "student"), *map(str, words)]) == code
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert not (tmp_path / "student").exists()
        return line

    data, other = prepared(), prepared("bpe", "endoftext")
    assert "vocabulary" in refuse(4, "--data", prepared("unigram", "s-mask"), "--teacher", teacher)
    line = refuse(2, "--data", data, "--teacher", teacher, "--set", "objective.state_weight=1",
                  "--set", "objective.layers=[1,9]")  # fmt: skip
    assert "layers [1, 9] do not map 2 student layers" in line
    assert "needs a teacher" in refuse(2, "--data", data, "--objective", "distill")
    assert "nowhere" in refuse(4, "--data", data, "--teacher", tmp_path / "nowhere")
    decoder = run(other, tmp_path / "gpt", {**shrunk("gpt2"), **FAST}, "gpt2", objective="causal", steps=1).path
    assert "vocabulary" in refuse(4, "--data", data, "--teacher", decoder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objective", "kind", "style"),
    [("gpt2", "causal", "bpe", "endoftext"), ("t5-table", "span_corruption", "unigram", "sentinels")],
)
def test_decoders_and_encoder_decoders(
    prepared: Prepared, tmp_path: Path, name: str, objective: str, kind: str, style: str
) -> None:
    data, small = prepared(kind, style), {**shrunk(name), **FAST, "data.length_schedule": None}
    teacher = run(data, tmp_path / "teacher", {**small, "model.depth": 2}, name, objective=objective).path
    for weights in ({}, {"objective.attention_weight": 1, "objective.state_weight": 1}):
        out = tmp_path / f"student-{len(weights)}"
        student = run(data, out, {**small, "model.depth": 1} | weights, name, objective=objective, teacher=teacher)
        assert student.loss is not None and student.summary["teacher_flops"] > 0


def test_the_default_objective_of_a_family_is_the_base(prepared: Prepared, teacher: Path) -> None:
    config = build_pretrain_config("roberta-base", data=prepared(), teacher=teacher, device="cpu")
    plain = build_pretrain_config("roberta-base", data=prepared(), device="cpu")
    assert config.objective.base == plain.objective and config.objective.soft_weight == 5  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"the objective 'replaced_token' .*cannot be distilled"):
        build_pretrain_config("electra-small", data=prepared(), teacher=teacher, device="cpu")


@pytest.mark.slow
def test_a_distilled_student_beats_the_same_student_alone(tmp_path: Path) -> None:
    """At equal steps, from the same random weights, on text in which a word follows from its neighbours."""
    rng = random.Random(1)
    words = [
        first + second for first in ("ba", "de", "fi", "go", "ku", "la") for second in ("mi", "no", "pe", "ra", "su")
    ]
    followers = {word: rng.sample(words, 3) for word in words}
    documents = []
    for _ in range(600):
        text = [rng.choice(words)]
        for _ in range(40):
            text += rng.choices(followers[text[-1]], (6, 3, 1))
        documents.append(" ".join(text))
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    train("words", documents, vocab=60, style="cls-sep").save(tmp_path / "tokenizer")
    prepare([tmp_path / "text.txt"], tokenizer=tmp_path / "tokenizer", out=tmp_path / "data", holdout=0.1, workers=0)
    settings = {**TEACHER, "train.batch_tokens": 512, "train.eval_tokens": 2048, "train.eval_every": 1000}
    settings |= {"train.samples_every": 0, "train.lr": 2e-3, "data.max_length": 48}
    teacher = run(tmp_path / "data", tmp_path / "teacher", settings, steps=300, paper=True).path
    settings |= {"model.depth": 2}
    random_start = {**settings, "objective.init": "random"}
    alone = run(tmp_path / "data", tmp_path / "alone", settings, steps=80, paper=True)
    distilled = run(tmp_path / "data", tmp_path / "random", random_start, teacher=teacher, steps=80, paper=True)
    copied = run(tmp_path / "data", tmp_path / "copied", settings, teacher=teacher, steps=80, paper=True)
    assert alone.loss is not None and distilled.loss is not None and copied.loss is not None
    assert copied.loss < distilled.loss < alone.loss - 0.02, (copied.loss, distilled.loss, alone.loss)
    assert copied.loss < alone.loss - 0.05
