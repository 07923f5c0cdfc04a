"""The claims of docs/claims.md are those of studies at the scale gpu, and follow from their results."""

from typing import Any

import pytest

from pretune.studies.compare import CompareOptions, build_plan
from pretune.studies.plan import Plan, collect_inputs
from pretune.studies.read import load_study
from pretune.studies.spec import list_points
from tests.docs.claims_page import NOT_RUN, SCALE, decide_claim, describe_claim, list_comparisons, read_claims

CLAIMS = {claim["number"]: claim for claim in read_claims()}
STUDIES = sorted({name for claim in CLAIMS.values() for name in claim.get("decided_by", {})})


def test_claims_name_rows_and_measures_of_the_scale() -> None:
    assert [*CLAIMS] == [*range(1, 29)] and sum("decided_by" in claim for claim in CLAIMS.values()) >= 25
    for claim in CLAIMS.values():
        assert ("dropped" in claim) != ("decided_by" in claim)
        for comparison in list_comparisons(claim, {}):
            study = load_study(comparison.study)
            scale = study.get_scale(SCALE)
            rows, measures = (
                {x.name for x in values} for values in (study.list_rows(scale), study.list_measures(scale))
            )
            (found,) = [c for c in study.claims if (c.text, c.measure) == (comparison.text, comparison.measure)]
            assert {found.better, found.worse} <= rows and {found.measure, found.against or found.measure} <= measures


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_pretrainings_are_as_planned(name: str) -> None:
    """Those of the row with the fewest; random weights, baselines and installed models have none."""
    plan = build_plan(CompareOptions(study=name, scale=SCALE))
    for claim in CLAIMS.values():
        counts = [
            count
            for comparison in list_comparisons(claim, {})
            if comparison.study == name
            for study_claim in plan.study.claims
            if (study_claim.text, study_claim.measure) == (comparison.text, comparison.measure)
            for row in (study_claim.better, study_claim.worse)
            if (count := count_pretrainings(plan, row, comparison.measure))
        ]
        if counts:
            assert min(counts) == claim["pretrainings"], (claim["number"], name)


def count_pretrainings(plan: Plan, row: str, measure: str) -> int:
    """Return over how many pre-trainings the seeds of a row are spread; none of random weights."""
    quantity: Any = next(m for m in plan.measures if m.name == measure).quantity
    line = list_points(plan.measures, getattr(quantity, "line", ""))
    names = {measure, *getattr(quantity, "measures", ()), *line.values()}
    cells = [cell for cell in plan.cells if cell.row == row]
    keys = [reading.step for cell in cells for name, reading in cell.readings.items() if name in names]
    if any(
        "from-scratch" in str(getattr(plan.steps[key].options, "method", ""))
        for key in collect_inputs(plan.steps, keys)
    ):
        return 0
    return len({key for key in collect_inputs(plan.steps, keys) if plan.steps[key].action == "pretrain"})


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "undecided"], "undecided"),
        (["undecided", "does not hold"], "does not hold"),
        (["holds", None], NOT_RUN),
    ],
)
def test_a_claim_follows_from_its_comparisons(outcomes: list[str | None], verdict: str) -> None:
    from tests.docs.claims_page import Comparison

    results: list[Any] = [None if outcome is None else {"outcome": outcome} for outcome in outcomes]
    assert decide_claim([Comparison("s", "t", "m", result) for result in results]) == verdict


def test_a_row_has_the_difference_and_the_verdict() -> None:
    study = load_study("masking-rate")
    scale = study.get_scale(SCALE)
    assert scale.budget is not None and scale.first_seed is not None
    claim: dict[str, Any] = {
        "text": "Masking 40 % gives a better model than 15 %.", "measure": "MNLI", "outcome": "undecided", "seeds": 3,
        "difference": 0.012, "error": 0.01, "deciding_budget": {"seeds": 9, "examples": 27_000},
    }  # fmt: skip
    facts = {
        "study": {"name": study.name}, "budget": {"tokens": scale.budget.tokens}, "seeds": [scale.first_seed],
        "claims": [claim], "cost": {"flops": 9e16, "seconds": 1.0, "wall_seconds": 600.0},
    }  # fmt: skip
    row = describe_claim(CLAIMS[15], {study.name: {SCALE: facts}}, {})
    assert row[3].startswith("MNLI +0.012 ± 0.02") and "9 seeds and 27,000 test examples" in row[3]
    assert "undecided" in row[4] and "one pre-training" in row[4] and row[5] == "90PFLOP, 10:00"
    former = {**facts, "seeds": [0]}
    plans = {study.name: {SCALE: {"flops": 9e16, "seconds": 900.0}}}
    assert NOT_RUN in describe_claim(CLAIMS[15], {study.name: {SCALE: former}}, plans)[4]
