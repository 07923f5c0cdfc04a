"""`Prediction`: what a model says of one example. Which fields are filled depends on the task's kind, as in `Example`.

    classification, pair   label, probabilities of the classes
    regression             value, on the task's scale
    tagging                tags, one for each word
    span                   text (empty: no answer), span in characters, null, best
    choice                 label, scores and probabilities of the options
    generation             text

Where answers are written, `text` is what was written, and `label` or `value` what it stands for, if anything.
"""

from dataclasses import dataclass
from typing import Any

from pretune.tasks.task import Task


@dataclass(frozen=True, slots=True)
class AnswerCandidate:
    """An answer in a passage."""

    text: str
    score: float
    span: tuple[int, int]  # in characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model says of one example."""

    label: int | None = None
    probabilities: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    value: float | None = None
    tags: tuple[str, ...] = ()
    text: str | None = None
    span: tuple[int, int] | None = None
    null_score_diff: float | None = None  # by how much no answer scores higher than the best one
    candidates: tuple[AnswerCandidate, ...] = ()  # answers, the best first

    def to_dict(self, task: Task) -> dict[str, Any]:
        """What there is to tell, by name, for JSON."""
        found: dict[str, Any] = {}
        if self.label is not None:
            found["label"] = task.labels[self.label] if 0 <= self.label < len(task.labels) else self.label
        if self.probabilities and len(task.labels) == len(self.probabilities):
            found["probabilities"] = {
                name: round(share, 6) for name, share in zip(task.labels, self.probabilities, strict=True)
            }
        elif self.probabilities:
            found["probabilities"] = [round(share, 6) for share in self.probabilities]
        if self.value is not None:
            found["score"] = round(self.value, 6)
        if self.tags:
            found["tags"] = list(self.tags)
        if self.text is not None:
            found["text"] = self.text
        if self.span is not None:
            found["span"] = list(self.span)
        if self.null_score_diff is not None:
            found["no_answer"] = round(self.null_score_diff, 6)
        return found
