"""Official scores of predictions: a task's metrics on the labels of its examples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretune.core.errors import DataError
from pretune.core.format import format_count
from pretune.metrics import METRICS
from pretune.metrics.classification import GROUP_METRICS, group_values
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.encode.base import format_example
from pretune.tasks.example import Example
from pretune.tasks.task import Task

_NO_LABEL = -1  # label of an invalid answer: always wrong

LabelsAndPredictions = tuple[list[Any], list[Any]]
"""Labels (or other references) and predictions, one each."""


def score(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    """Return the scores by name, the official metric's first; 1 is perfect."""
    if len(examples) != len(predictions):
        counts = f"{format_count(len(predictions), 'predictions')} for {format_count(len(examples), 'examples')}"
        raise DataError(f"{counts}; pass one for each")
    scores: dict[str, float] = {}
    for name in task.metrics:
        gold, outputs = _COLLECTORS.get(name, _collect_labels)(task, examples, predictions)
        result = METRICS.get(name)(gold, outputs)
        if not isinstance(result, Mapping):
            result = {name: result}
        for part, value in result.items():
            scores[part if part not in scores else f"{name}_{part}"] = value
        if name == "squad2":
            scores |= _score_thresholds(examples, predictions)
    return scores


def _collect_labels(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
    outputs = [_NO_LABEL if prediction.label is None else prediction.label for prediction in predictions]
    return [_get_label(task, index, example) for index, example in enumerate(examples)], outputs


def _collect_values(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
    gold = [float(_get_label(task, index, example)) for index, example in enumerate(examples)]
    return gold, [prediction.value for prediction in predictions]


def _collect_groups(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
    gold, outputs = _collect_labels(task, examples, predictions)
    groups = [example.group or f"\0{number}" for number, example in enumerate(examples)]
    return group_values(gold, groups), group_values(outputs, groups)


def _collect_option_scores(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> LabelsAndPredictions:
    gold, _ = _collect_labels(task, examples, predictions)
    return gold, [prediction.scores for prediction in predictions]


def _collect_tags(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
    for index, example in enumerate(examples):
        if len(example.tags) != len(example.words):
            raise _missing_label_error(task, index, example)
    return [list(example.tags) for example in examples], [list(prediction.tags) for prediction in predictions]


def _collect_answers(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> LabelsAndPredictions:
    """Return the reference answers and the predicted ones: as text, or as the name of the predicted option."""
    answers = []
    for example, prediction in zip(examples, predictions, strict=True):
        option = example.choices[prediction.label] if prediction.label is not None and example.choices else None
        answers.append(option if option is not None else prediction.text or "")
    return [list(example.answers) for example in examples], answers


def _collect_texts(task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]) -> LabelsAndPredictions:
    for index, example in enumerate(examples):
        if example.target is None:
            raise _missing_label_error(task, index, example)
    return [example.target for example in examples], [prediction.text or "" for prediction in predictions]


def _score_thresholds(examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
    """Return the scores with the best no-answer threshold, if all predictions have a `null_score_diff`."""
    null_score_diffs = [
        prediction.null_score_diff for prediction in predictions if prediction.null_score_diff is not None
    ]
    if len(null_score_diffs) != len(predictions):
        return {}
    texts = [prediction.candidates[0].text if prediction.candidates else "" for prediction in predictions]
    result = METRICS.get("squad2")([list(example.answers) for example in examples], texts, no_answer=null_score_diffs)
    assert isinstance(result, dict)
    return {name: value for name, value in result.items() if name.startswith("best_")}


def _get_label(task: Task, index: int, example: Example) -> int | float:
    if example.label is None:
        raise _missing_label_error(task, index, example)
    return example.label


def _missing_label_error(task: Task, index: int, example: Example) -> DataError:
    return DataError(
        f"task '{task.name}': example {index} ({format_example(example)}) has no label, so it cannot be scored; "
        "use a split with labels"
    )


_COLLECTORS: dict[str, Callable[..., LabelsAndPredictions]] = {
    **dict.fromkeys(("pearson", "spearman", "pearson_spearman", "mean_squared_error"), _collect_values),
    **dict.fromkeys(GROUP_METRICS, _collect_groups),
    **dict.fromkeys(("choice_accuracy", "calibration_error"), _collect_option_scores),
    **dict.fromkeys(("tag_accuracy", "entity_f1", "entity_f1_strict"), _collect_tags),
    **dict.fromkeys(("squad", "squad2", "exact_match", "record"), _collect_answers),
    **dict.fromkeys(("rouge", "rouge_stemmed", "bleu", "chrf"), _collect_texts),
}
"""Function that collects labels and predictions for each metric; the default is `_collect_labels`."""
