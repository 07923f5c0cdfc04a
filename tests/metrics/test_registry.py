"""Laws that every entry of the table obeys."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.metrics import LOWER_IS_BETTER, METRICS, get_headline


def each(names: tuple[str, ...], case: Any) -> dict[str, Any]:
    """One case for several metrics."""
    return dict.fromkeys(names, case)


# For each metric, gold and the predictions that are perfect for it.
LABELS = [0, 1, 1, 0, 2, 1]
NUMBERS = [0.5, 3.0, -1.0, 2.25]
TEXTS = ["a cat sat on the mat there", "two dogs ran over a hill"]
TAGS = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "B-PER", "O"]]
CHOICES = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
GROUPS = [[1, 0, 0], [0, 1], [1, 1]]
TREES = [[(2, "nsubj"), (0, "root"), (2, "obj")], [(0, "root"), (1, "advmod")]]
CLUSTERS = [[["a", "b"], ["c", "d", "e"]], [["a", "b"]]]
RELEVANT = [{"a": 2, "b": 1}, {"c": 1}]

PERFECT: dict[str, tuple[Any, Any]] = {
    **each(("accuracy", "f1", "f1_macro", "f1_micro", "matthews"), (LABELS, LABELS)),
    **each(("accuracy_f1", "accuracy_f1_macro"), (LABELS, LABELS)),
    **each(("pearson", "spearman", "pearson_spearman", "mean_squared_error"), (NUMBERS, NUMBERS)),
    **each(("choice_accuracy", "calibration_error"), ([0, 1, 1, 0], CHOICES)),
    **each(("exact_match", "squad", "squad2", "triviaqa", "coqa", "answer_f1", "record"), (TEXTS, TEXTS)),
    **each(("rouge", "rouge_l", "rouge_stemmed", "bleu", "chrf"), (TEXTS, TEXTS)),
    "multirc": (GROUPS, GROUPS),
    "gender_parity": ([[1, 1], [0, 0]], [[1, 1], [0, 0]]),
    **each(("tag_accuracy", "entity_f1", "entity_f1_strict", "argument_f1"), (TAGS, TAGS)),
    "multilabel_f1": ([["a", "b"], ["c"], ["a"]], [["b", "a"], ["c"], ["a"]]),
    "attachment": (TREES, TREES),
    "coreference": (CLUSTERS, CLUSTERS),
    **each(("ndcg", "mrr", "recall"), (RELEVANT, [["a", "b"], ["c"]])),
    **each(("exact", "regex"), (TEXTS, TEXTS)),
    "number": (["#### 1,200", "-0.5"], ["It is 1200.0.", "so -.5"]),
}
# And predictions that are wrong in every way.
WRONG: dict[str, Any] = {
    **each(("accuracy", "f1", "f1_macro", "f1_micro", "matthews"), [1, 0, 2, 1, 0, 2]),
    **each(("accuracy_f1", "accuracy_f1_macro"), [1, 0, 2, 1, 0, 2]),
    **each(("pearson", "spearman", "pearson_spearman", "mean_squared_error"), [-value for value in NUMBERS]),
    **each(("choice_accuracy", "calibration_error"), [row[::-1] for row in CHOICES]),
    **each(("exact_match", "squad", "squad2", "triviaqa", "coqa", "answer_f1", "record"), ["xyz", ""]),
    **each(("rouge", "rouge_l", "rouge_stemmed", "bleu", "chrf"), ["xyz", ""]),
    "multirc": [[0, 1, 1], [1, 0], [0, 0]],
    "gender_parity": [[1, 0], [0, 1]],
    **each(
        ("tag_accuracy", "entity_f1", "entity_f1_strict", "argument_f1"),
        [["O", "O", "B-X", "O"], ["B-X", "O", "O", "I-X"]],
    ),
    "attachment": [[(0, "x"), (1, "x"), (1, "x")], [(2, "x"), (0, "x")]],
    "coreference": [[["x", "y"]], []],
    **each(("ndcg", "mrr", "recall"), [["x"], ["a", "b"]]),
    "multilabel_f1": [["c"], ["a", "b"], []],
    **each(("exact", "regex"), ["xyz", ""]),
    "number": ["1200 or 12", "0.5"],
}
NEEDS = {"bleu": "sacrebleu", "chrf": "sacrebleu"}


def metric(name: str) -> Any:
    """The metric; a test of one whose package is not here is skipped."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} is computed by {NEEDS[name]}, which is not installed")
    return METRICS.get(name)


def values(score: Any) -> list[float]:
    return list(score.values()) if isinstance(score, dict) else [score]


def test_the_cases_cover_the_table() -> None:
    assert {*PERFECT} == {*WRONG} == {*METRICS}
    assert {*METRICS} > LOWER_IS_BETTER


@pytest.mark.parametrize("name", METRICS)
def test_gold_itself_is_perfect(name: str) -> None:
    found = values(metric(name)(*PERFECT[name]))
    assert found == pytest.approx([0.0 if name in LOWER_IS_BETTER else 1.0] * len(found))


@pytest.mark.parametrize("name", METRICS)
def test_all_wrong_is_as_low_as_it_gets(name: str) -> None:
    found = get_headline(metric(name)(PERFECT[name][0], WRONG[name]))
    least = {"calibration_error": 1.0, "pearson": -1.0, "spearman": -1.0, "pearson_spearman": -1.0}
    least["mean_squared_error"] = 15.3125  # four times the mean square of the numbers
    if name == "matthews":
        assert found < 0
    else:
        assert found == pytest.approx(least.get(name, 0.0), abs=0.02)  # chrF and BLEU smooth a little


@pytest.mark.parametrize("name", METRICS)
def test_order_of_examples_does_not_matter(name: str) -> None:
    gold, predicted = PERFECT[name][0], [*PERFECT[name][1][:-1], WRONG[name][-1]]
    order = list(range(len(gold)))
    random.Random(0).shuffle(order)
    here = values(metric(name)(gold, predicted))
    assert here == pytest.approx(values(metric(name)([gold[i] for i in order], [predicted[i] for i in order])))
    most = math.inf if name == "mean_squared_error" else 1
    assert all(math.isfinite(value) and -1 <= value <= most for value in here)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_and_unequal_numbers_are_errors_of_one_line(name: str) -> None:
    function = metric(name)
    for gold, predicted in (([], []), (PERFECT[name][0], WRONG[name][:-1])):
        with pytest.raises(DataError, match=rf"\b{len(predicted)}\b" if predicted else None) as error:
            function(gold, predicted)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["accuracy", "f1", "f1_macro", "f1_micro", "matthews", "accuracy_f1"])
@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1))
def test_these_are_symmetric(name: str, pairs: list[tuple[int, int]]) -> None:
    gold, predicted = zip(*pairs, strict=True)
    assert values(METRICS.get(name)(gold, predicted)) == pytest.approx(values(METRICS.get(name)(predicted, gold)))


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'acuracy'.*'accuracy'"):
        METRICS.get("acuracy")


def test_the_first_of_several_is_the_headline() -> None:
    assert get_headline({"f1": 0.25, "exact_match": 1.0}) == 0.25
    assert get_headline(0.5) == 0.5
