"""Files of format 1, written at commit d5ed34f: they load, predict, resume, repeat and report as they did.

`tests/fixtures/v0` was made from inside that directory, with relative paths: prepared data, a pre-training run, the
same run interrupted after step 3 of 6, and runs fine-tuned from it: in full, with LoRA, and with LoRA interrupted
after step 25 of 40.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.cli import main
from pretune.core.config import read_records
from pretune.core.errors import CheckpointError
from pretune.core.migration import FORMAT_VERSION, migrate_run
from pretune.runs.config import PretrainConfig, read_config
from pretune.runs.defaults import build_pretrain_config
from pretune.runs.finetune.defaults import build_finetune_config
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.saved_task import SavedTask
from pretune.training.records import MetricsLine

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0"
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # another processor may differ in the last bits


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixtures, as working directory."""
    shutil.copytree(FIXTURES, tmp_path / "v0")
    monkeypatch.chdir(tmp_path / "v0")
    return tmp_path / "v0"


def read_losses(run: Path) -> list[float]:
    lines = read_records(MetricsLine, run / "metrics.jsonl", CheckpointError)
    return [line["loss"] for line in lines if line.get("loss") is not None]


def assert_same_weights(file: Path, expected: Path) -> None:
    tensors, reference = load_file(file), load_file(expected)
    assert tensors.keys() == reference.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, reference[name], **TOLERANCE, msg=name)


def read_predictions(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]


def test_models_load(files: Path) -> None:
    assert pt.load(files / "pretrained").spec.width == 16
    head = pt.load(files / "finetuned").spec
    assert head.labels == ("bad", "good") and head.pooling.mode == "mean"  # type: ignore[attr-defined]
    assert pt.load(files / "lora").spec.labels == ("bad", "good")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["finetuned", "lora"])
def test_predictions_are_those_stored(files: Path, name: str) -> None:
    texts = [line.rpartition(",")[0] for line in (files / "dev.csv").read_text().splitlines()[1:]]
    stored = read_predictions(files / name)
    for answer, expected in zip(FinetunedRun.open(files / name).predict(texts), stored, strict=True):
        assert answer["label"] == expected["label"]
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_an_interrupted_pretraining_run_resumes(files: Path) -> None:
    assert main(["--quiet", "pretrain", "--resume", "--out", "interrupted"]) == 0
    assert_same_weights(files / "interrupted/model.safetensors", files / "pretrained/model.safetensors")
    assert read_losses(files / "interrupted") == pytest.approx(read_losses(files / "pretrained"), abs=1e-5)


def test_an_interrupted_finetuning_run_resumes(files: Path) -> None:
    assert main(["--quiet", "finetune", "--resume", "--out", "lora-interrupted"]) == 0
    for name in ("adapter_model.safetensors", "head.safetensors"):
        assert_same_weights(files / "lora-interrupted" / name, files / "lora" / name)
    labels = [[line["label"] for line in read_predictions(files / run)] for run in ("lora-interrupted", "lora")]
    assert labels[0] == labels[1]


def test_other_settings_do_not_resume(files: Path) -> None:
    assert main(["--quiet", "pretrain", "--resume", "--out", "interrupted", "--set", "train.seed=4"]) == 4
    assert main(["--quiet", "finetune", "--resume", "--out", "lora-interrupted", "--set", "train.seed=4"]) == 4


def test_runs_are_repeated_from_their_settings(files: Path) -> None:
    assert main(["--quiet", "pretrain", "--config", "pretrained/run.json", "--out", "again"]) == 0
    assert read_losses(files / "again") == pytest.approx(read_losses(files / "pretrained"), abs=1e-5)
    tree = json.loads((files / "again/run.json").read_text())
    assert tree["format"] == FORMAT_VERSION and tree["environment"]["steps"] == 6 and "kind" not in tree["train"]
    assert main(["--quiet", "finetune", "--config", "finetuned/run.json", "--out", "tuned"]) == 0
    assert read_losses(files / "tuned") == pytest.approx(read_losses(files / "finetuned"), abs=1e-5)


def test_reports_and_checks(files: Path) -> None:
    runs = ["pretrained", "finetuned", "lora"]
    assert main(["--quiet", "report", *runs, "--out", "report.html"]) == 0
    assert (files / "report.html").is_file()
    for run in runs:
        assert main(["--quiet", "verify", run]) == 0


def test_settings_are_migrated_and_files_stay(files: Path) -> None:
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    settings = PretrainConfig.from_dict(read_config(files / "pretrained"))
    assert settings.data.length_schedule == (0.5, 16) and settings.train.cuda_graphs is False
    assert settings.train.attention_backend == "eager" and settings.train.max_checkpoints == 2
    assert build_pretrain_config(config=files / "pretrained") == settings
    tuning = build_finetune_config(config=files / "finetuned/run.json")
    assert tuning.train.eval_examples == 24 and tuning.tune.head == "random" and tuning.tune.pooling is not None
    assert SavedTask.read(files / "finetuned").task_kind == "classification"
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


def test_a_newer_format_is_refused(files: Path) -> None:
    for name, verb in (("pretrained/run.json", "pretrain"), ("finetuned/run.json", "finetune")):
        tree = json.loads((files / name).read_text())
        (files / name).write_text(json.dumps({**tree, "format": FORMAT_VERSION + 1}))
        assert main(["--quiet", verb, "--config", name, "--out", "no"]) == 2
    with pytest.raises(CheckpointError, match=r"format 0\b"):
        migrate_run({"format": 0}, CheckpointError, "run.json")
