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
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.saved_task import TASK_FILE
from pretune.tasks import TASKS
from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example


class ExtractedAnswer(NamedTuple):
    """An answer, its score, its passage, and its place there in characters; an empty text is no answer."""

    text: str
    score: float | None
    hit: Hit | None
    span: tuple[int, int] | None


def load_extractive_run(path: str | os.PathLike[str], *, device: str | None = None) -> FinetunedRun | None:
    """Return a fine-tuned run that marks spans in passages; None for any other model, also one that writes answers."""
    if is_hub(path) or not (Path(path) / TASK_FILE).is_file():
        return None
    run = FinetunedRun.open(path, device=device)
    if run.saved_task.members:
        names = [member.name for member in run.saved_task.members if TASKS.get(member.name).kind == "span"]
        if not names:
            return None
        run = run.select_task(names[0])
    return run if run.saved_task.kind_of == "span" and not run.load_predictor().encoder.is_generative else None


def extract_answers(
    run: FinetunedRun, questions: Sequence[str], hits: Sequence[Sequence[Hit]]
) -> list[ExtractedAnswer]:
    """Return the best span among the hits of each question.

    A run that knows of questions without an answer (SQuAD 2.0) compares passages by how much the span scores above no
    answer, and gives none where none is in any passage. Others compare the scores of spans: logits of start plus end.
    """
    asked = [(number, hit) for number, found in enumerate(hits) for hit in found]
    examples = [Example(text=questions[number], pair=hit.text) for number, hit in asked]
    said = run.load_predictor().predict(examples) if examples else []
    may_lack = "squad2" in run.load_predictor().task.metrics
    best: list[ExtractedAnswer] = [ExtractedAnswer("", None, None, None)] * len(questions)
    for (number, hit), one in zip(asked, said, strict=True):
        if not one.text or one.span is None:
            continue
        score = _score(one, may_lack)
        before = best[number].score
        if before is None or score > before:
            best[number] = ExtractedAnswer(one.text, score, hit, one.span)
    return best


def _score(prediction: Prediction, allows_no_answer: bool) -> float:
    return (
        -prediction.null_score_diff
        if allows_no_answer and prediction.null_score_diff is not None
        else prediction.candidates[0].score
    )
