"""Intervals over seeds and paired bootstraps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError
from pretune.metrics.classification import accuracy, accuracy_f1, f1_macro, matthews
from pretune.metrics.significance import (
    compute_interval,
    paired_bootstrap,
    paired_bootstrap_of_means,
    student_t_quantile,
)

stats = pytest.importorskip("scipy.stats", reason="intervals are compared with scipy's, which is not installed")


@given(st.integers(1, 60), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999]))
def test_student_is_scipys(freedom: int, level: float) -> None:
    assert student_t_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_intervals_over_seeds_are_scipys(scores: list[float]) -> None:
    found = compute_interval(scores)
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.std == pytest.approx(np.std(scores, ddof=1), abs=1e-12)
    if found.std and found.std > 1e-9:
        low, high = stats.t.interval(0.95, len(scores) - 1, np.mean(scores), stats.sem(scores))
        assert (found.low, found.high) == pytest.approx((low, high))


def test_of_one_run_only_the_mean_is_known() -> None:
    found = compute_interval([0.5])
    assert (found.mean, found.std, found.low, found.high, found.runs) == (0.5, None, None, None, 1)
    same = compute_interval([0.5, 0.5])
    assert (same.std, same.low, same.high) == (0.0, 0.5, 0.5)


def made(right: float, n: int, seed: int) -> tuple[list[int], list[int]]:
    """Gold, and predictions of which a share is right."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 2, n)
    return gold.tolist(), np.where(rng.random(n) < right, gold, 1 - gold).tolist()


def test_any_metric_and_means_agree() -> None:
    gold, good = made(0.9, 300, 0)
    _, fair = made(0.8, 300, 0)
    slow = paired_bootstrap(gold, [good], [fair], accuracy, rounds=400)
    fast = paired_bootstrap_of_means(
        [g == p for g, p in zip(gold, good, strict=True)], [g == p for g, p in zip(gold, fair, strict=True)]
    )
    assert slow.difference == pytest.approx(fast.difference)
    assert slow.low == pytest.approx(fast.low, abs=0.02) and slow.high == pytest.approx(fast.high, abs=0.02)
    assert slow.low < slow.difference < slow.high
    assert slow.examples == 300 and slow.rounds == 400


def test_a_clear_difference_is_found_and_its_reverse_is_not() -> None:
    gold, good = made(0.95, 200, 1)
    _, bad = made(0.6, 200, 1)
    for metric in (accuracy, matthews, accuracy_f1):
        ours, theirs = (paired_bootstrap(gold, [a], [b], metric, rounds=199) for a, b in ((good, bad), (bad, good)))
        assert ours.p == 1 / 200 and ours.low > 0
        assert theirs.p == 1.0 and theirs.high < 0
        assert theirs.difference == pytest.approx(-ours.difference)


def test_equal_systems_are_never_better() -> None:
    gold, same = made(0.7, 50, 2)
    found = paired_bootstrap(gold, [same], [same], accuracy, rounds=50)
    assert (found.difference, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_runs_are_averaged() -> None:
    gold, one = made(0.9, 100, 3)
    _, two = made(0.5, 100, 3)
    both = paired_bootstrap(gold, [one, two], [gold], accuracy, rounds=20)
    assert both.difference == pytest.approx((accuracy(gold, one) + accuracy(gold, two)) / 2 - 1)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    # The mean of 100 Gaussian gaps around 0.2 should lie in the 90 % interval of 9 sets of 10.
    rng = np.random.default_rng(0)
    inside = 0
    for turn in range(200):
        gaps = rng.normal(0.2, 1.0, 100)
        found = paired_bootstrap_of_means(gaps.tolist(), [0.0] * 100, rounds=300, level=0.9, seed=turn)
        inside += found.low <= 0.2 <= found.high
    assert abs(inside / 200 - 0.9) < 4 * math.sqrt(0.09 / 200)


def test_the_same_seed_gives_the_same_numbers_and_memory_stays_small() -> None:
    ours, theirs = [1.0, 0.0, 1.0] * 100_000, [0.0, 1.0, 1.0] * 100_000
    first = paired_bootstrap_of_means(ours, theirs, rounds=9)  # more draws than are made in one go
    assert (
        first
        == paired_bootstrap_of_means(ours, theirs, rounds=9)
        != paired_bootstrap_of_means(ours, theirs, rounds=9, seed=1)
    )


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: compute_interval([]), ""),
        (lambda: compute_interval([math.nan]), r"\b0\b.*nan"),
        (lambda: paired_bootstrap_of_means([], []), ""),
        (lambda: paired_bootstrap_of_means([1.0], []), r"\b1\b.*\b0\b"),
        (lambda: paired_bootstrap_of_means([1.0], [1.0], level=1.0), r"level.*\b1\.0\b"),
        (lambda: paired_bootstrap([1], [[1, 0]], [[1]], accuracy), r"\b2\b.*\b1\b"),
        (lambda: paired_bootstrap([1], [], [[1]], accuracy), ""),
        (lambda: student_t_quantile(0.95, 0), r"\b0\b"),
    ],
)
def test_bad_input_is_named(call: object, value: str) -> None:
    with pytest.raises(DataError, match=value or None):
        assert callable(call) and call()


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_identical_runs_are_no_better(runs: int) -> None:
    gold, predicted = made(0.7, 201, 3)
    for metric in (accuracy_f1, f1_macro):
        found = paired_bootstrap(gold, [predicted] * runs, [predicted], metric, rounds=200)
        assert (found.difference, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)
    scores = np.random.default_rng(0).choice([0.1, 0.3, 2 / 7, 0.8], 200)
    for scale in (1.0, 100.0):
        means = [sum([score] * runs) / runs for score in (scale * scores).tolist()]
        assert paired_bootstrap_of_means(means, (scale * scores).tolist(), rounds=500).p == 1.0
    assert paired_bootstrap_of_means([0.1 + 1e-6] * 20, [0.1] * 20, rounds=99).p == 0.01
