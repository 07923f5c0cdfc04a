"""Perplexity of texts of any length: windows that overlap, every token judged once.

A decoder (or an encoder-decoder) judges the end of each window from what is before it; a model that reads both ways the
middle, from both sides: its pseudo-perplexity (Salazar et al., 2020). With windows of W tokens of which `stride` are
judged, a token has at least W - stride tokens before it (both ways: half of that on each side), or all there are.

    tokens    0 1 2 3 4 5 6 7 8 9       W = 4, stride = 2, judged in capitals
    windows   A B C D
                  c d E F
                      e f G H
                          g h I J
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.data.ragged import bounds, spread
from pretune.evaluation.result import Result
from pretune.inference.scoring import PLAIN, Asking, Passages, judge, passages
from pretune.inference.scoring.logprobs import Tell, both_ways, form_of, limit
from pretune.inference.text_model import body, count_unknown, describe_unknown, tokenizer_of
from pretune.metrics.perplexity import bits, perplexity

WIDE, NARROW = 512, 128
"""Tokens of a window where nothing limits it; where each of its tokens costs a copy of it."""


class Window(NamedTuple):
    """Tokens [low, high) of a text, of which [start, stop) are judged."""

    low: int
    high: int
    start: int
    stop: int


def windows(n: int, room: int, stride: int, *, both: bool = False) -> Iterator[Window]:
    """The windows of a text of n tokens.

    >>> [tuple(window) for window in windows(6, 4, 2)]
    [(0, 4, 0, 4), (2, 6, 4, 6)]
    >>> [tuple(window) for window in windows(6, 4, 2, both=True)]
    [(0, 4, 0, 2), (1, 5, 2, 4), (2, 6, 4, 6)]
    """
    if not 1 <= stride <= room:
        raise UsageError(f"a stride of {stride} must lie between 1 and the {room} tokens of a window")
    start = 0
    while start < n:
        stop = min(start + (room if start == 0 and not both else stride), n)
        low = max(0, min(start - (room - stride) // 2, n - room)) if both else max(0, stop - room)
        yield Window(low, min(low + room, n), start, stop)
        start = stop


def text_perplexity(
    model: nn.Module,
    texts: Sequence[str],
    asking: Asking = PLAIN,
    *,
    window: int | None = None,
    stride: int | None = None,
    learnt: int | None = None,
    tell: Tell | None = None,
) -> Result:
    """Perplexity per token, word and byte, and bits per byte; a word is what white space divides.

    Windows are as long as was asked for, or as what the model `learnt` from, where that is known: what it would make of
    places that it never saw says nothing of it.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError("there is no text to read; is the file empty?")
    both = both_ways(body(model))
    room = _room(model, asking, both, window, learnt)
    stride = max(1, room // 2) if stride is None else stride
    read = passages(tokenizer_of(model), texts)
    cut = _cut(read, room, stride, both)
    found = judge(model, cut, asking, tell)
    nats, tokens = -float(found.sums.sum()), int(found.counts.sum())
    words, size = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
    kind = "pseudo_perplexity" if both else "perplexity"
    counts = {
        "documents": len(texts),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "windows": len(cut),
        "unscored": int(cut.judged.sum()) - tokens,
        "unknown": count_unknown(tokenizer_of(model), read.tokens),
    }
    notes = [f"windows of {room} tokens, {stride} judged in each"]
    if counts["unknown"]:
        told = describe_unknown(counts["unknown"], len(read.tokens))
        notes.append(f"{told}, which makes words and bytes look likely")
    return Result(
        task="perplexity",
        scores={
            kind: perplexity(nats, tokens),
            f"word_{kind}": perplexity(nats, words),
            f"byte_{kind}": perplexity(nats, size),
            "bits_per_byte": bits(nats, size),
        },
        counts={name: count for name, count in counts.items() if count},
        notes=tuple(notes),
    )


def _room(model: nn.Module, asking: Asking, both: bool, window: int | None, learnt: int | None) -> int:
    """The tokens of a window: as many as asked for, or as it learnt from, or as the model allows."""
    longest, form = limit(body(model)), form_of(body(model), tokenizer_of(model), asking)
    most = None if longest is None else form.room(longest)
    if window is None:
        usual = most if learnt is None else max(1, form.room(min(learnt, longest or learnt)))
        return min(usual or WIDE, NARROW) if both else usual or WIDE
    if window < 1 or (most is not None and window > most):
        raise UsageError(f"a window of {window} tokens; this model allows 1 to {most if most is not None else 'any'}")
    return window


def _cut(read: Passages, room: int, stride: int, both: bool) -> Passages:
    """Every window as a passage of its own."""
    found = [
        (int(start), each)
        for start, n in zip(read.offsets[:-1], read.lengths, strict=True)
        for each in windows(int(n), room, stride, both=both)
    ]
    base, low, high, start, stop = np.array([(at, *each) for at, each in found], dtype=np.int64).T
    index, offsets = spread(base + low, high - low), bounds(high - low)
    units = read.units[index]
    units[offsets[:-1]] = True
    return Passages(tokens=read.tokens[index], offsets=offsets, start=start - low, stop=stop - low, units=units)
