"""The rule of verdicts, by its properties."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.studies.verdicts import compare_paired, compute_deciding_budget, compute_example_error, decide

VALUES = st.floats(-1e3, 1e3, allow_nan=False).map(lambda value: round(value, 6))
LISTS = st.lists(st.tuples(VALUES, VALUES), min_size=3, max_size=8)


def split(pairs: list[tuple[float, float]]) -> tuple[dict[int, float], dict[int, float]]:
    return {i: first for i, (first, _) in enumerate(pairs)}, {i: second for i, (_, second) in enumerate(pairs)}


@given(LISTS)
def test_the_rule(pairs: list[tuple[float, float]]) -> None:
    better, worse = split(pairs)
    differences = [first - second for first, second in pairs]
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(pairs))
    verdict = decide(better, worse, lower=False)
    if abs(abs(mean) - 2 * error) < 1e-9 * (1 + abs(mean)):
        return  # on the limit, rounding decides
    expected = "undecided" if abs(mean) <= 2 * error else "holds" if mean > 0 else "does not hold"
    assert verdict.outcome == expected and verdict.seeds == len(pairs)
    assert verdict.difference == pytest.approx(mean, abs=1e-6) and verdict.error == pytest.approx(error, abs=1e-6)


@given(LISTS)
def test_opposite_claims_have_opposite_verdicts(pairs: list[tuple[float, float]]) -> None:
    better, worse = split(pairs)
    opposite = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    outcome = decide(better, worse, lower=False).outcome
    assert decide(worse, better, lower=False).outcome == opposite[outcome]
    assert decide(better, worse, lower=True).outcome == opposite[outcome]


@given(st.lists(st.tuples(VALUES, VALUES), max_size=2))
def test_fewer_than_three_seeds_are_undecided(pairs: list[tuple[float, float]]) -> None:
    assert decide(*split(pairs), lower=False).outcome == "undecided"


@given(LISTS, st.floats(0, 10))
def test_a_larger_margin_is_harder(pairs: list[tuple[float, float]], margin: float) -> None:
    better, worse = split(pairs)
    order = ["does not hold", "undecided", "holds"]
    outcomes = [order.index(decide(better, worse, lower=False, margin=m).outcome) for m in (-margin, 0.0, margin)]
    assert outcomes == sorted(outcomes, reverse=True)


@pytest.mark.parametrize(
    ("better", "worse", "outcome"),
    [
        ([0.9, 0.9, 0.9], [0.5, 0.5, 0.5], "holds"),  # no variance
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], "undecided"),
        ([0.9, 0.9], [0.5, 0.5], "undecided"),
        ([0.9, 0.9, math.nan], [0.5, 0.5, 0.5], "undecided"),
        ([1, 2, 3], [0.5, 2.5, 0.5], "undecided"),
    ],
)
def test_cases(better: list[float], worse: list[float], outcome: str) -> None:
    assert decide(dict(enumerate(better)), dict(enumerate(worse)), lower=False).outcome == outcome


def test_a_tie_with_the_margin_is_undecided() -> None:
    """0.3 - 0.2 is a little less than 0.1 in binary."""
    for better, worse in ((0.3, 0.2), (0.4, 0.3)):
        verdict = decide(dict.fromkeys(range(3), better), dict.fromkeys(range(3), worse), lower=False, margin=0.1)
        assert verdict.outcome == "undecided" and verdict.difference == pytest.approx(0.1)
    assert decide({0: 1e-9, 1: 1e-9, 2: 1e-9}, {0: 0.0, 1: 0.0, 2: 0.0}, lower=False).outcome == "holds"


def test_only_common_seeds_are_paired() -> None:
    verdict = decide({0: 1.0, 1: 1.0, 2: 1.0, 3: 9.0}, {0: 0.0, 1: 0.0, 2: 0.0, 4: 99.0}, lower=False)
    assert verdict.outcome == "holds" and verdict.seeds == 3 and verdict.difference == 1.0


def test_the_paired_t_test_is_that_of_scipy() -> None:
    from scipy.stats import ttest_rel

    first, second = [0.9, 0.85, 0.88, 0.91], [0.8, 0.83, 0.86, 0.82]
    test, theirs = compare_paired(dict(enumerate(first)), dict(enumerate(second))), ttest_rel(first, second)
    assert test is not None
    assert test["p"] == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval()
    assert (test["low"], test["high"]) == pytest.approx((interval.low, interval.high))


@given(LISTS, st.floats(0, 5))
def test_the_test_examples_widen_the_error(pairs: list[tuple[float, float]], example_error: float) -> None:
    better, worse = split(pairs)
    seeds_alone = decide(better, worse, lower=False)
    verdict = decide(better, worse, lower=False, example_error=example_error)
    assert verdict.error == pytest.approx(math.hypot(seeds_alone.error or 0.0, example_error))
    assert verdict.outcome in (seeds_alone.outcome, "undecided")
    if verdict.factor is not None and verdict.difference:  # the error of that many is half of the difference
        assert verdict.factor >= 1 and verdict.error / math.sqrt(verdict.factor) == pytest.approx(
            abs(verdict.difference) / 2
        )


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 4), min_size=20, max_size=60))
def test_the_jackknife_of_means_is_the_paired_error(hits: list[tuple[int, ...]]) -> None:
    """With blocks of one example, and the mean over two seeds, it is the textbook's."""
    count = len(hits)
    columns = [[row[side] for row in hits] for side in range(4)]
    rest = [[(sum(column) - value) / (count - 1) for value in column] for column in columns]
    differences = [(row[0] + row[1] - row[2] - row[3]) / 2 for row in hits]
    error = compute_example_error({0: [rest[0]], 1: [rest[1]]}, {0: [rest[2]], 1: [rest[3]]})
    assert error == pytest.approx(statistics.stdev(differences) / math.sqrt(count), abs=1e-12)
    halves = {0: [[value / 2 for value in rest[0]], [value / 2 for value in rest[2]]]}  # of a mean over two test sets
    parts = [statistics.stdev(columns[side]) / math.sqrt(count) / 2 for side in (0, 2)]
    zeros = {0: [[0.0] * count] * 2}
    assert compute_example_error(halves, zeros) == pytest.approx(math.hypot(*parts), abs=1e-12)


def test_the_deciding_budget() -> None:
    verdict = decide({0: 1, 1: 2, 2: 3}, {0: 0.5, 1: 2.5, 2: 0.5}, lower=False)
    assert verdict.factor is not None and verdict.difference is not None and verdict.error is not None
    seeds = math.ceil(3 * (2 * verdict.error / verdict.difference) ** 2)
    assert compute_deciding_budget(verdict, None) == {"seeds": seeds}
    assert compute_deciding_budget(verdict, 1000) == {"seeds": seeds, "examples": math.ceil(1000 * verdict.factor)}
    equal = decide({0: 1, 1: 2, 2: 3}, {0: 1, 1: 2, 2: 3}, lower=False)
    assert compute_deciding_budget(equal, None) is None
    assert compute_example_error({}, {}) is None and compute_example_error({0: [[1.0, 2.0]]}, {}) is None
