"""Claims about a single pre-training rest on seeds of the fine-tuning and on test examples, and say so."""

import math
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.core.config import read_record
from pretune.core.errors import CheckpointError, UsageError
from pretune.reports.study_text import format_verdict
from pretune.studies.plan import Plan
from pretune.studies.planner import plan_study
from pretune.studies.results import build_results
from pretune.studies.study_dir import StepRecord, make_record
from tests.studies.studies import make_study, write_study, write_table

CLAIM = {"text": "A low rate is better", "better": "low", "worse": "high"}
MEASURES: dict[str, Any] = {
    "table": {"kind": "finetuned", "score": "accuracy"},
    "again": {"kind": "finetuned", "score": "accuracy", "settings": {"finetune.steps": 7}},
    "mean": {"kind": "average", "measures": ["table", "again"]},
}


def make_records(plan: Plan, spread: float) -> dict[str, StepRecord]:
    """Return records in which `low` is 0.1 better on all seeds, with this spread of its scores over two blocks."""
    records = {}
    for step in plan.steps.values():
        score = 0.9 if step.label.startswith("low") else 0.8
        half = spread if score == 0.9 else 0.0
        blocks = {"accuracy": [score - half, score + half]} if step.action == "finetune" else None
        amounts = {"test_examples": 100}
        records[step.key] = make_record(step, {"accuracy": score}, amounts, {}, blocks=blocks)
    return records


@pytest.mark.parametrize(("spread", "outcome"), [(0.04, "holds"), (0.06, "undecided")])
def test_the_examples_are_a_part_of_the_error(tmp_path: Path, spread: float, outcome: str) -> None:
    claims = [{**CLAIM, "measure": "table"}, {**CLAIM, "measure": "mean"}]
    rows = {"low": {"pretrain.seed": 5}, "high": {"pretrain.objective.rate": 0.4}}
    plan = plan_study(make_study(tmp_path, seeds=3, rows=rows, measures=MEASURES, claims=claims))
    results = build_results(plan, make_records(plan, spread), {})
    claim, mean = results["claims"]
    assert claim["is_one_pretraining"] and claim["outcome"] == outcome
    assert claim["error"] == pytest.approx(spread) and mean["error"] == pytest.approx(spread / math.sqrt(2))
    if outcome == "undecided":
        factor = (2 * spread / 0.1) ** 2
        assert claim["deciding_budget"] == {"seeds": math.ceil(3 * factor), "examples": math.ceil(100 * factor)}
    assert "one pre-training" in format_verdict(results, claim)


def test_pre_trainings_of_their_own_rest_on_seeds_alone(tmp_path: Path) -> None:
    plan = plan_study(make_study(tmp_path, seeds=3, measures=MEASURES, claims=[{**CLAIM, "measure": "table"}]))
    claim = build_results(plan, make_records(plan, 0.06), {})["claims"][0]
    assert claim["outcome"] == "holds" and claim["error"] == pytest.approx(0.0, abs=1e-9)
    assert "is_one_pretraining" not in claim and "deciding_budget" not in claim


def test_records_have_the_scores_without_blocks(tmp_path: Path) -> None:
    """Of fine-tunings and baselines, on the same 120 examples: 20 equal blocks, whose mean is the score."""
    rows = {"low": {"finetune.steps": 2}, "high": {"baseline": "majority"}}
    file = write_study(tmp_path, seeds=1, rows=rows, claims=[], measures={"table": MEASURES["table"]})
    table = str(write_table(tmp_path))
    pt.compare(file, out=tmp_path / "out", overrides={"finetune.dev": table, "finetune.test": table})
    paths = [path for path in (tmp_path / "out/steps").glob("*.json") if path.name.startswith(("finetune", "baseline"))]
    assert len(paths) == 2
    for path in paths:
        record = read_record(StepRecord, path, CheckpointError)
        blocks, accuracy = record["blocks"]["accuracy"], record["scores"]["accuracy"]
        assert record["amounts"]["test_examples"] == 120 and len(blocks) == 20
        assert sum(blocks) / 20 == pytest.approx(accuracy)


def test_savings_along_a_curve(tmp_path: Path) -> None:
    """The better row has with 10 the score that the other has between 10 and 20, and with 20 one it never has."""
    curve = {"kind": "finetuned", "score": "accuracy", "curve": "table"}
    measures: dict[str, Any] = {
        f"{count} labels": {**curve, "x": count, "settings": {"finetune.train_examples": count}}
        for count in (10, 20, 40)
    }
    for start in (10, 20):
        measures[f"saved {start}"] = {"kind": "saving", "line": "table", "start": start, "against": "high"}
    claims = [{**CLAIM, "measure": "saved 10", "margin": 0.2}, {**CLAIM, "measure": "saved 20", "margin": 0.9}]
    plan = plan_study(make_study(tmp_path, seeds=3, measures=measures, claims=claims))
    scores = {"low": {10: 0.65, 20: 0.9, 40: 0.95}, "high": {10: 0.6, 20: 0.7, 40: 0.8}}
    records = {}
    for step in plan.steps.values():
        count = next(iter(getattr(step.options, "example_counts", ())), None)
        score = scores[step.label.partition(":")[0]][count] if count else 0.0
        records[step.key] = make_record(step, {"accuracy": score}, {}, {})
    table = build_results(plan, records, {})["table"]
    assert table["low"]["saved 10"]["mean"] == pytest.approx(2**0.5) and table["low"]["saved 20"]["mean"] == 2.0
    assert table["high"]["saved 10"]["mean"] == table["high"]["saved 20"]["mean"] == pytest.approx(1.0)
    assert [claim["outcome"] for claim in build_results(plan, records, {})["claims"]] == ["holds", "holds"]
    with pytest.raises(UsageError, match="30"):
        make_study(tmp_path, measures={**measures, "bad": {**measures["saved 10"], "start": 30}})
