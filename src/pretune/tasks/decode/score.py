"""The official scores of predictions: a task's metrics on what its examples say is right."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.core.format import format_count
from pretune.metrics import METRICS
from pretune.metrics.groups import GROUP_METRICS, group_values
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.encode.base import format_example
from pretune.tasks.example import Example
from pretune.tasks.task import Task

_NO_LABEL = -1  # the label of an answer that stands for none: never right

GoldAndPredicted = tuple[list[Any], list[Any]]
"""What is right and what was said, one each."""


def score(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    """The scores by name, the headline of the official metric first; 1 is perfect."""
    if len(examples) != len(predictions):
        raise DataError(
            f"{format_count(len(predictions), 'predictions')} for {format_count(len(examples), 'examples')}; pass one for each"
        )
    found: dict[str, float] = {}
    for name in task.metrics:
        gold, said = _COLLECTORS.get(name, _collect_labels)(task, examples, predictions)
        result = METRICS.get(name)(gold, said)
        if not isinstance(result, Mapping):
            result = {name: result}
        for part, value in result.items():
            found[part if part not in found else f"{name}_{part}"] = value
        if name == "squad2":
            found |= _score_thresholds(examples, predictions)
    return found


def _collect_labels(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> GoldAndPredicted:
    said = [_NO_LABEL if one.label is None else one.label for one in predictions]
    return [_get_label(task, at, example) for at, example in enumerate(examples)], said


def _collect_values(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> GoldAndPredicted:
    gold = [float(_get_label(task, at, example)) for at, example in enumerate(examples)]
    return gold, [one.value for one in predictions]


def _collect_groups(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> GoldAndPredicted:
    gold, said = _collect_labels(task, examples, predictions)
    groups = [example.group or f"\0{number}" for number, example in enumerate(examples)]
    return group_values(gold, groups), group_values(said, groups)


def _collect_option_scores(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> GoldAndPredicted:
    gold, _ = _collect_labels(task, examples, predictions)
    return gold, [one.scores for one in predictions]


def _collect_tags(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> GoldAndPredicted:
    for at, example in enumerate(examples):
        if len(example.tags) != len(example.words):
            raise _missing_label_error(task, at, example)
    return [list(example.tags) for example in examples], [list(one.tags) for one in predictions]


def _collect_answers(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> GoldAndPredicted:
    """Accepted answers and the one that was given: as text, or as the name of the chosen option."""
    said = []
    for example, one in zip(examples, predictions, strict=True):
        chosen = example.choices[one.label] if one.label is not None and example.choices else None
        said.append(chosen if chosen is not None else one.text or "")
    return [list(example.answers) for example in examples], said


def _collect_texts(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> GoldAndPredicted:
    for at, example in enumerate(examples):
        if example.target is None:
            raise _missing_label_error(task, at, example)
    return [example.target for example in examples], [one.text or "" for one in predictions]


def _score_thresholds(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    """What the best threshold on no answer would give, where the predictions say how sure they are."""
    doubts = [one.null_score_diff for one in predictions if one.null_score_diff is not None]
    if len(doubts) != len(predictions):
        return {}
    texts = [one.candidates[0].text if one.candidates else "" for one in predictions]
    result = METRICS.get("squad2")([list(example.answers) for example in examples], texts, no_answer=doubts)
    assert isinstance(result, dict)
    return {name: value for name, value in result.items() if name.startswith("best_")}


def _get_label(task: Task, index: int, example: Example) -> int | float:
    if example.label is None:
        raise _missing_label_error(task, index, example)
    return example.label


def _missing_label_error(task: Task, index: int, example: Example) -> DataError:
    return DataError(
        f"task '{task.name}': example {index} ({format_example(example)}) does not say what is right, so it cannot be scored; "
        "score a split that has labels"
    )


_COLLECTORS: dict[str, Callable[..., GoldAndPredicted]] = {
    **dict.fromkeys(("pearson", "spearman", "pearson_spearman", "mean_squared_error"), _collect_values),
    **dict.fromkeys(GROUP_METRICS, _collect_groups),
    **dict.fromkeys(("choice_accuracy", "calibration_error"), _collect_option_scores),
    **dict.fromkeys(("tag_accuracy", "entity_f1", "entity_f1_strict"), _collect_tags),
    **dict.fromkeys(("squad", "squad2", "exact_match", "record"), _collect_answers),
    **dict.fromkeys(("rouge", "rouge_stemmed", "bleu", "chrf"), _collect_texts),
}
"""What each metric compares; all others compare labels."""
