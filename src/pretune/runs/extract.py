"""Answers extracted from retrieved passages: a run fine-tuned for spans (SQuAD) reads each hit (Chen et al., 2017).

run = load_extractive_run("runs/squad2")                  # None for any other run
extract_answers(run, questions, index.search(questions))  # ExtractedAnswer(text, score, hit, span) each
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pretune.core.hub import is_hub
from pretune.core.run_dir import RunDir
from pretune.inference.index import Hit
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.tasks import TASKS
from pretune.tasks.example import Example, Prediction
from pretune.tasks.types import get_type
from pretune.tasks.types.span import allows_no_answer


class ExtractedAnswer(NamedTuple):
    """Answer with its score, passage, and character span there; an empty text is no answer."""

    text: str
    score: float | None
    hit: Hit | None
    span: tuple[int, int] | None


def load_extractive_run(path: str | os.PathLike[str], *, device: str | None = None) -> FinetunedRun | None:
    """Return a run fine-tuned to extract spans; None for any other model, also a generative one."""
    if is_hub(path) or not RunDir(Path(path)).is_finetuned:
        return None
    run = FinetunedRun.open(path, device=device)
    if run.saved_task.members:
        names = [
            member.name for member in run.saved_task.members if get_type(TASKS.get(member.name)).scoring.gold == "span"
        ]
        if not names:
            return None
        run = run.select_task(names[0])
    is_extractive = get_type(run.saved_task.build_task()).scoring.gold == "span"
    return run if is_extractive and not run.load_predictor().encoder.is_generative else None


def extract_answers(
    run: FinetunedRun, questions: Sequence[str], hits: Sequence[Sequence[Hit]]
) -> list[ExtractedAnswer]:
    """Return the best span among the hits of each question.

    A run with unanswerable questions (SQuAD 2.0) ranks passages by the margin of the span over no answer, and returns
    none if no passage has one. Others rank by span score: start plus end logits.
    """
    candidates = [(number, hit) for number, query_hits in enumerate(hits) for hit in query_hits]
    examples = [Example(text=questions[number], pair=hit.text) for number, hit in candidates]
    predictions = run.load_predictor().predict(examples) if examples else []
    may_lack = allows_no_answer(run.load_predictor().task)
    best: list[ExtractedAnswer] = [ExtractedAnswer("", None, None, None)] * len(questions)
    for (number, hit), prediction in zip(candidates, predictions, strict=True):
        if not prediction.text or prediction.span is None:
            continue
        score = _score(prediction, may_lack)
        best_score = best[number].score
        if best_score is None or score > best_score:
            best[number] = ExtractedAnswer(prediction.text, score, hit, prediction.span)
    return best


def _score(prediction: Prediction, allows_no_answer: bool) -> float:
    return (
        -prediction.null_score_diff
        if allows_no_answer and prediction.null_score_diff is not None
        else prediction.candidates[0].score
    )
