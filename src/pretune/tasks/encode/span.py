"""Answers in a passage: the question with each window of the passage (Devlin et al., 2019, section 4.2).

    [CLS] who sang ? [SEP] it was Nina Simone . [SEP]
    START + END at [CLS] if the window has no answer; else START at "Nina", END at "Simone"

Windows overlap by `stride` tokens, as in `transformers`, so that an answer at the edge of one is inside the next. The
question is not truncated unless it would take more than half of the room.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.adaptation.heads.span import END, START
from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Bools, Ints, spread
from pretune.tasks.encode.base import EncodingRules, format_example
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.encode.token_pool import PooledSequences, TokenPool, compute_room, deduplicate
from pretune.tasks.example import Example


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """Encode the windows of each passage; `alignment` is the index of each token in its passage."""
    count = len(examples)
    passages, passage_ids = deduplicate([get_passage(example) for example in examples])
    pool, passage_ids = (
        rules.tokenize([*(get_question(example) for example in examples), *passages]),
        count + passage_ids,
    )
    question_lengths, passage_lengths = pool.lengths[:count], pool.lengths[passage_ids]
    room = compute_room(rules.sequence_template, rules.max_length, pair=True)
    question_kept = np.where(
        question_lengths + passage_lengths <= room, question_lengths, np.minimum(question_lengths, room // 2)
    )
    width = room - question_kept  # [E] tokens of a window
    step = width - np.minimum(rules.stride, width // 2)
    windows = 1 + np.maximum(-(-(passage_lengths - width) // step), 0)
    owner = np.repeat(np.arange(count), windows)
    begin = spread(np.zeros_like(windows), windows) * step[owner]
    length = np.minimum(width[owner], passage_lengths[owner] - begin)
    start = pool.offsets[:-1]
    layout = pool.lay_out(
        rules.sequence_template, start[owner], question_kept[owner], start[passage_ids[owner]] + begin, length
    )
    owners = layout.sequences.find_owners()
    inside = layout.pool_index >= start[count]  # tokens of a passage, not of a question
    alignment = np.where(inside, layout.pool_index - start[passage_ids[owner[owners]]], -1)
    sequences = rules.set_segments(layout.sequences)
    lost = 0
    if training:
        targets, has_answer_inside = _build_targets(rules, examples, pool, layout, alignment, passage_ids, owner)
        has_answer = np.array([bool(example.spans) for example in examples])
        lost = int((has_answer & (np.bincount(owner, weights=has_answer_inside, minlength=count) == 0)).sum())
        sequences = replace(sequences, targets=targets)
    counts = Counts(
        examples=count,
        cut=int((question_kept < question_lengths).sum()),
        lost=int((question_lengths - question_kept).sum()),
        empty=int((question_lengths + passage_lengths == 0).sum()),
        answers_lost=lost,
    )
    return build_items(sequences, examples=owner, counts=counts, alignment=alignment)


def get_question(example: Example) -> str:
    """Return the question; empty if the text is the passage."""
    return "" if example.pair is None else example.text


def get_passage(example: Example) -> str:
    """Return the passage."""
    return example.text if example.pair is None else example.pair


def find_tokens(starts: Ints, span: tuple[int, int]) -> tuple[int, int]:
    """Return the first and last token of a span of characters, from the start of each token.

    A token that begins before the span is included if the span begins inside it.

    >>> find_tokens(np.array([0, 3, 7, 12]), (3, 11))
    (1, 2)
    """
    token = int(np.searchsorted(starts, span[0], side="right")) - 1
    first = int(np.searchsorted(starts, starts[max(token, 0)], side="left"))
    return first, max(int(np.searchsorted(starts, span[1], side="left")) - 1, first)


def find_characters(text: str, starts: Ints, first: int, last: int) -> tuple[int, int]:
    """Return the span of characters from one token to another, up to the next token, without trailing white space.

    >>> find_characters("it was Nina.", np.array([0, 3, 7, 11]), 1, 2)
    (3, 11)
    """
    begin = int(starts[first])
    next_token = int(np.searchsorted(starts, starts[last], side="right"))
    end = int(starts[next_token]) if next_token < len(starts) else len(text)
    return begin, begin + len(text[begin:end].rstrip())


def _build_targets(
    rules: EncodingRules,
    examples: Sequence[Example],
    pool: TokenPool,
    layout: PooledSequences,
    alignment: Ints,
    passage_ids: Ints,
    owner: Ints,
) -> tuple[Ints, Bools]:
    """Return the start and end targets of each window, and a mask of the windows that have an answer."""
    answer_tokens = np.full((len(examples), 2), -1)
    for number, example in enumerate(examples):
        starts = pool.starts[pool.offsets[passage_ids[number]] : pool.offsets[passage_ids[number] + 1]]
        if not example.spans or not len(starts):
            continue
        span = example.spans[0]
        if not 0 <= span[0] < span[1] <= len(get_passage(example)):
            raise DataError(
                f"task '{rules.task.name}': answer of example {number} ({format_example(example)}) must be inside its "
                f"{len(get_passage(example))} characters, got {span}"
            )
        answer_tokens[number] = find_tokens(starts, span)
    targets = np.zeros(len(alignment), dtype=np.int64)
    window = layout.sequences.find_owners()
    first, last = (answer_tokens[owner[window], side] for side in (0, 1))
    is_passage = alignment >= 0
    has_edge = np.zeros((len(owner), 2), dtype=bool)
    for side, token in enumerate((first, last)):
        np.logical_or.at(has_edge[:, side], window[is_passage], alignment[is_passage] == token[is_passage])
    hit: Bools = has_edge[:, 0] & has_edge[:, 1]
    targets[is_passage & hit[window] & (alignment == first)] += START
    targets[is_passage & hit[window] & (alignment == last)] += END
    targets[layout.sequences.offsets[:-1][~hit]] = START + END
    return np.where(targets == 0, IGNORE_INDEX, targets), hit
