"""Short runs of published models: settings fitted to the run, or the paper's; what users set, what run.json holds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.families import FAMILIES
from pretune.runs import short_runs
from pretune.runs.defaults import PaperRequest, build_pretrain_config, open_request
from pretune.runs.options import PretrainOptions
from pretune.runs.recipes.facts import DeviceFacts
from pretune.runs.recipes.plan import PlannedRun
from pretune.runs.recipes.rules import NEW_WEIGHTS, Regularization
from pretune.training.config import Cosine, LinearSchedule, Stable
from pretune.training.optim import AdamW
from pretune.training.optim.lamb import Lamb
from pretune.training.optim.muon import Muon
from tests.conftest import Capture, Patch, run_command
from tests.runs.small import FAST, Prepared

CPU = torch.device("cpu")


@pytest.fixture
def data(prepared: Prepared) -> Path:
    return prepared()


def plan(name: str | None, data: Path, **options: Any) -> PlannedRun:
    request = open_request(PretrainOptions(model=name, data=data, device="cpu", **options))
    assert isinstance(request, PaperRequest)
    return short_runs.plan_named_run(request, bool(options.get("paper")), CPU)


def test_every_family_knows_the_tokens_of_its_paper() -> None:
    for name in FAMILIES:
        family = FAMILIES.get(name)
        for size in (None, *family.sizes):
            paper = family.get_training(size)
            assert paper is None or (paper.tokens is not None and 1e7 < paper.tokens < 1e14), (name, size)


class TestChoice:
    def test_short_runs_have_the_settings_of_recipes(self, data: Path) -> None:
        planned = plan("bert-tiny", data, tokens=10**8)
        config, record, reason = planned.config, planned.plan, planned.reason
        chosen = NEW_WEIGHTS.choose(1e8, 1e8 / 3000, 128, Regularization())
        assert config.train.batch_tokens == chosen["train.batch_tokens"][0] == 32_768
        assert isinstance(config.train.optimizer, Muon) and isinstance(config.train.schedule, Stable)
        assert config.train.lr == config.train.optimizer.lr == 3e-3 and config.train.optimizer.weight_decay == 0.3
        assert record is not None and {choice["path"] for choice in record["choices"]} == {*chosen}
        assert "--paper" in reason and "131B" in reason
        paper = build_pretrain_config(PretrainOptions(model="bert-tiny", data=data, device="cpu", tokens=10**8))
        assert (config.model, config.objective, config.data) == (paper.model, paper.objective, paper.data)

    def test_long_ones_those_of_the_paper(self, data: Path) -> None:
        for options in ({"tokens": 2 * 10**9}, {"tokens": 1000, "paper": True}, {"steps": 10**6}):
            planned = plan("bert-tiny", data, **options)
            config, record = planned.config, planned.plan
            assert isinstance(config.train.optimizer, AdamW) and record is None
            assert isinstance(config.train.schedule, LinearSchedule)

    def test_steps_keep_their_batch(self, data: Path) -> None:
        assert plan("gpt2", data, steps=1000).config.train.batch_tokens == 2048
        assert plan("gpt2", data, epochs=1.0).config.train.batch_tokens == 1024

    def test_a_budget_is_measured_in_tokens(self, data: Path, monkeypatch: Patch) -> None:
        speeds: list[float] = []
        for flops in (1e11, 1e15):
            facts = DeviceFacts(name="x", device_type="cpu", flops=flops, bandwidth=flops, memory=1e12)
            monkeypatch.setattr(DeviceFacts, "measure", lambda *_, facts=facts: facts)
            planned = plan("bert-tiny", data, budget="10m")
            config, record = planned.config, planned.plan
            assert record is not None or flops == 1e15
            speeds.append(0 if record is None else record["expected"]["tokens"])
            assert isinstance(config.train.optimizer, Muon if record else AdamW)
        assert 1e5 < speeds[0] < 1e9 and not speeds[1]

    def test_wide_models_have_lower_rates(self) -> None:
        rates = [NEW_WEIGHTS.choose(1e8, 1, width, Regularization())["train.lr"][0] for width in (64, 1024, 4096)]
        assert rates == [3e-3, 3e-3, 7.5e-4]

    def test_what_is_not_measured_has_those_of_the_paper(self, prepared: Prepared, data: Path, tmp_path: Path) -> None:
        words, pieces = prepared("words", "plain"), prepared("unigram", "sentinels")
        exempt = ("ulmfit", words), ("elmo-small", words), ("electra-small", data), ("t5-small", pieces)
        assert plan("t5v1.1-small", pieces, steps=5).plan is not None
        for name, folder in exempt:
            planned = plan(name, folder, steps=5)
            config, record, reason = planned.config, planned.plan, planned.reason
            assert record is None and not isinstance(config.train.optimizer, Muon) and "paper" in reason
        pt.pretrain("bert-tiny", data=data, steps=1, out=tmp_path / "run", overrides=FAST)
        options = {"init_from": tmp_path / "run"}, {"teacher": tmp_path / "run"}
        for option in options:
            name = None if "init_from" in option else "bert-tiny"
            assert plan(name, data, objective="masked", steps=5, **option).plan is None


class TestOverrides:
    def test_a_user_decides(self, data: Path, tmp_path: Path) -> None:
        def train(**sets: Any) -> Any:
            return plan(
                "bert-tiny", data, tokens=10**6, overrides={f"train.{k}": v for k, v in sets.items()}
            ).config.train

        assert train(lr="1e-3").optimizer == replace(train().optimizer, lr=1e-3)
        assert train(batch_tokens=512).batch_tokens == 512
        assert train(optimizer="lamb").optimizer == Lamb() and isinstance(train(optimizer="lamb").schedule, Stable)
        assert train(schedule="cosine").schedule == Cosine() and isinstance(train(schedule="cosine").optimizer, Muon)
        assert train(**{"optimizer.weight_decay": 0.2}).optimizer == replace(train().optimizer, weight_decay=0.2)
        assert train(**{"optimizer.lr": 1e-4}).lr == 1e-4
        assert train(**{"schedule.floor": 0.1}).schedule == replace(train().schedule, floor=0.1)

    def test_fields_of_the_papers_parts_keep_them(self, data: Path) -> None:
        betas = plan("bert-tiny", data, tokens=10**6, overrides={"train.optimizer.betas": [0.8, 0.9]})
        paper = plan("bert-tiny", data, tokens=10**6, paper=True).config.train
        assert betas.config.train.optimizer == replace(paper.optimizer, betas=(0.8, 0.9))
        assert betas.plan is not None and [c["path"] for c in betas.plan["choices"]] == [
            "train.batch_tokens",
            "train.schedule",
        ]

    def test_a_file_counts_as_well(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "part.yaml").write_text(
            "model: bert-tiny\ntrain: {lr: 1e-3, schedule: {kind: cosine}, tokens: 1000000}\n"
        )
        config = plan(None, data, config=tmp_path / "part.yaml").config
        assert isinstance(config.train.optimizer, Muon) and (config.train.lr, config.train.schedule) == (1e-3, Cosine())


OPTIONS: dict[str, Any] = {"objective": "masked", "epochs": 2.0}


class TestRuns:
    @pytest.mark.slow
    def test_a_run_keeps_what_it_stored(self, data: Path, tmp_path: Path, monkeypatch: Patch) -> None:
        out = tmp_path / "run"
        run = pt.pretrain("bert-tiny", data=data, out=out, overrides=FAST, **OPTIONS)
        tree = json.loads((out / "run.json").read_text())
        assert tree["environment"]["plan"]["recipe"] is None and tree["train"]["optimizer"]["kind"] == "muon"
        assert "Settings of a short run" in (out / "README.md").read_text()
        again = pt.pretrain(config=out / "run.json", out=tmp_path / "again")
        assert again.loss == run.loss
        monkeypatch.setattr(short_runs, "plan_named_run", None)  # what is stored is not fitted again
        same = pt.pretrain("bert-tiny", data=data, out=out, overrides=FAST, resume=True, **OPTIONS)
        assert same.summary == run.summary
        with pytest.raises(CheckpointError, match=r"train\.lr"):
            pt.pretrain("bert-tiny", data=data, out=out, resume=True, overrides={**FAST, "train.lr": 1e-4}, **OPTIONS)
        with pytest.raises(UsageError, match="--paper"):
            pt.pretrain(config=out / "run.json", paper=True, out=tmp_path / "other")

    def test_the_papers_settings_can_be_resumed(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        run = pt.pretrain("bert-tiny", data=data, out=out, paper=True, overrides=FAST, **OPTIONS)
        tree = json.loads((out / "run.json").read_text())
        assert "plan" not in tree["environment"] and tree["train"]["optimizer"]["kind"] == "adam_w"
        same = pt.pretrain("bert-tiny", data=data, out=out, paper=True, overrides=FAST, resume=True, **OPTIONS)
        assert same.summary == run.summary


def test_the_command_line_says_which(data: Path, capsys: Capture) -> None:
    words = ["pretrain", "bert-tiny", f"--data={data}", "--tokens=1M", "--device=cpu", "--dry-run"]
    out, err = run_command(capsys, words)
    assert err == "" and "kind: muon" in out and "--paper" in out and "pretrain encoder" in out
    assert "kind: adam_w" in run_command(capsys, [*words, "--paper"])[0]
    assert "--from" in run_command(capsys, ["pretrain", "modernbert", *words[2:]])[0]
    for other, tokens in (("modernbert", "4M"), ("gpt2", "1M")):  # which get beyond frequencies
        words = ["pretrain", other, f"--data={data}", f"--tokens={tokens}", "--device=cpu", "--dry-run"]
        assert "probably" not in run_command(capsys, words)[0]
