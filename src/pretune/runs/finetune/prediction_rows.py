"""A line of predictions.jsonl: what was asked, what is right, and what the model said.

    {"split": "test", "id": "7", "label": "bad", "probabilities": {…}, "gold": "good", "input": "a quiet joy"}

`format_gold` is a label, a number, tags, accepted answers or a text, by the kind of the task. Long texts are cut.
"""

from typing import Any

from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example
from pretune.tasks.task import Task

MAX_CHARACTERS = 600
"""Characters that are kept of a text."""


def build_row(split: str, name: str, task: Task, example: Example, prediction: Prediction) -> dict[str, Any]:
    """What is written of one example."""
    found: dict[str, Any] = {"split": split, "id": name, **prediction.to_dict(task), "gold": format_gold(task, example)}
    if task.kind == "tagging":
        return {**found, "words": list(example.words)}
    found["input"] = _truncate(example.text)
    return found if example.pair is None else {**found, "pair": _truncate(example.pair)}


def format_gold(task: Task, example: Example) -> Any:
    """The right answer, named as predictions are; None where it is not known."""
    if task.kind == "tagging":
        return list(example.tags) or None
    if task.kind == "span":
        return list(example.answers)
    if task.kind == "generation":
        return example.target
    if example.label is None or task.kind == "regression":
        return example.label
    place = int(example.label)
    return task.labels[place] if 0 <= place < len(task.labels) else place


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
