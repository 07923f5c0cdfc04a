"""Lines of predictions.jsonl: input, gold answer and prediction.

    {"split": "test", "id": "7", "label": "bad", "probabilities": {…}, "gold": "good", "input": "a quiet joy"}

The gold answer is a label, number, tags, accepted answers or text, by the kind of the task. Long texts are truncated.
"""

from typing import Any

from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example
from pretune.tasks.task import Task

MAX_CHARACTERS = 600
"""Maximum number of characters of a text."""


def build_row(split: str, name: str, task: Task, example: Example, prediction: Prediction) -> dict[str, Any]:
    """Return the record of one example."""
    row: dict[str, Any] = {"split": split, "id": name, **prediction.to_dict(task), "gold": format_gold(task, example)}
    if task.kind == "tagging":
        return {**row, "words": list(example.words)}
    row["input"] = _truncate(example.text)
    return row if example.pair is None else {**row, "pair": _truncate(example.pair)}


def format_gold(task: Task, example: Example) -> Any:
    """Return the gold answer in the format of predictions; None if unknown."""
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
