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
from pretune.core.types import IGNORE
from pretune.data.ragged import Bools, Ints, spread
from pretune.tasks.encode.base import Rules, name_of
from pretune.tasks.encode.items import Counts, Items, made
from pretune.tasks.encode.token_pool import Laid, Pool, distinct, room
from pretune.tasks.example import Example


def encode(rules: Rules, examples: Sequence[Example], *, training: bool) -> Items:
    """The windows of each passage; `marks` say which token of its passage a token is."""
    count = len(examples)
    once, which = distinct([passage(example) for example in examples])
    pool, which = rules.pool([*(question(example) for example in examples), *once]), count + which
    asked, given = pool.lengths[:count], pool.lengths[which]
    space = room(rules.frame, rules.max_length, pair=True)
    kept = np.where(asked + given <= space, asked, np.minimum(asked, space // 2))
    width = space - kept  # [E] tokens of a window
    step = width - np.minimum(rules.stride, width // 2)
    windows = 1 + np.maximum(-(-(given - width) // step), 0)
    owner = np.repeat(np.arange(count), windows)
    begin = spread(np.zeros_like(windows), windows) * step[owner]
    length = np.minimum(width[owner], given[owner] - begin)
    start = pool.offsets[:-1]
    laid = pool.lay(rules.frame, start[owner], kept[owner], start[which[owner]] + begin, length)
    owners = laid.sequences.owners()
    inside = laid.places >= start[count]  # tokens of a passage, not of a question
    marks = np.where(inside, laid.places - start[which[owner[owners]]], -1)
    sequences = rules.segmented(laid.sequences)
    lost = 0
    if training:
        targets, hit = _targets(rules, examples, pool, laid, marks, which, owner)
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
    return made(sequences, examples=owner, counts=counts, marks=marks)


def question(example: Example) -> str:
    """What is asked; nothing where the text is what is searched."""
    return "" if example.pair is None else example.text


def passage(example: Example) -> str:
    """Where the answer is looked for."""
    return example.text if example.pair is None else example.pair


def tokens_of(starts: Ints, span: tuple[int, int]) -> tuple[int, int]:
    """The first and the last token of a stretch of characters, from where the tokens start.

    A token that begins before the stretch is taken where the stretch begins inside it.

    >>> tokens_of(np.array([0, 3, 7, 12]), (3, 11))
    (1, 2)
    """
    at = int(np.searchsorted(starts, span[0], side="right")) - 1
    first = int(np.searchsorted(starts, starts[max(at, 0)], side="left"))
    return first, max(int(np.searchsorted(starts, span[1], side="left")) - 1, first)


def characters_of(text: str, starts: Ints, first: int, last: int) -> tuple[int, int]:
    """The stretch of characters from one token to another: up to where the next one starts, without white space.

    >>> characters_of("it was Nina.", np.array([0, 3, 7, 11]), 1, 2)
    (3, 11)
    """
    begin = int(starts[first])
    after = int(np.searchsorted(starts, starts[last], side="right"))
    end = int(starts[after]) if after < len(starts) else len(text)
    return begin, begin + len(text[begin:end].rstrip())


def _targets(
    rules: Rules, examples: Sequence[Example], pool: Pool, laid: Laid, marks: Ints, which: Ints, owner: Ints
) -> tuple[Ints, Bools]:
    """Where each window's answer starts and ends, and which windows have one."""
    wanted = np.full((len(examples), 2), -1)
    for number, example in enumerate(examples):
        starts = pool.starts[pool.offsets[which[number]] : pool.offsets[which[number] + 1]]
        if not example.spans or not len(starts):
            continue
        span = example.spans[0]
        if not 0 <= span[0] < span[1] <= len(passage(example)):
            raise DataError(
                f"task '{rules.task.name}': example {number} ({name_of(example)}) has the answer {span}, which is not "
                f"inside its {len(passage(example))} characters"
            )
        wanted[number] = tokens_of(starts, span)
    targets = np.zeros(len(marks), dtype=np.int64)
    window = laid.sequences.owners()
    first, last = (wanted[owner[window], side] for side in (0, 1))
    here = marks >= 0
    has = np.zeros((len(owner), 2), dtype=bool)
    for side, place in enumerate((first, last)):
        np.logical_or.at(has[:, side], window[here], marks[here] == place[here])
    hit: Bools = has[:, 0] & has[:, 1]
    targets[here & hit[window] & (marks == first)] += START
    targets[here & hit[window] & (marks == last)] += END
    targets[laid.sequences.offsets[:-1][~hit]] = START + END
    return np.where(targets == 0, IGNORE, targets), hit
