"""Pre-training on a task's texts, then the task, in one command: ULMFiT's stages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint
from pretune.runs.finetune import language_model
from pretune.runs.finetune.entry import build_plan, finetune
from pretune.runs.finetune.estimate import estimate_finetune
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.task_data import open_task
from pretune.runs.options import PretrainOptions
from pretune.runs.task_options import FinetuneOptions
from tests.runs import tasked
from tests.runs.configs import build_finetune_config

QUICK: dict[str, Any] = {"train.workers": 0, "train.batch": 16, "tune.lm_epochs": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("ulmfit"), "ulmfit-small", "words", "plain", hidden=12)


def tune(base: Path, folder: Path, **options: Any) -> FinetunedRun:
    table = folder.parent / "classes.csv"
    if not table.exists():
        tasked.classes(table)
    return finetune(base, out=folder, train=table, steps=6, baselines="none", overrides=QUICK, device="cpu", **options)


@pytest.mark.slow
def test_three_stages_are_one_command(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task starts from a language model of its texts, with the paper's settings; a killed one is resumed."""
    run = tune(base, tmp_path / "run")
    stage = tmp_path / "run" / "language_model"
    settings = json.loads((stage / "run" / "run.json").read_text())
    assert settings["objective"]["activation_penalty"] == 2 and settings["train"]["init_from"] == str(base)
    assert (settings["train"]["lr"], settings["train"]["epochs"]) == (0.004, 2)
    assert settings["train"]["schedule"]["kind"] == "slanted" and settings["train"]["layer_decay"] == 1 / 2.6
    texts = [json.loads(line)["text"] for line in (stage / "texts.jsonl").read_text().splitlines()]
    assert len(texts) == len(set(texts)) and 90 <= len(texts) <= 96  # the training split alone
    first, middle, last = pt.load(base), pt.load(stage / "run"), checkpoint.load(tmp_path / "run")
    assert not torch.equal(*(model.decoder[1].recurrent.weight for model in (first, middle)))
    assert last.spec.decoder == FAMILIES.get("ulmfit").tuning.build_spec(middle.spec).decoder != middle.spec.decoder
    assert last.spec.decoder.blocks[-1].weight_dropout == 0.5
    expected = run.predict(["the lovely sea.", "the dreadful sea."])

    tuning = build_finetune_config(base, train=tmp_path / "classes.csv", steps=6, overrides=QUICK)
    plan = build_plan(tuning, FinetuneOptions())
    forecast = estimate_finetune(tuning, plan)
    trials = estimate_finetune(tuning.replace({"tune.lm_epochs": 0}), plan)
    cost = json.loads((stage / "run" / "cost.json").read_text())
    assert forecast["language_model"]["steps"] == cost["run"]["steps"] and trials["language_model"] is None
    assert forecast["language_model"]["flops"] == pytest.approx(cost["flops"], rel=0.2)
    assert forecast["flops"] == pytest.approx(trials["flops"] + forecast["language_model"]["flops"])
    monkeypatch.setattr(language_model, "SAMPLE_TEXTS", 40)  # every third text
    sampled = language_model.estimate_language_model(tuning, open_task(tuning.task))
    assert sampled["tokens"] == pytest.approx(forecast["language_model"]["tokens"], rel=0.25)

    calls: list[Path] = []

    def kill(options: PretrainOptions, **_: Any) -> Any:
        calls.append(options.out)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(language_model, "run_pretrain", kill)
        with pytest.raises(KeyboardInterrupt):
            tune(base, tmp_path / "killed")
    again = finetune(out=tmp_path / "killed", resume=True, device="cpu")
    assert calls == [tmp_path / "killed" / "language_model" / "run"]
    assert again.predict(["the lovely sea.", "the dreadful sea."]) == expected


def test_the_paper_decides_unless_a_method_is_chosen(base: Path, tmp_path: Path) -> None:
    table = tasked.classes(tmp_path / "classes.csv")
    paper = build_finetune_config(base, train=table)
    assert (paper.train.lr, paper.train.batch, paper.tune.lm_epochs) == (1e-2, 64, 5)
    assert paper.train.optimizer.betas == (0.7, 0.99) and paper.tune.layer_decay == 1 / 2.6
    assert paper.to_dict()["method"]["kind"] == "gradual" and paper.train.schedule.ratio == 32
    chosen = build_finetune_config(base, train=table, overrides={"tune.lm_epochs": 0, "train.lr": 1e-3})
    assert (chosen.tune.lm_epochs, chosen.train.lr) == (0, 1e-3)
    full = build_finetune_config(base, train=table, method="full")
    assert full.tune.lm_epochs == 0 and full.to_dict()["method"]["kind"] == "full"
