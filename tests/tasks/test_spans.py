"""Answers in passages of several windows: which length they may have, and when there is none (SQuAD 2.0)."""

from dataclasses import replace

import numpy as np
import pytest

from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.types import get_type
from pretune.tasks.types.span import MAX_ANSWER_TOKENS, MAX_CANDIDATES, _score_spans
from tests.tasks.small import TEXT, encoder_for, task_of

LONG = Example(text="Who sang it?", pair=" ".join(TEXT))


def encode_long_example(shape: str = "bert", **options: int) -> tuple[TaskEncoder, Items]:
    """A passage that is read in several windows."""
    encoder = encoder_for(shape, task_of("span"), max_length=48, stride=8, **options)
    items = encoder.encode([LONG], training=False)
    assert len(items.sequences) > 2
    return encoder, items


def decode(encoder: TaskEncoder, items: Items, logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Prediction:
    (prediction,) = get_type(encoder.task).outputs.decode(encoder.rules, [LONG], items, logits)
    return prediction


def logits_of(items: Items) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((len(items.sequences.tokens), 2), -5, dtype=np.float32)


def place(items: Items, window: int) -> int:
    """The first token of the passage in a window."""
    low, high = items.sequences.offsets[window : window + 2]
    assert items.alignment is not None
    return int(low + np.flatnonzero(items.alignment[low:high] >= 0)[0])


def test_an_answer_has_so_many_tokens_at_most() -> None:
    alignment, logits = np.arange(60), np.full((60, 2), -9, dtype=np.float32)
    logits[0, 0] = logits[MAX_ANSWER_TOKENS, 1] = 9  # one too many
    logits[1, 0] = 8
    spans = _score_spans(logits, alignment)
    assert max(spans)[1:] == (1, MAX_ANSWER_TOKENS)
    assert all(0 <= last - first < MAX_ANSWER_TOKENS for _, first, last in spans)


def test_the_best_of_all_windows_is_given_and_others_beside_it() -> None:
    encoder, items = encode_long_example()
    logits = logits_of(items)
    weak, strong = place(items, 0), place(items, 2)
    logits[weak] = 3
    logits[strong] = 6
    prediction = decode(encoder, items, logits)
    first, second, *_ = candidates = prediction.candidates
    assert prediction.span is not None and LONG.pair is not None
    assert prediction.text == LONG.pair[slice(*prediction.span)] == first.text
    assert (first.score, second.score) == (12, 6) and len(candidates) == MAX_CANDIDATES
    assert len({candidate.text for candidate in candidates}) == MAX_CANDIDATES
    assert second.span[0] == 0  # where the first window begins


@pytest.mark.parametrize("slots", [0, 3])
def test_no_answer_is_as_likely_as_in_the_window_where_it_is_least(slots: int) -> None:
    """A window that has the answer knows it, whatever those without one say; slots of a prompt say nothing."""
    encoder, items = encode_long_example(slots=slots)
    logits = logits_of(items)
    firsts = items.sequences.offsets[:-1] + slots
    logits[place(items, 1)] = 4
    for first, null in zip(firsts, (9, 1, *[9] * len(firsts)), strict=False):
        logits[first] = null
    prediction = decode(encoder, items, logits)
    assert prediction.null_score_diff == 2 - 8 and prediction.text
    logits[firsts[1]] = 5
    prediction = decode(encoder, items, logits)
    assert prediction.null_score_diff == 10 - 8 and prediction.text == "" and prediction.span is None


def test_a_task_in_which_every_question_has_an_answer_gives_one() -> None:
    encoder, items = encode_long_example()
    sure = replace(encoder, rules=replace(encoder.rules, task=replace(encoder.task, metrics=("squad",))))
    logits = logits_of(items)
    logits[items.sequences.offsets[:-1]] = 9
    assert decode(encoder, items, logits).text == ""
    assert decode(sure, items, logits).text != ""
