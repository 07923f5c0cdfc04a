"""The answer in a passage, from what a model says of all its windows (Devlin et al., 2019; SQuAD 2.0's own script)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.ragged import Ints
from pretune.metrics.question_answering import squad2
from pretune.tasks.decode.logits import Floats
from pretune.tasks.decode.prediction import Found, Prediction
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.items import Items
from pretune.tasks.encode.span import characters_of, passage
from pretune.tasks.encode.token_pool import distinct
from pretune.tasks.example import Example

STARTS = 20
"""So many of the likeliest starts and ends of a window are tried together."""
LONGEST = 30
"""Tokens of an answer at most."""
KEPT = 5
"""Answers that are told of each example."""

_NONE = "squad2"  # the metric of tasks in which a question may have no answer


def spans(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """The best answers over all windows; no answer where that scores higher, if the task knows of that."""
    assert items.marks is not None
    once, which = distinct([passage(example) for example in examples])
    pool = encoder.rules.pool(once)
    offsets = items.sequences.offsets
    null = 0 if items.sequences.source is not None else encoder.slots  # where no answer is said
    nulls = np.full(len(examples), np.inf)
    tried: list[list[tuple[float, int, int]]] = [[] for _ in examples]
    for window, example in enumerate(items.examples):
        low, high = offsets[window], offsets[window + 1]
        nulls[example] = min(nulls[example], float(logits[low + null].sum()))
        tried[example] += _tried(logits[low:high], items.marks[low:high])
    may = _NONE in encoder.task.metrics
    found: list[Prediction] = []
    for number, some in enumerate(tried):
        starts = pool.starts[pool.offsets[which[number]] : pool.offsets[which[number] + 1]]
        best = _best(once[which[number]], starts, some)
        found.append(with_threshold([_answer(best, float(nulls[number]))], 0.0 if may else np.inf)[0])
    return found


def with_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """The same answers, but none where no answer scores higher by more than the threshold."""
    found: list[Prediction] = []
    for one in predictions:
        given = bool(one.best) and (one.null is None or one.null <= threshold)
        text, span = (one.best[0].text, one.best[0].span) if given else ("", None)
        found.append(replace(one, text=text, span=span))
    return found


def no_answer_threshold(examples: Sequence[Example], predictions: Sequence[Prediction]) -> float:
    """The threshold with the best F1 on these examples, which should be held out from training."""
    doubts = [one.null for one in predictions if one.null is not None]
    if len(doubts) != len(predictions):
        raise UsageError("these predictions do not say how sure they are of no answer; a span head does")
    texts = [one.best[0].text if one.best else "" for one in predictions]
    found = squad2([example.answers for example in examples], texts, no_answer=doubts)
    return found["best_f1_threshold"]


def _tried(logits: Floats, marks: Ints) -> list[tuple[float, int, int]]:
    """Scores of spans of one window, each with its first and last token in the passage."""
    places = np.flatnonzero(marks >= 0)
    if not len(places):
        return []
    start, end = logits[places, 0], logits[places, 1]
    first, last = (np.argsort(-side, kind="stable")[:STARTS] for side in (start, end))
    sums = start[first][:, None] + end[last][None]
    length = last[None] - first[:, None]
    sums = np.where((length >= 0) & (length < LONGEST), sums, -np.inf)
    if not np.isfinite(sums).any():  # none of them go together
        first = last = np.array([int((start + end).argmax())])
        sums = (start + end)[first][:, None]
    order = np.argsort(-sums, axis=None, kind="stable")[: 2 * KEPT]
    rows, columns = np.unravel_index(order, sums.shape)
    return [
        (float(sums[row, column]), int(marks[places[first[row]]]), int(marks[places[last[column]]]))
        for row, column in zip(rows, columns, strict=True)
        if np.isfinite(sums[row, column])
    ]


def _best(text: str, starts: Ints, tried: list[tuple[float, int, int]]) -> tuple[Found, ...]:
    """The best answers as text, each once."""
    found: dict[str, Found] = {}
    for score, first, last in sorted(tried, key=lambda one: -one[0]):
        begin, end = characters_of(text, starts, first, last)
        if text[begin:end] and text[begin:end] not in found:
            found[text[begin:end]] = Found(text[begin:end], score, (begin, end))
        if len(found) == KEPT:
            break
    return tuple(found.values())


def _answer(best: tuple[Found, ...], null: float) -> Prediction:
    return Prediction(best=best, null=null - best[0].score if best else np.finfo(np.float32).max.item())
