"""A line of predictions.jsonl: what was asked, what is right, and what the model said.

    {"split": "test", "id": "7", "label": "bad", "probabilities": {…}, "gold": "good", "input": "a quiet joy"}

`gold` is a label, a number, tags, accepted answers or a text, by the kind of the task. Long texts are cut.
"""

from typing import Any

from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example
from pretune.tasks.task import Task

LONGEST = 600
"""Characters that are kept of a text."""


def line(split: str, name: str, task: Task, example: Example, said: Prediction) -> dict[str, Any]:
    """What is written of one example."""
    found: dict[str, Any] = {"split": split, "id": name, **said.shown(task), "gold": gold(task, example)}
    if task.kind == "tagging":
        return {**found, "words": list(example.words)}
    found["input"] = _cut(example.text)
    return found if example.pair is None else {**found, "pair": _cut(example.pair)}


def gold(task: Task, example: Example) -> Any:
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


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
