"""`Prediction`: the prediction for one example. Its fields depend on the task's kind, as in `Example`.

    classification, pair   label, probabilities of the classes
    regression             value, on the task's scale
    tagging                tags, one per word
    span                   text (empty: no answer), span in characters, null_score_diff, candidates
    choice                 label, scores and probabilities of the options
    generation             text

For text-to-text models `text` is the generated answer, and `label` or `value` its meaning, if it has one.
"""

from dataclasses import dataclass
from typing import Any

from pretune.tasks.task import Task


@dataclass(frozen=True, slots=True)
class AnswerCandidate:
    """A candidate answer in a passage."""

    text: str
    score: float
    span: tuple[int, int]  # in characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for one example."""

    label: int | None = None
    probabilities: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    value: float | None = None
    tags: tuple[str, ...] = ()
    text: str | None = None
    span: tuple[int, int] | None = None
    null_score_diff: float | None = None  # score of no answer minus that of the best answer
    candidates: tuple[AnswerCandidate, ...] = ()  # answers, best first

    def to_dict(self, task: Task) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        record: dict[str, Any] = {}
        if self.label is not None:
            record["label"] = task.labels[self.label] if 0 <= self.label < len(task.labels) else self.label
        if self.probabilities and len(task.labels) == len(self.probabilities):
            record["probabilities"] = {
                name: round(share, 6) for name, share in zip(task.labels, self.probabilities, strict=True)
            }
        elif self.probabilities:
            record["probabilities"] = [round(share, 6) for share in self.probabilities]
        if self.value is not None:
            record["score"] = round(self.value, 6)
        if self.tags:
            record["tags"] = list(self.tags)
        if self.text is not None:
            record["text"] = self.text
        if self.span is not None:
            record["span"] = list(self.span)
        if self.null_score_diff is not None:
            record["no_answer"] = round(self.null_score_diff, 6)
        return record
