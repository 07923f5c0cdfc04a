"""Runs of a number of tokens: they read as many, in the steps that are stored, planned and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.runs.data_phases import DataPhases
from pretune.runs.estimate import estimate_pretrain
from pretune.runs.options import PretrainOptions, TokenizerOptions
from pretune.runs.pretrain_run import PretrainedRun
from pretune.runs.samples import SampleHook
from pretune.runs.training_data import DataFacts, open_training_data
from pretune.studies.estimates import Estimator
from pretune.training.distributed import Ranks
from pretune.training.run_logger import read_metrics
from tests.conftest import Patch
from tests.runs.configs import build_pretrain_config
from tests.runs.small import FAST, Prepared, shrunk
from tests.selection import keep_quick

FAST = {**FAST, "train.samples_every": 0}
RAGGED = {**FAST, "data.max_length": 30, "train.batch_tokens": 256}
"""Eight rows of 30 tokens: 16 tokens of each batch stay empty."""
TOKENS = 3000
CASES: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "packed rows": ("bert-tiny", "masked", ("wordpiece", "cls-sep"), FAST),
    "blocks": ("gpt2", "causal", ("bpe", "endoftext"), {**RAGGED, "data.samples": "blocks"}),
    "ragged documents": ("gpt2", "causal", ("bpe", "endoftext"), {**RAGGED, "data.samples": "documents"}),
    "two phases": ("bert-tiny", "masked", ("wordpiece", "cls-sep"), {**RAGGED, "data.length_schedule": [0.7, 16]}),
    "micro-batches": ("bert-tiny", "next_sentence", ("wordpiece", "cls-sep"), {**RAGGED, "train.micro_tokens": 64}),
    "span corruption": ("t5-small", "span_corruption", ("unigram", "sentinels"), FAST),
    "blocks of span corruption": (
        "t5-small", "span_corruption", ("unigram", "sentinels"), {**FAST, "data.samples": "blocks"},
    ),
    "random lengths": ("bart-base", "denoising", ("bpe", "s-mask"), FAST),
    "masked span": ("mass", "masked_seq2seq", ("wordpiece", "cls-sep"), FAST),
    "pairs": ("t5-small", "supervised", ("unigram", "sentinels", "pairs"), FAST),
    "mixed objectives": ("t5-small", "mixture", ("unigram", "sentinels", "both"), FAST),
    "mixed sources": (
        "t5-small",
        "mixture",
        ("unigram", "sentinels", "both"),
        {**FAST, "data.mixing": {"kind": "weighted", "weights": [1, 2]}},
    ),
}  # fmt: skip
QUICK = ("ragged documents", "two phases", "span corruption", "masked span")


def list_options(name: str, prepared: Prepared, **options: Any) -> dict[str, Any]:
    """Return the arguments of `pt.pretrain` for a case."""
    model, objective, data, overrides = CASES[name]
    settings = {**shrunk(model), "data.length_schedule": None, **overrides, **options.pop("overrides", {})}
    return {"model": model, "objective": objective, "data": prepared(*data), "overrides": settings, **options}


def read_tokens(run: PretrainedRun) -> list[int]:
    """Return the tokens that were read after each step."""
    return [line["tokens"] for line in read_metrics(run.path) if "tokens" in line and "loss" in line]


@pytest.mark.parametrize("name", keep_quick([*CASES], *QUICK))
def test_a_run_reads_its_tokens(name: str, prepared: Prepared, tmp_path: Path) -> None:
    """The last step is the first that reaches them, and the dry run knows it; the schedule ends there."""
    options = list_options(name, prepared, tokens=TOKENS)
    run = pt.pretrain(**options, out=tmp_path / "run")
    read = read_tokens(run)
    assert read[-1] == run.summary["tokens"] >= TOKENS > read[-2], "not the first step that reaches the tokens"
    assert len(read) == run.summary["steps"] == json.loads((run.path / "run.json").read_text())["environment"]["steps"]
    estimate = estimate_pretrain(build_pretrain_config(**options))
    assert (estimate["steps"], estimate["tokens"]) == (run.summary["steps"], run.summary["tokens"])
    assert estimate["flops"] == run.summary["tokens"] * estimate["flops_per_token"]


def test_the_report_of_the_defect(prepared: Prepared, tmp_path: Path) -> None:
    """Seven rows of 64 tokens in a batch of at most 500."""
    overrides = {**shrunk("gpt2"), **FAST, "data.max_length": 64, "train.batch_tokens": 500, "data.samples": "blocks"}
    options = {"data": prepared("bpe", "endoftext"), "overrides": overrides}
    run = pt.pretrain("gpt2", **options, tokens=20_000, out=tmp_path / "run")
    assert 20_000 <= run.summary["tokens"] < 20_448 and run.summary["steps"] > 20_000 / 448


def test_full_batches_are_as_they_were(prepared: Prepared) -> None:
    """Batches that blocks fill, before the last block, which is shorter: tokens divided by those of a batch."""
    overrides = {"data.samples": "blocks", "data.max_length": 32, "train.batch_tokens": 256}
    options = list_options("blocks", prepared, overrides=overrides)
    for steps in (1, 3, 5):
        estimate = estimate_pretrain(build_pretrain_config(**options, tokens=steps * 256))
        assert (estimate["steps"], estimate["tokens"]) == (steps, steps * 256)


@pytest.mark.parametrize("name", ["two phases", "random lengths"])
def test_ranks_do_not_change_the_steps(name: str, prepared: Prepared) -> None:
    settings = build_pretrain_config(**list_options(name, prepared, tokens=TOKENS))
    source = open_training_data(settings)
    steps = {DataPhases.open(settings, source, Ranks(torch.device("cpu"), world=world)).steps for world in (1, 2)}
    assert len(steps) == 1


def stop_at(step: int, monkeypatch: Patch, options: dict[str, Any], out: Path) -> None:
    """Start a run that fails at a step."""
    with monkeypatch.context() as patch:
        patch.setattr(SampleHook, "__call__", lambda self, loop, metrics: 1 / (loop.state.step - step))
        with pytest.raises(ZeroDivisionError):
            pt.pretrain(**options, out=out)


@pytest.mark.parametrize("name", keep_quick(["two phases", "random lengths"], "two phases"))
def test_a_resumed_run_ends_at_the_same_step(name: str, prepared: Prepared, tmp_path: Path, monkeypatch: Patch) -> None:
    options = list_options(name, prepared, tokens=TOKENS, overrides={"train.checkpoint_every": 2})
    whole = pt.pretrain(**options, out=tmp_path / "whole")
    stop_at(7, monkeypatch, options, tmp_path / "part")
    resumed = pt.pretrain(out=tmp_path / "part", resume=True)
    assert (resumed.summary["steps"], resumed.summary["tokens"]) == (whole.summary["steps"], whole.summary["tokens"])
    weights = [(run.path / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]


def test_a_run_keeps_the_steps_it_was_started_with(prepared: Prepared, tmp_path: Path, monkeypatch: Patch) -> None:
    """A run of an earlier version, which counted other steps, goes on along its schedule."""
    options = list_options("ragged documents", prepared, tokens=TOKENS, overrides={"train.checkpoint_every": 2})
    stop_at(5, monkeypatch, options, tmp_path / "run")
    file = tmp_path / "run/run.json"
    tree = json.loads(file.read_text())
    tree["environment"]["steps"] -= 2
    file.write_text(json.dumps(tree))
    resumed = pt.pretrain(out=tmp_path / "run", resume=True)
    assert resumed.summary["steps"] == tree["environment"]["steps"]
    assert json.loads(file.read_text())["environment"]["steps"] == tree["environment"]["steps"]


def test_a_study_plans_the_tokens_of_full_rows() -> None:
    """Without data: those of the rows that a batch has, whatever `train.batch_tokens` leaves over."""
    estimator = Estimator("cpu")
    overrides = {"data.max_length": 64, "train.batch_tokens": 500, "model.width": 32, "model.heads": 2}
    tokenizer = TokenizerOptions(kind="bpe", vocab=300, style="endoftext")

    def estimate(**length: Any) -> Any:
        options = PretrainOptions(model="gpt2", data="data", overrides=overrides, **length)
        model = estimator.resolve_model(options, tokenizer, DataFacts("data", 10**6, 1), teacher=None, base=None)
        assert model.batch_tokens == 448
        return estimator.estimate_pretrain(model)

    assert estimate(steps=10).tokens == 4480 and estimate(tokens=20_000).tokens == 20_000
    assert estimate(steps=10).flops == pytest.approx(estimate(tokens=4480).flops)
