"""The built-in studies: every scale can be planned, and class scales run from corpus to verdicts."""

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.studies import list_study_files
from pretune.studies.compare import CompareOptions, build_plan
from pretune.studies.read import load_study
from pretune.studies.spec import list_points

MAX_CLASS_SECONDS = 2 * 600
"""Ten minutes of two cores."""
QUICK_PLANS = {("bert-size", "full"), ("labels", "class")}
SCALES_BY_STUDY = {name: [entry.name for entry in load_study(name).scales] for name in list_study_files()}
CLASS_STUDIES = ("adaptation", "freezing", "labels")
PLANS = [
    pytest.param(name, scale, marks=() if (name, scale) in QUICK_PLANS else pytest.mark.slow)
    for name, scales in SCALES_BY_STUDY.items()
    for scale in scales
]


@pytest.mark.parametrize(("name", "scale"), PLANS)
def test_scales_can_be_planned(name: str, scale: str) -> None:
    plan = build_plan(CompareOptions(study=name, scale=scale))
    study, rows = load_study(name), [row.name for row in plan.rows]
    assert len(plan.cells) == len(rows) * len(plan.seeds)
    if study.law is not None:
        assert {*study.law.checks} < {*rows} and study.law.loss in {measure.name for measure in plan.measures}
        return
    assert len(plan.seeds) >= 3
    measures = {measure.name for measure in plan.measures}
    decidable_claims = [
        claim for claim in study.claims if {claim.better, claim.worse} <= {*rows} and claim.measure in measures
    ]
    assert decidable_claims, "no claim is about this scale"
    for claim in decidable_claims:
        for row in (claim.better, claim.worse):
            cell = next(cell for cell in plan.cells if cell.row == row)
            quantity: Any = next(m for m in plan.measures if m.name == claim.measure).quantity
            members = getattr(quantity, "measures", ())
            if line := getattr(quantity, "line", None):
                members = (list_points(plan.measures, line)[quantity.start],)
            assert {*(members or (claim.measure,))} <= cell.readings.keys()
    if plan.budget and "seconds" not in plan.budget:
        assert plan.sum_estimates().flops > 0
    if scale == "class":
        assert plan.sum_estimates().seconds < MAX_CLASS_SECONDS
        assert min(plan.seeds) >= 10, "lower seeds were used in the design of the studies"


@pytest.mark.parametrize("name", list_study_files())
def test_claims_and_tables_name_rows(name: str) -> None:
    study = load_study(name)
    names = {row.name for row in study.list_rows()}
    if study.paper.table is not None and name != "bert-size":  # whose rows are other sizes
        assert {row.name for row in study.paper.table.rows} <= names
    assert study.paper.table is not None or study.paper.note is not None
    assert study.reference in names


def test_the_scale_class_has_what_shows_something(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert tuple(name for name, scales in SCALES_BY_STUDY.items() if "class" in scales) == CLASS_STUDIES
    assert main(["compare", "pooling", "--out", str(tmp_path / "out")]) == 2  # at the default scale
    assert "--scale gpu" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_missing_sets_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    assert main(["compare", "labels", "--out", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert "missing" in error and "PRETUNE_DATA" in error and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASS_STUDIES)
def test_class_scales_run(name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    """With one seed, so that no claim is decided; the rest is as in front of a class."""
    if build_plan(CompareOptions(study=name, seeds=1)).missing:
        monkeypatch.setenv("PRETUNE_DATA", str(request.getfixturevalue("shared_data")))  # skips where it is not
        assert not build_plan(CompareOptions(study=name, seeds=1)).missing, "a set of a study is not in $PRETUNE_DATA"
    result = pt.compare(name, out=tmp_path / "out", seeds=1)
    assert not result.results["missing"] and not result.results["failures"]
    outcomes = {*result.verdicts.values()}
    assert outcomes <= {"undecided", "not measured"} and "undecided" in outcomes
    assert result.page.is_file()
