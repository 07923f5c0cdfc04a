"""Rows that start from the settings of a recipe and change only what they are about."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import UsageError
from pretune.runs.recipes import RECIPES
from pretune.runs.recipes.facts import TextFacts
from pretune.runs.recipes.rules import NEW_WEIGHTS, Regularization
from pretune.studies.compare import CompareOptions, build_plan
from pretune.studies.plan import Plan, Step
from pretune.studies.planner import plan_study
from pretune.studies.recipe_base import plan_for_flops, plan_settings
from pretune.studies.results import build_results
from pretune.studies.study_dir import make_record
from tests.selection import keep_quick
from tests.studies.studies import make_study, make_tree

TEXT = TextFacts(bytes=250_000_000, tokens=60_000_000)
LOSS = {"loss": {"kind": "validation"}}


@pytest.mark.parametrize("name", RECIPES.list_names())
@pytest.mark.parametrize("flops", [1e13, 4e16])
def test_a_plan_takes_the_flops(name: str, flops: float) -> None:
    plan, size = plan_for_flops(RECIPES.get(name), TEXT, flops)
    assert 0.85 * flops < size.flops < 1.15 * flops
    settings = {setting.path: setting.value for setting in plan_settings(RECIPES.get(name), TEXT, flops)}
    assert settings["pretrain.model.width"] == size.settings["width"] and settings["tokenizer.vocab"] == size.vocab
    assert {path: settings[f"pretrain.{path}"] for path in plan.list_settings()} == plan.list_settings()


def plan_rows(folder: Path, rows: dict[str, Any], settings: dict[str, Any], **changes: Any) -> Plan:
    """Return the plan of a study whose class scale has these settings, at 1 GFLOP."""
    tree: dict[str, Any] = {**changes, "rows": rows, "measures": LOSS, "claims": [], "seeds": 1}
    scale = {"settings": {"recipe": {"shape": "encoder", "flops": 1e9}, **settings}}
    return plan_study(make_study(folder, **tree, scales={"class": scale}))


def read_runs(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the options of the pre-training of each row."""
    runs = {cell.row: plan.steps[cell.readings["loss"].step].options.list_changes() for cell in plan.cells}
    return {row: {**run.pop("overrides"), **run} for row, run in runs.items()}


def test_rows_are_the_base_and_their_change(tmp_path: Path) -> None:
    """The recipe goes before the settings of the study, and behind all others; a row may name another one."""
    rows = {
        "base": {},
        "rate": {"pretrain.objective.rate": 0.5},
        "wide": {"pretrain.model.width": 128},
        "decoder": {"recipe.shape": "decoder", "tokenizer": {"kind": "wordpiece", "style": "cls-sep"}},
        "bert": {"model": "bert-tiny"},
    }
    plan = plan_rows(tmp_path, rows, {"pretrain.train.lr": 1e-3})
    runs = read_runs(plan)
    base = runs["base"]
    assert base["model"] == "modernbert" and base["model.width"] == 64 and base["objective.rate"] == 0.3
    assert base["train.optimizer"]["kind"] == "muon" and base["train.lr"] == 1e-3
    assert base["train.samples_every"] == 0  # of the study
    assert runs["rate"] == {**base, "objective.rate": 0.5} and runs["wide"] == {**base, "model.width": 128}
    assert runs["decoder"]["model"] == "qwen3" and runs["decoder"]["objective"] == "causal"
    assert runs["decoder"]["model.tied"] is True and "objective.rate" not in runs["decoder"]
    assert "model.dropout" in base and runs["bert"]["model"] == "bert-tiny" and "model.dropout" not in runs["bert"]
    assert len({run["data"] for run in runs.values()}) == 1
    assert read_runs(plan_rows(tmp_path, rows, {"pretrain.train.lr": 1e-3})) == runs


