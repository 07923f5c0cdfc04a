"""Answers in a passage: the question with one window of the passage after another (Devlin et al., 2019, section 4.2).

    [CLS] who sang ? [SEP] it was Nina Simone . [SEP]
    START + END at [CLS] where the window has no answer; else START at "Nina", END at "Simone"

Windows overlap by `stride` tokens, as in `transformers`, so that an answer at the edge of one is inside the next. The
question is kept whole unless it would take more than half of the room.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.adaptation.heads.span import END, START
from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Bools, Ints, spread
from pretune.tasks.encode.base import EncodingRules, format_example
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.encode.token_pool import PooledSequences, TokenPool, compute_room, deduplicate
from pretune.tasks.example import Example


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """The windows of each passage; `marks` say which token of its passage a token is."""
    count = len(examples)
    once, which = deduplicate([get_passage(example) for example in examples])
    pool, which = rules.tokenize([*(get_question(example) for example in examples), *once]), count + which
    asked, given = pool.lengths[:count], pool.lengths[which]
    space = compute_room(rules.frame, rules.max_length, pair=True)
    kept = np.where(asked + given <= space, asked, np.minimum(asked, space // 2))
    width = space - kept  # [E] tokens of a window
    step = width - np.minimum(rules.stride, width // 2)
    windows = 1 + np.maximum(-(-(given - width) // step), 0)
    owner = np.repeat(np.arange(count), windows)
    begin = spread(np.zeros_like(windows), windows) * step[owner]
    length = np.minimum(width[owner], given[owner] - begin)
    start = pool.offsets[:-1]
    laid = pool.lay_out(rules.frame, start[owner], kept[owner], start[which[owner]] + begin, length)
    owners = laid.sequences.find_owners()
    inside = laid.pool_index >= start[count]  # tokens of a passage, not of a question
    marks = np.where(inside, laid.pool_index - start[which[owner[owners]]], -1)
    sequences = rules.set_segments(laid.sequences)
    lost = 0
    if training:
        targets, hit = _build_targets(rules, examples, pool, laid, marks, which, owner)
        answered = np.array([bool(example.spans) for example in examples])
        lost = int((answered & (np.bincount(owner, weights=hit, minlength=count) == 0)).sum())
        sequences = replace(sequences, targets=targets)
    counts = Counts(
        examples=count,
        cut=int((kept < asked).sum()),
        lost=int((asked - kept).sum()),
        empty=int((asked + given == 0).sum()),
        answers_lost=lost,
    )
    return build_items(sequences, examples=owner, counts=counts, marks=marks)


def get_question(example: Example) -> str:
    """What is asked; nothing where the text is what is searched."""
    return "" if example.pair is None else example.text


def get_passage(example: Example) -> str:
    """Where the answer is looked for."""
    return example.text if example.pair is None else example.pair


def find_tokens(starts: Ints, span: tuple[int, int]) -> tuple[int, int]:
    """The first and the last token of a stretch of characters, from where the tokens start.

    A token that begins before the stretch is taken where the stretch begins inside it.

    >>> find_tokens(np.array([0, 3, 7, 12]), (3, 11))
    (1, 2)
    """
    at = int(np.searchsorted(starts, span[0], side="right")) - 1
    first = int(np.searchsorted(starts, starts[max(at, 0)], side="left"))
    return first, max(int(np.searchsorted(starts, span[1], side="left")) - 1, first)


def find_characters(text: str, starts: Ints, first: int, last: int) -> tuple[int, int]:
    """The stretch of characters from one token to another: up to where the next one starts, without white space.

    >>> find_characters("it was Nina.", np.array([0, 3, 7, 11]), 1, 2)
    (3, 11)
    """
    begin = int(starts[first])
    after = int(np.searchsorted(starts, starts[last], side="right"))
    end = int(starts[after]) if after < len(starts) else len(text)
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
    """Where each window's answer starts and ends, and which windows have one."""
    wanted = np.full((len(examples), 2), -1)
    for number, example in enumerate(examples):
        starts = pool.starts[pool.offsets[passage_ids[number]] : pool.offsets[passage_ids[number] + 1]]
        if not example.spans or not len(starts):
            continue
        span = example.spans[0]
        if not 0 <= span[0] < span[1] <= len(get_passage(example)):
            raise DataError(
                f"task '{rules.task.name}': example {number} ({format_example(example)}) has the answer {span}, which is not "
                f"inside its {len(get_passage(example))} characters"
            )
        wanted[number] = find_tokens(starts, span)
    targets = np.zeros(len(alignment), dtype=np.int64)
    window = layout.sequences.find_owners()
    first, last = (wanted[owner[window], side] for side in (0, 1))
    here = alignment >= 0
    has = np.zeros((len(owner), 2), dtype=bool)
    for side, place in enumerate((first, last)):
        np.logical_or.at(has[:, side], window[here], alignment[here] == place[here])
    hit: Bools = has[:, 0] & has[:, 1]
    targets[here & hit[window] & (alignment == first)] += START
    targets[here & hit[window] & (alignment == last)] += END
    targets[layout.sequences.offsets[:-1][~hit]] = START + END
    return np.where(targets == 0, IGNORE_INDEX, targets), hit
