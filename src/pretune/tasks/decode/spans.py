"""Answers in a passage, from the logits of all its windows (Devlin et al., 2019; SQuAD 2.0's evaluation script)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Ints
from pretune.metrics.question_answering import squad2
from pretune.tasks.decode.logits import Floats
from pretune.tasks.decode.prediction import AnswerCandidate, Prediction
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.items import Items
from pretune.tasks.encode.span import find_characters, get_passage
from pretune.tasks.encode.token_pool import deduplicate
from pretune.tasks.example import Example

NUM_STARTS = 20
"""Number of best starts and ends of a window that are combined."""
MAX_ANSWER_TOKENS = 30
"""Maximum tokens of an answer."""
MAX_CANDIDATES = 5
"""Candidate answers kept per example."""

_NO_ANSWER_METRIC = "squad2"  # metric of tasks with unanswerable questions


def predict_spans(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """Return the best answers over all windows; no answer if that scores higher and the task allows it."""
    assert items.alignment is not None
    passages, passage_ids = deduplicate([get_passage(example) for example in examples])
    pool = encoder.rules.tokenize(passages)
    offsets = items.sequences.offsets
    null_index = 0 if items.sequences.source is not None else encoder.slots  # token of the no-answer score
    nulls = np.full(len(examples), np.inf)
    spans_by_example: list[list[tuple[float, int, int]]] = [[] for _ in examples]
    for window, example in enumerate(items.examples):
        low, high = offsets[window], offsets[window + 1]
        nulls[example] = min(nulls[example], float(logits[low + null_index].sum()))
        spans_by_example[example] += _score_spans(logits[low:high], items.alignment[low:high])
    allows_no_answer = _NO_ANSWER_METRIC in encoder.task.metrics
    predictions: list[Prediction] = []
    for number, spans in enumerate(spans_by_example):
        starts = pool.starts[pool.offsets[passage_ids[number]] : pool.offsets[passage_ids[number] + 1]]
        best = _select_candidates(passages[passage_ids[number]], starts, spans)
        predictions.append(
            apply_threshold([_build_prediction(best, float(nulls[number]))], 0.0 if allows_no_answer else np.inf)[0]
        )
    return predictions


def apply_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """Return the predictions with no answer where `null_score_diff` is above the threshold."""
    results: list[Prediction] = []
    for prediction in predictions:
        has_answer = bool(prediction.candidates) and (
            prediction.null_score_diff is None or prediction.null_score_diff <= threshold
        )
        text, span = (prediction.candidates[0].text, prediction.candidates[0].span) if has_answer else ("", None)
        results.append(replace(prediction, text=text, span=span))
    return results


def find_no_answer_threshold(examples: Sequence[Example], predictions: Sequence[Prediction]) -> float:
    """Return the threshold with the best F1 on these examples, which should be held out from training."""
    null_score_diffs = [
        prediction.null_score_diff for prediction in predictions if prediction.null_score_diff is not None
    ]
    if len(null_score_diffs) != len(predictions):
        raise UsageError("predictions have no null_score_diff; only a span head computes it")
    texts = [prediction.candidates[0].text if prediction.candidates else "" for prediction in predictions]
    scores = squad2([example.answers for example in examples], texts, no_answer=null_score_diffs)
    return scores["best_f1_threshold"]


def _score_spans(logits: Floats, alignment: Ints) -> list[tuple[float, int, int]]:
    """Return the best spans of a window: score, first and last token in the passage."""
    places = np.flatnonzero(alignment >= 0)
    if not len(places):
        return []
    start, end = logits[places, 0], logits[places, 1]
    first, last = (np.argsort(-side, kind="stable")[:NUM_STARTS] for side in (start, end))
    sums = start[first][:, None] + end[last][None]
    length = last[None] - first[:, None]
    sums = np.where((length >= 0) & (length < MAX_ANSWER_TOKENS), sums, -np.inf)
    if not np.isfinite(sums).any():  # no valid combination
        first = last = np.array([int((start + end).argmax())])
        sums = (start + end)[first][:, None]
    order = np.argsort(-sums, axis=None, kind="stable")[: 2 * MAX_CANDIDATES]
    rows, columns = np.unravel_index(order, sums.shape)
    return [
        (float(sums[row, column]), int(alignment[places[first[row]]]), int(alignment[places[last[column]]]))
        for row, column in zip(rows, columns, strict=True)
        if np.isfinite(sums[row, column])
    ]


def _select_candidates(
    text: str, starts: Ints, scored_spans: list[tuple[float, int, int]]
) -> tuple[AnswerCandidate, ...]:
    """Return the best answers as text, without duplicates."""
    candidates: dict[str, AnswerCandidate] = {}
    for score, first, last in sorted(scored_spans, key=lambda item: -item[0]):
        begin, end = find_characters(text, starts, first, last)
        if text[begin:end] and text[begin:end] not in candidates:
            candidates[text[begin:end]] = AnswerCandidate(text[begin:end], score, (begin, end))
        if len(candidates) == MAX_CANDIDATES:
            break
    return tuple(candidates.values())


def _build_prediction(candidates: tuple[AnswerCandidate, ...], null_score: float) -> Prediction:
    return Prediction(
        candidates=candidates,
        null_score_diff=null_score - candidates[0].score if candidates else np.finfo(np.float32).max.item(),
    )
