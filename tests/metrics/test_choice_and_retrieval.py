"""Choices, calibration, retrieval and perplexity."""

import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError
from pretune.metrics.classification import calibration_error, choice_accuracy
from pretune.metrics.numeric import bits, mrr, ndcg, perplexity, recall


@given(st.lists(st.tuples(st.integers(0, 2), st.permutations([0.1, 0.2, 0.7])), min_size=1, max_size=20))
def test_choices_without_ties_are_argmax(rows: list[tuple[int, list[float]]]) -> None:
    gold, scores = [g for g, _ in rows], [s for _, s in rows]
    assert choice_accuracy(gold, scores) == pytest.approx(np.mean(np.argmax(scores, 1) == gold))


def test_a_tie_is_never_right() -> None:
    assert choice_accuracy([0, 1], [[1.0, 1.0], [1.0, 1.0]]) == 0.0
    assert choice_accuracy([0, 3], [[1.0], [0, 0, 0, 1]]) == 1.0  # numbers of options may differ


def test_calibration_over_bins_by_hand() -> None:
    # (0.8, 1]: two, confidence 0.95, one right; (0.6, 0.8]: one, 0.7, right
    gold, rows = [0, 0, 1], [[0.9, 0.1], [0.0, 1.0], [0.3, 0.7]]
    assert calibration_error(gold, rows, bins=5) == pytest.approx((2 * abs(0.5 - 0.95) + abs(1 - 0.7)) / 3)


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), min_size=1, max_size=30), st.integers(1, 20))
def test_one_bin_is_the_least_that_bins_say(rows: list[tuple[int, float]], bins: int) -> None:
    gold, shares = [g for g, _ in rows], [[1 - p, p] for _, p in rows]
    one, many = calibration_error(gold, shares, bins=1), calibration_error(gold, shares, bins=bins)
    assert 0 <= one <= many + 1e-12 <= 1 + 1e-12
    assert one == pytest.approx(abs(choice_accuracy(gold, shares) - np.mean([max(row) for row in shares])))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), min_size=2, max_size=15, unique_by=lambda r: r[1]))
def test_ndcg_equals_scikit_learn(rows: list[tuple[int, int]]) -> None:
    gains, scores = [gain for gain, _ in rows], [score for _, score in rows]
    order = sorted(range(len(rows)), key=lambda i: -scores[i])
    ours = ndcg([dict(enumerate(gains))], [order], k=5)
    assert ours == pytest.approx(sk.ndcg_score([gains], [scores], k=5) if any(gains) else 0.0)


def test_ranks_and_shares_by_hand() -> None:
    gold: list[Any] = [{"a", "b"}, {"c": 1.0, "d": 0.0, "e": -1.0}, set()]
    found = [["x", "a", "b"], ["d", "e", "c"], ["a"]]
    assert mrr(gold, found) == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert mrr(gold, found, k=2) == pytest.approx((1 / 2) / 3)
    assert recall(gold, found, k=2) == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert recall(gold, found) == pytest.approx(2 / 3)
    assert ndcg(gold[:1], found[:1]) == pytest.approx((1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3)))


def test_perplexities() -> None:
    assert perplexity(3 * math.log(7), 3) == pytest.approx(7)
    assert bits(3 * math.log(8), 3) == pytest.approx(3)
    assert perplexity(0.0, 5) == 1.0
    assert perplexity(1e6, 1) == math.inf


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: choice_accuracy([2], [[1.0, 0.0]]), r"gold.*\b0\b.*\b2\b.*\b2\b"),
        (lambda: choice_accuracy([0], [[math.nan, 0.0]]), r"\b0\b.*\b0\b.*nan"),
        (lambda: calibration_error([0], [[2.0, 1.0]]), r"\b0\b.*\b3\b"),
        (lambda: calibration_error([0], [[1.0, 0.0]], bins=0), r"bins.*\b0\b"),
        (lambda: ndcg([{"a"}], [["a", "a"]]), r"\b0\b"),
        (lambda: mrr([{"a"}], [["a"]], k=0), r"\bk\b.*\b0\b"),
        (lambda: perplexity(1.0, 0), r"\b0\b"),
        (lambda: bits(math.nan, 2), "nan"),
    ],
)
def test_bad_input_is_named(call: Any, value: str) -> None:
    with pytest.raises(DataError, match=value):
        call()


def test_numpy_labels_are_indices() -> None:
    gold, rows = list(np.array([0, 1])), np.array([[0.75, 0.25], [0.25, 0.75]])
    assert choice_accuracy(gold, rows) == 1.0
    assert calibration_error(gold, rows) == pytest.approx(0.25)
    for label in (True, np.bool_(True), 1.0):
        with pytest.raises(DataError):
            choice_accuracy([label], rows[:1])
