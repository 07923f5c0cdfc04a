"""The official scores of predictions: a task's metrics on what its examples say is right."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.metrics import METRICS
from pretune.metrics.averages import suite_averages
from pretune.metrics.groups import GROUPED, by_group
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.encode.base import name_of
from pretune.tasks.example import Example
from pretune.tasks.task import Task

_NOTHING = -1  # the label of an answer that stands for none: never right

Pairs = tuple[list[Any], list[Any]]
"""What is right and what was said, one each."""


def score(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    """The scores by name, the headline of the official metric first; 1 is perfect."""
    if len(examples) != len(predictions):
        raise DataError(f"{len(predictions)} predictions for {len(examples)} examples; give one for each")
    found: dict[str, float] = {}
    for name in task.metrics:
        gold, said = _PAIRS.get(name, _labels)(task, examples, predictions)
        result = METRICS.get(name)(gold, said)
        if not isinstance(result, Mapping):
            result = {name: result}
        for part, value in result.items():
            found[part if part not in found else f"{name}_{part}"] = value
        if name == "squad2":
            found |= _thresholds(examples, predictions)
    return found


def group_average(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the averages of GLUE, SuperGLUE and STS 2012 to 2016, each where all its tasks have been scored."""
    return suite_averages(scores)


def _labels(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    said = [_NOTHING if one.label is None else one.label for one in predictions]
    return [_known(task, at, example) for at, example in enumerate(examples)], said


def _values(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    gold = [float(_known(task, at, example)) for at, example in enumerate(examples)]
    return gold, [one.value for one in predictions]


def _grouped(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    gold, said = _labels(task, examples, predictions)
    groups = [example.group or f"\0{number}" for number, example in enumerate(examples)]
    return by_group(gold, groups), by_group(said, groups)


def _options(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    gold, _ = _labels(task, examples, predictions)
    return gold, [one.scores for one in predictions]


def _tags(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    for at, example in enumerate(examples):
        if len(example.tags) != len(example.words):
            raise _missing(task, at, example)
    return [list(example.tags) for example in examples], [list(one.tags) for one in predictions]


def _answers(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    """Accepted answers and the one that was given: as text, or as the name of the chosen option."""
    said = []
    for example, one in zip(examples, predictions, strict=True):
        chosen = example.choices[one.label] if one.label is not None and example.choices else None
        said.append(chosen if chosen is not None else one.text or "")
    return [list(example.answers) for example in examples], said


def _written(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Pairs:
    for at, example in enumerate(examples):
        if example.target is None:
            raise _missing(task, at, example)
    return [example.target for example in examples], [one.text or "" for one in predictions]


def _thresholds(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    """What the best threshold on no answer would give, where the predictions say how sure they are."""
    doubts = [one.null for one in predictions if one.null is not None]
    if len(doubts) != len(predictions):
        return {}
    texts = [one.best[0].text if one.best else "" for one in predictions]
    result = METRICS.get("squad2")([list(example.answers) for example in examples], texts, no_answer=doubts)
    assert isinstance(result, dict)
    return {name: value for name, value in result.items() if name.startswith("best_")}


def _known(task: Task, at: int, example: Example) -> int | float:
    if example.label is None:
        raise _missing(task, at, example)
    return example.label


def _missing(task: Task, at: int, example: Example) -> DataError:
    return DataError(
        f"task '{task.name}': example {at} ({name_of(example)}) does not say what is right, so it cannot be scored; "
        "score a split that has labels"
    )


_PAIRS: dict[str, Callable[..., Pairs]] = {
    **dict.fromkeys(("pearson", "spearman", "pearson_spearman", "mean_squared_error"), _values),
    **dict.fromkeys(GROUPED, _grouped),
    **dict.fromkeys(("choice_accuracy", "calibration_error"), _options),
    **dict.fromkeys(("tag_accuracy", "entity_f1", "entity_f1_strict"), _tags),
    **dict.fromkeys(("squad", "squad2", "exact_match", "record"), _answers),
    **dict.fromkeys(("rouge", "rouge_stemmed", "bleu", "chrf"), _written),
}
"""What each metric compares; all others compare labels."""
