"""Accuracy, F1, Matthews and correlations, against scikit-learn and scipy."""

import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError
from pretune.metrics.classification import (
    NO_LABEL,
    accuracy,
    accuracy_f1,
    accuracy_f1_macro,
    f1,
    f1_macro,
    f1_micro,
    matthews,
    multilabel_f1,
)
from pretune.metrics.numeric import compute_ranks, mean_squared_error, pearson, pearson_spearman, spearman
from tests.selection import scale_examples

stats = pytest.importorskip("scipy.stats", reason="correlations are compared with scipy's, which is not installed")


def pairs(values: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[tuple[list[Any], list[Any]]]:
    made = st.lists(st.tuples(values, values), min_size=least, max_size=40)
    return made.map(lambda rows: ([a for a, _ in rows], [b for _, b in rows]))


@settings(max_examples=scale_examples(50))
@given(pairs(st.integers(0, 1)))
def test_two_classes_equal_scikit_learn(case: tuple[list[int], list[int]]) -> None:
    gold, predicted = case
    assert accuracy(gold, predicted) == pytest.approx(sk.accuracy_score(gold, predicted))
    assert f1(gold, predicted) == pytest.approx(sk.f1_score(gold, predicted, labels=[0, 1], zero_division=0))
    both = accuracy_f1(gold, predicted)
    assert both["average"] == pytest.approx((accuracy(gold, predicted) + f1(gold, predicted)) / 2)


@settings(max_examples=scale_examples(50))
@given(pairs(st.sampled_from(["contradiction", "entailment", "neutral", "other"])))
def test_several_classes_equal_scikit_learn(case: tuple[list[str], list[str]]) -> None:
    gold, predicted = case
    macro = sk.f1_score(gold, predicted, average="macro", zero_division=0)
    assert f1_macro(gold, predicted) == pytest.approx(macro)
    assert f1_micro(gold, predicted) == pytest.approx(sk.f1_score(gold, predicted, average="micro"))
    some = ["neutral", "other"]
    partly = {"labels": some, "zero_division": 0}
    assert f1_micro(gold, predicted, labels=some) == pytest.approx(
        sk.f1_score(gold, predicted, average="micro", **partly)
    )
    assert f1_macro(gold, predicted, labels=some) == pytest.approx(
        sk.f1_score(gold, predicted, average="macro", **partly)
    )
    assert f1(gold, predicted, positive="neutral") == pytest.approx(
        sk.f1_score(gold, predicted, labels=["neutral"], average="macro", zero_division=0)
    )
    assert accuracy_f1_macro(gold, predicted)["f1"] == pytest.approx(macro)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert matthews(gold, predicted) == pytest.approx(sk.matthews_corrcoef(gold, predicted), abs=1e-12)


@given(pairs(st.floats(-1e6, 1e6) | st.integers(0, 3).map(float), least=2))
def test_correlations_equal_scipy_and_are_0_where_it_is_undefined(case: tuple[list[float], list[float]]) -> None:
    gold, predicted = case
    if len({*gold}) == 1 or len({*predicted}) == 1:
        assert pearson(gold, predicted) == spearman(gold, predicted) == 0.0
        return
    assert spearman(gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-9)
    assert compute_ranks(np.array(gold)).tolist() == stats.rankdata(gold).tolist()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        theirs = stats.pearsonr(gold, predicted).statistic
    if not warned and np.isfinite(theirs):  # scipy warns where a spread is lost in rounding
        assert pearson(gold, predicted) == pytest.approx(theirs, abs=1e-6)
    assert -1 <= pearson(gold, predicted) <= 1


@given(pairs(st.floats(-1e6, 1e6)))
def test_the_squared_error_equals_scikit_learn_s(case: tuple[list[float], list[float]]) -> None:
    assert mean_squared_error(*case) == pytest.approx(sk.mean_squared_error(*case))


@given(pairs(st.floats(allow_nan=False, allow_infinity=False)))
def test_no_finite_input_gives_nan(case: tuple[list[float], list[float]]) -> None:
    found = pearson_spearman(*case)
    assert all(-1 <= value <= 1 for value in found.values())


@settings(max_examples=scale_examples(50))
@given(pairs(st.frozensets(st.integers(0, 3))))
def test_sets_of_labels_equal_scikit_learn(case: tuple[list[frozenset[int]], list[frozenset[int]]]) -> None:
    gold, predicted = case
    labels = sorted({label for labels in (*gold, *predicted) for label in labels})
    scores = multilabel_f1(gold, predicted)
    assert scores["exact_match"] == sum(g == p for g, p in zip(gold, predicted, strict=True)) / len(gold)
    if not labels:
        assert (scores["f1_micro"], scores["f1_macro"]) == (0, 0)
        return
    left, right = (np.array([[label in row for label in labels] for row in rows], dtype=int) for rows in case)
    for average in ("micro", "macro"):
        reference = sk.f1_score(left, right, average=average, zero_division=0)
        assert scores[f"f1_{average}"] == pytest.approx(reference)


def test_undefined_cases_are_0() -> None:
    assert f1([0, 0], [0, 0]) == 0.0
    assert matthews([1, 1, 1], [1, 1, 1]) == matthews([1, 0, 1], [1, 1, 1]) == 0.0
    assert pearson([1.0], [2.0]) == spearman([3, 3], [1, 2]) == 0.0
    assert f1_macro([1, 1], [1, 1]) == 1.0


def test_large_counts_are_exact() -> None:
    gold = np.tile([0, 1, 1, 0, 1], 80_000)
    predicted = np.tile([0, 1, 0, 1, 1], 80_000)
    assert matthews(gold, predicted) == pytest.approx(sk.matthews_corrcoef(gold, predicted))
    assert accuracy(gold, predicted) == 0.6


@pytest.mark.parametrize(
    ("function", "gold", "predicted", "value"),
    [
        (accuracy, [1, None], [1, 0], r"gold.*\b1\b"),
        (accuracy, [1, 0], ["1", "0"], r"\b1\b.*'1'"),
        (f1, ["yes", "no"], ["yes", "no"], r"\b1\b.*no, yes"),
        (pearson, [1.0, 2.0], [1.0, float("nan")], r"predicted.*\b1\b.*nan"),
        (spearman, [1.0, float("inf")], [1.0, 2.0], r"gold.*\b1\b.*inf"),
        (pearson, ["1", "2"], [1.0, 2.0], r"gold.*\b0\b.*'1'"),
    ],
)
def test_bad_input_is_named(function: Any, gold: list[Any], predicted: list[Any], value: str) -> None:
    with pytest.raises(DataError, match=value):
        function(gold, predicted)


def test_an_invalid_answer_is_wrong_but_no_class() -> None:
    gold = [0, 1, 2] * 4
    predicted = [NO_LABEL, *gold[1:]]
    assert f1_macro(gold, predicted) == pytest.approx((6 / 7 + 1 + 1) / 3)
    assert accuracy_f1_macro(gold, predicted)["accuracy"] == pytest.approx(11 / 12)
    signs = [-1, -1, 1]  # labels of the user
    assert f1_macro(signs, [-1, 1, 1]) == pytest.approx(sk.f1_score(signs, [-1, 1, 1], average="macro"))
