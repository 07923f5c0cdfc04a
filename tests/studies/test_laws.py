"""Laws of the loss: fits of made-up and measured runs, their intervals, and the law of a study."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import UsageError
from pretune.reports.study import render_study_page
from pretune.reports.study_text import render_study_text
from pretune.runs.recipes.plan import compute_loss, count_effective_tokens, read_fits
from pretune.studies.laws import LawRun, bootstrap_laws, can_fit, fit_law
from pretune.studies.planner import plan_study
from pretune.studies.results import build_results
from pretune.studies.study_dir import make_record
from tests.studies.studies import make_study

LAW = {"floor": 0.9, "size": 45.0, "size_power": 0.26, "tokens": 700.0, "tokens_power": 0.36}
SIZES, TOKENS = (0.7e6, 2.2e6, 8e6), (14e6, 28e6, 55e6)
RUNS = [
    LawRun(parameters=size, tokens=tokens, loss=compute_loss(LAW, size, tokens)) for size in SIZES for tokens in TOKENS
]
MEASURED = """
0.164416 30 4.253   0.164416 120 3.635  0.984704 30 3.505   0.984704 120 2.949  2.214336 60 2.832   2.214336 240 2.484
7.87072 109 2.431   17.70432 40 2.680   17.70432 305 1.999  31.4688 120 2.174   31.4688 176 2.044
"""
"""Millions of parameters and tokens and the loss of encoders (bench/log.md), of 44.7 million tokens."""


def test_a_law_is_found_again() -> None:
    law = fit_law(RUNS)
    assert law == pytest.approx(LAW, rel=0.02)
    assert compute_loss(law, 2e7, 5e8) == pytest.approx(compute_loss(LAW, 2e7, 5e8), abs=1e-3)


def test_measured_runs_give_the_law_of_the_recipe() -> None:
    numbers = [float(word) for word in MEASURED.split()]
    runs = [
        LawRun(parameters=p * 1e6, tokens=count_effective_tokens(t * 1e6, 44_700_000), loss=loss)
        for p, t, loss in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    ]
    law, stored = fit_law(runs), read_fits()["encoder"]
    for run in runs:
        assert run.predict(law) == pytest.approx(run.predict(stored), rel=0.02)


def test_intervals_come_from_the_same_draws() -> None:
    noisy = [replace(run, loss=run.loss * (1 + 0.004 * (-1) ** place)) for place, run in enumerate(RUNS)]
    law = fit_law(noisy)
    draws = bootstrap_laws(noisy, law, 12)
    assert draws == bootstrap_laws(noisy, law, 12)
    losses = [compute_loss(draw, 2e7, 5e8) for draw in draws]
    assert min(losses) < compute_loss(law, 2e7, 5e8) < max(losses)


def test_few_runs_have_no_law() -> None:
    assert can_fit(RUNS) and not can_fit(RUNS[:5])
    assert not can_fit([replace(run, tokens=1e6) for run in RUNS]) and not can_fit([RUNS[0]] * 9)


def build_study_results(folder: Path, factor: float = 1.0) -> dict[str, Any]:
    """Return the results of a study whose runs have the loss of the law, those of the check times a factor."""
    grid = {
        "size": {f"width {width}": {"pretrain.model.width": width} for width in (16, 32, 48)},
        "length": {f"{tokens}": {"pretrain.tokens": tokens} for tokens in (1000, 2000, 4000)},
    }
    rows = {"large": {"pretrain": {"tokens": 9000, "model.width": 64}}}
    law = {"loss": "loss", "checks": ["large"]}
    study = make_study(
        folder, rows=rows, grid=grid, law=law, claims=[], seeds=1, measures={"loss": {"kind": "validation"}}
    )
    plan, records = plan_study(study), {}
    for cell in plan.cells:
        step = plan.steps[cell.readings["loss"].step]
        tokens: Any = step.options.tokens  # type: ignore[attr-defined]
        assert step.model is not None
        parameters = step.model.params().body - step.model.vocab * step.model.table
        loss = compute_loss(LAW, parameters, tokens) * (factor if cell.row == "large" else 1.0)
        amounts = {"parameters": 1, "steps": 1, "tokens": tokens, "epochs": 0.5}
        records[step.key] = make_record(step, {"loss": loss}, amounts, {"device": "cpu"})
    return dict(build_results(plan, records, {}))


def test_the_law_of_a_study(tmp_path: Path) -> None:
    results = build_study_results(tmp_path)
    law = results["law"]
    assert {name: numbers[0] for name, numbers in law["coefficients"].items()} == pytest.approx(LAW, rel=0.02)
    (check,) = [point for point in law["points"] if point["is_check"]]
    assert check["row"] == "large" and check["expected"] == pytest.approx(check["loss"], rel=1e-3)
    assert check["low"] <= check["expected"] + 1e-9 and len(law["points"]) == 10
    worse = build_study_results(tmp_path, 1.2)["law"]
    assert worse["coefficients"] == law["coefficients"]  # the check is not fitted
    for text in (render_study_text(results), render_study_page(results)):  # type: ignore[arg-type]
        assert "size power" in text and f"{check['expected']:.4g} expected" in text
    assert render_study_page(results).count("<svg") == 1  # type: ignore[arg-type]


def test_a_law_names_a_loss_and_rows(tmp_path: Path) -> None:
    for law, name in (({"loss": "table"}, "loss"), ({"loss": "loss", "checks": ["hihg"]}, "high")):
        with pytest.raises(UsageError, match=name):
            make_study(tmp_path, law=law)