def test_flops_are_those_of_the_budget(tmp_path: Path) -> None:
    stated = read_runs(plan_rows(tmp_path, {"base": {}}, {}, budget={"flops": 5e9}))["base"]
    budget = {"settings": {"recipe.shape": "encoder"}, "budget": {"flops": 1e9}}
    tree = make_tree(tmp_path, measures=LOSS, claims=[], seeds=1, rows={"base": {}}, scales={"class": budget})
    plan = plan_study(make_study(tmp_path, **tree))
    (run,) = [step for step in plan.steps.values() if step.action == "pretrain"]
    assert {**stated, "tokens": 0} == {**read_runs(plan)["base"], "tokens": 0}
    assert run.estimate.flops == pytest.approx(1e9, rel=0.01)
    for shape, flops in (("encoder", None), ("encoders", 1e9)):
        with pytest.raises(UsageError, match="flops" if flops is None else "encoder-decoder"):
            plan_rows(tmp_path, {"base": {"recipe": {"shape": shape, "flops": flops}}}, {})


def test_one_pre_training_decides_no_claim_about_its_loss(tmp_path: Path) -> None:
    for seed, outcome in ((0, "undecided"), ("$seed", "holds")):
        rows = {
            name: {"pretrain.objective.rate": rate, "pretrain.seed": seed}
            for name, rate in (("low", 0.1), ("high", 0.4))
        }
        plan = plan_study(make_study(tmp_path, seeds=3, rows=rows, measures=LOSS))
        losses = {key: 4.0 + step.label.startswith("high") for key, step in plan.steps.items()}
        records = {key: make_record(step, {"loss": losses[key]}, {}, {}) for key, step in plan.steps.items()}
        assert build_results(plan, records, {})["claims"][0]["outcome"] == outcome


def find_run(study: str, row: str) -> Step:
    """Return the pre-training of a row at the scale gpu: the last one that its cell needs."""
    plan = plan_gpu(study)
    cell = next(cell for cell in plan.cells if cell.row == row)
    return [step for key in plan.list_steps([cell]) if (step := plan.steps[key]).action == "pretrain"][-1]


@cache
def plan_gpu(study: str) -> Plan:
    return build_plan(CompareOptions(study=study, scale="gpu", seeds=1))


MASKED = [("electra-vs-mlm", "MLM"), ("mlm-vs-ltr-curve", "MLM"), ("masking-rate", "30 %")]
MASKED += [
    ("bert-size", "large"),
    ("distillation", "teacher"),
    ("scaling", "ten times"),
    ("bert-objectives", "random weights"),
]
NINE_MINUTES = [("history", "recipe"), ("adaptation", "LoRA"), ("pooling", "mean")]
SHARED = [
    *((("bert-objectives", "MLM"), other) for other in MASKED),
    *((("labels", "pre-trained here"), other) for other in NINE_MINUTES),
    (("bert-objectives", "LTR"), ("mlm-vs-ltr-curve", "LTR")),
]


@pytest.mark.parametrize(("first", "second"), keep_quick(SHARED, *SHARED[2:]))
def test_studies_of_the_scale_gpu_share_pretrainings(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert find_run(*first).key == find_run(*second).key


@pytest.mark.slow
def test_pretrainings_of_the_claims_have_the_size_of_the_plan() -> None:
    masked, replaced = (find_run("electra-vs-mlm", row).estimate.flops for row in ("MLM", "ELECTRA"))
    assert masked == pytest.approx(replaced, rel=0.01) and masked == pytest.approx(3e16, rel=0.02)
    assert find_run("history", "recipe").estimate.flops == pytest.approx(1.23e17, rel=0.02)
    settings = NEW_WEIGHTS.choose(240e6, 4.0, 512, Regularization())
    for row in ("GPT", "BERT", "RoBERTa", "ModernBERT"):
        options: Any = find_run("history", row).options
        assert {path: options.overrides[path] for path in settings} == {path: settings[path][0] for path in settings}
