"""Evaluation of several tasks: averages of suites."""

import pytest

from pretune.evaluation import EvaluationResult
from pretune.metrics import SUPERGLUE
from pretune.runs.evaluate import compute_averages

YEARS = [EvaluationResult(task=f"sts{year}", scores={"spearman": year / 100, "pearson": 1.0}) for year in range(12, 17)]


def test_five_years_of_similarity() -> None:
    (found,) = compute_averages(YEARS)
    assert (found.task, found.shots, found.counts) == ("sts12-16 average", None, {"tasks": 5})
    assert found.scores["average"] == pytest.approx(0.14) and found.groups["sts16"] == pytest.approx(0.16)
    assert compute_averages(YEARS[1:]) == []


def test_an_average_for_each_number_of_shots() -> None:
    def results(shots: int, value: float) -> list[EvaluationResult]:
        return [
            EvaluationResult(task=task, scores={"accuracy": value, "brier": 9.0}, shots=shots) for task in SUPERGLUE
        ]

    first, years, second = compute_averages([*results(0, 0.5), *results(32, 0.5), *YEARS])
    assert (first.shots, second.shots) == (0, 32) and first.scores == second.scores == {"average": 0.5}
    assert years.shots is None and years.task == "sts12-16 average"
    assert compute_averages([*results(0, 0.5)[:4], *results(1, 0.5)[4:]]) == []  # of different numbers of shots
