"""By how much runs beat a baseline: the difference is that of the scores in the table, whatever the metric is."""

import random
from collections.abc import Callable

import pytest

from pretune.runs.finetune import results
from pretune.runs.finetune.results import bootstrap, find_collapse, read_predictions
from pretune.runs.finetune.task_data import TaskData, compute_scores
from pretune.runs.finetune.trial import _compact_prediction
from pretune.tasks.example import Example, Prediction
from pretune.tasks.task import Task, TaskSplits

TEXTS = ("the old sea", "a grey stone", "the long road home", "salt")
TAGS = ("O", "B-PER", "B-LOC")

Made = tuple[Example, Callable[[bool], Prediction]]
"""An example, and what is said of it rightly or wrongly."""


def classes(rng: random.Random, at: int) -> Made:
    return Example(text="x", label=at % 2), lambda right: Prediction(label=at % 2 if right else 1 - at % 2)


def scores(rng: random.Random, at: int) -> Made:
    value = rng.random() * 5
    return Example(text="x", label=value), lambda right: Prediction(value=value if right else rng.random() * 5)


def tags(rng: random.Random, at: int) -> Made:
    found = tuple(rng.choices(TAGS, k=4))
    return Example(text="", words=("a",) * 4, tags=found), lambda right: Prediction(tags=found if right else ("O",) * 4)


def spans(rng: random.Random, at: int) -> Made:
    text = TEXTS[at % 4]
    example = Example(text="q", pair=text, answers=(text,), spans=((0, len(text)),))
    return example, lambda right: Prediction(text=text if right else text.split()[0] + " and more")


def options(rng: random.Random, at: int) -> Made:
    right = float(at % 2)
    return Example(text="x", choices=("a", "b"), label=at % 2), lambda good: Prediction(
        label=at % 2 if good else 1 - at % 2, scores=(1 - right, right) if good else (right, 1 - right)
    )


def written(rng: random.Random, at: int) -> Made:
    text = TEXTS[at % 4]
    return Example(text="x", target=text), lambda right: Prediction(text=text if right else "the " + text[::-1])


CASES: dict[str, tuple[str, Callable[[random.Random, int], Made]]] = {
    "accuracy": ("classification", classes),
    "f1": ("classification", classes),
    "matthews": ("classification", classes),
    "pearson_spearman": ("regression", scores),
    "entity_f1": ("tagging", tags),
    "squad": ("span", spans),
    "choice_accuracy": ("choice", options),
    "rouge": ("generation", written),
}


@pytest.mark.parametrize("metric", CASES)
def test_the_difference_is_that_of_the_scores(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "BOOTSTRAP_ROUNDS", 100)
    kind, make = CASES[metric]
    rng = random.Random(1)
    made = [make(rng, at) for at in range(60)]
    examples = [example for example, _ in made]
    labels = {"classification": ("a", "b"), "tagging": TAGS}.get(kind, ())
    task = Task(name="own", kind=kind, metrics=(metric,), splits={}, labels=labels)
    opened = TaskData(task=task, parts=TaskSplits(train=examples, dev=[], test=examples))
    said = [[say(rng.random() < share) for _, say in made] for share in (0.95, 0.85, 0.4)]
    *ours, other = (next(iter(compute_scores(opened, examples, one).values())) for one in said)
    found = bootstrap(opened, said[:2], said[2])
    assert found.difference == pytest.approx(sum(ours) / 2 - other) and found.difference > 0.1
    assert found.low <= found.difference <= found.high and found.p < 0.05 and found.examples == 60
    back = bootstrap(opened, [said[2]], said[0])
    assert back.difference < 0 and back.p > 0.95


@pytest.mark.parametrize("metric", CASES)
def test_what_is_kept_of_predictions_is_enough_for_the_metric(metric: str) -> None:
    kind, make = CASES[metric]
    rng = random.Random(2)
    made = [make(rng, at) for at in range(20)]
    said = [say(rng.random() < 0.7) for _, say in made]
    again = read_predictions({"predictions": {"test": [_compact_prediction(one) for one in said]}}, "test")
    task = Task(name="own", kind=kind, metrics=(metric,), splits={}, labels=TAGS if kind == "tagging" else ("a", "b"))
    opened = TaskData(task=task, parts=TaskSplits(train=[], dev=[], test=[example for example, _ in made]))
    assert compute_scores(opened, opened.parts.test, again) == compute_scores(opened, opened.parts.test, said)


def test_questions_are_drawn_with_all_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a question, or one twice over, is not what exact match is about."""
    monkeypatch.setattr(results, "BOOTSTRAP_ROUNDS", 100)
    examples = [Example(text="p", pair="q", label=at % 3 % 2, group=str(at // 3)) for at in range(60)]
    task = Task(name="own", kind="pair", metrics=("multirc",), splits={}, labels=("a", "b"))
    opened = TaskData(task=task, parts=TaskSplits(train=[], dev=[], test=examples))
    right = [Prediction(label=int(one.label or 0)) for one in examples]
    wrong = [Prediction(label=(1, 1, 0)[at % 3]) for at in range(60)]  # F1a 2/3, exact match 0
    seen: list[tuple[int, int]] = []

    def counted(opened: TaskData, gold: list[Example], said: list[Prediction]) -> dict[str, float]:
        seen.append((len(gold), len({one.group for one in gold})))
        return compute_scores(opened, gold, said)

    monkeypatch.setattr(results, "compute_scores", counted)
    found = bootstrap(opened, [right], wrong)
    assert found.examples == 20 and {*seen} == {(60, 20)}
    assert (found.low, found.difference, found.high) == pytest.approx((2 / 3, 2 / 3, 2 / 3))  # all questions are alike


CLASSES = [Example(text="x", label=number % 2) for number in range(6)]
WORDS = [Example(text="", words=("a", "b"), tags=("O", "B-PER"))] * 6
SETS = [Example(text="x", tags=("a",) * (number % 2)) for number in range(6)]


@pytest.mark.parametrize(
    ("kind", "examples", "predictions", "expected"),
    [
        ("classification", CLASSES, [Prediction(label=1)] * 6, "'b'"),
        ("classification", CLASSES, [Prediction(label=number % 2) for number in range(6)], None),
        ("classification", CLASSES[1::2], [Prediction(label=1)] * 3, None),  # as the gold labels do
        ("tagging", WORDS, [Prediction(tags=("O", "O"))] * 6, "'O'"),
        ("tagging", WORDS, [Prediction(tags=("O", "B-PER"))] * 6, None),
        ("multi-label", SETS, [Prediction(tags=())] * 6, "no label"),
        ("multi-label", SETS, [Prediction(tags=("a", "b"))] * 6, "'a, b'"),
        ("regression", CLASSES, [Prediction(value=1.0)] * 6, None),
    ],
)
@pytest.mark.parametrize(("steps", "advice"), [(22, "train longer"), (5000, "--lr")])
def test_a_model_that_predicts_one_class_says_so(
    kind: str, examples: list[Example], predictions: list[Prediction], expected: str | None, steps: int, advice: str
) -> None:
    labels = {"tagging": TAGS}.get(kind, ("a", "b"))
    task = Task(name="own", kind=kind, metrics=("accuracy",), splits={}, labels=labels)
    task_data = TaskData(task=task, parts=TaskSplits(train=examples, dev=[], test=examples))
    records = [_compact_prediction(prediction) for prediction in predictions]
    note = find_collapse(task_data, {"steps": steps, "seed": 3, "predictions": {"test": records}})
    assert (note is None) == (expected is None)
    if note is not None:
        assert expected in note and advice in note and "seed 3" in note
