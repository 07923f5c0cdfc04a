"""Answers extracted from retrieved passages: a run fine-tuned for spans (SQuAD) reads each hit (Chen et al., 2017).

run = extractive_run("runs/squad2")                       # None where it is no such run
extract_answers(run, questions, index.search(questions))  # Extracted(text, score, hit, span) for each question
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pretune.core.hub import is_hub
from pretune.inference.index import Hit
from pretune.runs.finetune.finetuned_run import FineTuned
from pretune.runs.finetune.saved_task import TASK
from pretune.tasks import TASKS
from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example


class Extracted(NamedTuple):
    """An answer, its score, its passage, and its place there in characters; an empty text is no answer."""

    text: str
    score: float | None
    hit: Hit | None
    span: tuple[int, int] | None


def extractive_run(path: str | os.PathLike[str], *, device: str | None = None) -> FineTuned | None:
    """Return a fine-tuned run that marks spans in passages; None for any other model, also one that writes answers."""
    if is_hub(path) or not (Path(path) / TASK).is_file():
        return None
    run = FineTuned.open(path, device=device)
    if run.kept.members:
        names = [member.name for member in run.kept.members if TASKS.get(member.name).kind == "span"]
        if not names:
            return None
        run = run.on(names[0])
    return run if run.kept.kind_of == "span" and not run.ready().encoder.written else None


def extract_answers(run: FineTuned, questions: Sequence[str], hits: Sequence[Sequence[Hit]]) -> list[Extracted]:
    """Return the best span among the hits of each question.

    A run that knows of questions without an answer (SQuAD 2.0) compares passages by how much the span scores above no
    answer, and gives none where none is in any passage. Others compare the scores of spans: logits of start plus end.
    """
    asked = [(number, hit) for number, found in enumerate(hits) for hit in found]
    examples = [Example(text=questions[number], pair=hit.text) for number, hit in asked]
    said = run.ready().predict(examples) if examples else []
    may_lack = "squad2" in run.ready().task.metrics
    best: list[Extracted] = [Extracted("", None, None, None)] * len(questions)
    for (number, hit), one in zip(asked, said, strict=True):
        if not one.text or one.span is None:
            continue
        score = _score(one, may_lack)
        before = best[number].score
        if before is None or score > before:
            best[number] = Extracted(one.text, score, hit, one.span)
    return best


def _score(one: Prediction, may_lack: bool) -> float:
    return -one.null if may_lack and one.null is not None else one.best[0].score
