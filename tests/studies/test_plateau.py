"""Models that have not got beyond word frequencies: marked scores, undecided claims."""

import math
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.cli.compare import format_results
from pretune.reports.study import render_study_page
from pretune.reports.study_text import format_marks, format_verdict, list_rows, render_study_text
from pretune.studies.plan import Plan
from pretune.studies.planner import plan_study
from pretune.studies.results import build_results
from pretune.studies.study_dir import StepRecord, make_record
from tests.studies.studies import make_study, write_study

UNIGRAM = 6.0
CLAIM = {"text": "A low rate is better", "better": "low", "worse": "high"}
CLAIMS = [{**CLAIM, "measure": name} for name in ("loss", "table", "mean", "steps")]
MEASURES = {
    "loss": {"kind": "validation"},
    "table": {"kind": "finetuned"},
    "mean": {"kind": "average", "measures": ["table"]},
    "steps": {"kind": "cost", "amount": "steps"},
}


def make_records(plan: Plan, losses: dict[str, list[float]], unigram: float | None = UNIGRAM) -> dict[str, StepRecord]:
    """Return records in which the row `low` is better by every measure, with the losses of a row by seed."""
    records: dict[str, StepRecord] = {}
    for step in plan.steps.values():
        row, rank = step.label.partition(":")[0], 0 if step.label.startswith("low") else 1
        scores: dict[str, Any] = {"accuracy": 0.9 - 0.2 * rank}
        amounts = {"steps": 8 + rank, "baseline.accuracy": 0.5}
        if step.action == "pretrain":
            loss = losses[row][step.options.overrides["train.seed"]]
            scores, amounts = {"loss": loss, "perplexity": math.exp(loss)}, {**amounts, "unigram_loss": unigram}
        records[step.key] = make_record(step, scores, amounts, {})
        if step.action == "choose":
            records[step.key] |= {**records[step.inputs[0]], "key": step.key, "selected_key": step.inputs[0]}
    return records


@pytest.mark.parametrize("rates", [{}, {"pretrain": [0.5, 1.0], "finetune": [0.5, 2.0]}])
def test_a_claim_about_a_model_on_the_plateau_is_undecided(tmp_path: Path, rates: dict[str, list[float]]) -> None:
    plan = plan_study(make_study(tmp_path, seeds=3, measures=MEASURES, claims=CLAIMS, rates=rates))
    results = build_results(plan, make_records(plan, {"low": [4.0, 4.1, 4.2], "high": [5.0, 5.2, 5.4]}), {})
    shares = {name: cell.get("unigram_share") for name, cell in results["table"]["low"].items()}
    assert shares.pop("steps") is None and shares == pytest.approx(dict.fromkeys(shares, 4.1 / 6))
    assert [claim["outcome"] for claim in results["claims"]] == ["undecided", "undecided", "undecided", "holds"]
    assert [claim.get("plateau_rows") for claim in results["claims"]] == [["high"], ["high"], ["high"], None]
    assert format_verdict(results, results["claims"][0]) == "undecided (high has not got beyond word frequencies)"
    marked = [[cell.endswith("†") for cell in row[1:]] for row in list_rows(results)]
    assert marked == [[False] * 4, [True, True, True, False]]
    assert "†" in format_marks(results)
    for text in (render_study_text(results), render_study_page(results), "\n".join(format_results(results))):
        assert "undecided (high has not got beyond word frequencies)" in text


@pytest.mark.parametrize(
    ("high", "unigram", "outcome"),
    [
        ([5.0, 5.0, 5.2], UNIGRAM, "holds"),  # 5.067 is less than 85 % of 6
        ([5.0, 5.0, 5.4], UNIGRAM, "undecided"),
        ([5.0, 5.0, 5.4], None, "holds"),  # no unigram loss: not comparable, or an old record
    ],
)
def test_the_limit_is_a_share_of_the_unigram_loss(
    tmp_path: Path, high: list[float], unigram: float | None, outcome: str
) -> None:
    plan = plan_study(make_study(tmp_path, seeds=3, claims=[CLAIMS[0], CLAIMS[1]]))
    results = build_results(plan, make_records(plan, {"low": [4.0, 4.0, 4.0], "high": high}, unigram), {})
    assert {claim["outcome"] for claim in results["claims"]} == {outcome}
    assert ("unigram_share" in results["table"]["low"]["loss"]) == (unigram is not None)


def test_random_weights_do_not_rest_on_the_pre_training(tmp_path: Path) -> None:
    rows = {"low": {}, "high": {"finetune.method": "full+from-scratch"}}
    measures = {"table": MEASURES["table"]}
    plan = plan_study(make_study(tmp_path, seeds=3, rows=rows, measures=measures, claims=[CLAIMS[1]]))
    losses = {"low": [4.0, 4.0, 4.0]}
    results = build_results(plan, make_records(plan, losses), {})
    assert "unigram_share" not in results["table"]["high"]["table"] and results["claims"][0]["outcome"] == "holds"
    results = build_results(plan, make_records(plan, {"low": [5.5, 5.5, 5.5]}), {})
    assert results["claims"][0]["plateau_rows"] == ["low"]


def test_a_pre_training_records_its_unigram_loss(tmp_path: Path) -> None:
    rows = {"masked": {}, "replaced": {"model": "electra-small", "pretrain.objective": "replaced_token"}}
    rows["replaced"] |= {"pretrain.model.table": 16}
    file = write_study(tmp_path, seeds=1, rows=rows, claims=[], measures={"loss": {"kind": "validation"}})
    table = pt.compare(file, out=tmp_path / "out").results["table"]
    share = table["masked"]["loss"]["unigram_share"]
    assert share > 0.85 and not table["masked"]["loss"]["is_beyond_unigram"]  # 8 steps
    assert "unigram_share" not in table["replaced"]["loss"]
