"""The answer in a passage, from what a model says of all its windows (Devlin et al., 2019; SQuAD 2.0's own script)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.ragged import Ints
from pretune.metrics.question_answering import squad2
from pretune.tasks.decode.logits import Floats
from pretune.tasks.decode.prediction import AnswerCandidate, Prediction
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.items import Items
from pretune.tasks.encode.span import find_characters, get_passage
from pretune.tasks.encode.token_pool import deduplicate
from pretune.tasks.example import Example

NUM_STARTS = 20
"""So many of the likeliest starts and ends of a window are tried together."""
MAX_ANSWER_TOKENS = 30
"""Tokens of an answer at most."""
MAX_CANDIDATES = 5
"""Answers that are told of each example."""

_NO_ANSWER_METRIC = "squad2"  # the metric of tasks in which a question may have no answer


def predict_spans(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """The best answers over all windows; no answer where that scores higher, if the task knows of that."""
    assert items.alignment is not None
    once, which = deduplicate([get_passage(example) for example in examples])
    pool = encoder.rules.tokenize(once)
    offsets = items.sequences.offsets
    null = 0 if items.sequences.source is not None else encoder.slots  # where no answer is said
    nulls = np.full(len(examples), np.inf)
    tried: list[list[tuple[float, int, int]]] = [[] for _ in examples]
    for window, example in enumerate(items.examples):
        low, high = offsets[window], offsets[window + 1]
        nulls[example] = min(nulls[example], float(logits[low + null].sum()))
        tried[example] += _score_spans(logits[low:high], items.alignment[low:high])
    may = _NO_ANSWER_METRIC in encoder.task.metrics
    found: list[Prediction] = []
    for number, some in enumerate(tried):
        starts = pool.starts[pool.offsets[which[number]] : pool.offsets[which[number] + 1]]
        best = _select_candidates(once[which[number]], starts, some)
        found.append(apply_threshold([_build_prediction(best, float(nulls[number]))], 0.0 if may else np.inf)[0])
    return found


def apply_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """The same answers, but none where no answer scores higher by more than the threshold."""
    found: list[Prediction] = []
    for one in predictions:
        given = bool(one.candidates) and (one.null_score_diff is None or one.null_score_diff <= threshold)
        text, span = (one.candidates[0].text, one.candidates[0].span) if given else ("", None)
        found.append(replace(one, text=text, span=span))
    return found


def find_no_answer_threshold(examples: Sequence[Example], predictions: Sequence[Prediction]) -> float:
    """The threshold with the best F1 on these examples, which should be held out from training."""
    doubts = [one.null_score_diff for one in predictions if one.null_score_diff is not None]
    if len(doubts) != len(predictions):
        raise UsageError("these predictions do not say how sure they are of no answer; a span head does")
    texts = [one.candidates[0].text if one.candidates else "" for one in predictions]
    found = squad2([example.answers for example in examples], texts, no_answer=doubts)
    return found["best_f1_threshold"]


def _score_spans(logits: Floats, alignment: Ints) -> list[tuple[float, int, int]]:
    """Scores of spans of one window, each with its first and last token in the passage."""
    places = np.flatnonzero(alignment >= 0)
    if not len(places):
        return []
    start, end = logits[places, 0], logits[places, 1]
    first, last = (np.argsort(-side, kind="stable")[:NUM_STARTS] for side in (start, end))
    sums = start[first][:, None] + end[last][None]
    length = last[None] - first[:, None]
    sums = np.where((length >= 0) & (length < MAX_ANSWER_TOKENS), sums, -np.inf)
    if not np.isfinite(sums).any():  # none of them go together
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
    """The best answers as text, each once."""
    found: dict[str, AnswerCandidate] = {}
    for score, first, last in sorted(scored_spans, key=lambda one: -one[0]):
        begin, end = find_characters(text, starts, first, last)
        if text[begin:end] and text[begin:end] not in found:
            found[text[begin:end]] = AnswerCandidate(text[begin:end], score, (begin, end))
        if len(found) == MAX_CANDIDATES:
            break
    return tuple(found.values())


def _build_prediction(candidates: tuple[AnswerCandidate, ...], null_score: float) -> Prediction:
    return Prediction(
        candidates=candidates,
        null_score_diff=null_score - candidates[0].score if candidates else np.finfo(np.float32).max.item(),
    )
