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
from pretune.data.ragged import compute_offsets, spread
from pretune.evaluation.result import EvaluationResult
from pretune.inference.scoring import DEFAULT_SCORING, Passages, ScoringConfig, compute_token_logprobs, encode_passages
from pretune.inference.scoring.logprobs import ProgressCallback, build_scoring_method, get_max_length, is_bidirectional
from pretune.inference.text_model import count_unknown, describe_unknown, get_language_model, get_tokenizer
from pretune.metrics.perplexity import bits, perplexity

DEFAULT_WINDOW, BIDIRECTIONAL_WINDOW = 512, 128
"""Tokens of a window where nothing limits it; where each of its tokens costs a copy of it."""


class Window(NamedTuple):
    """Tokens [low, high) of a text, of which [start, stop) are judged."""

    low: int
    high: int
    start: int
    stop: int


def split_windows(n: int, width: int, stride: int, *, is_bidirectional: bool = False) -> Iterator[Window]:
    """The windows of a text of n tokens.

    >>> [tuple(window) for window in split_windows(6, 4, 2)]
    [(0, 4, 0, 4), (2, 6, 4, 6)]
    >>> [tuple(window) for window in split_windows(6, 4, 2, both=True)]
    [(0, 4, 0, 2), (1, 5, 2, 4), (2, 6, 4, 6)]
    """
    if not 1 <= stride <= width:
        raise UsageError(f"a stride of {stride} must lie between 1 and the {width} tokens of a window")
    start = 0
    while start < n:
        stop = min(start + (width if start == 0 and not is_bidirectional else stride), n)
        low = max(0, min(start - (width - stride) // 2, n - width)) if is_bidirectional else max(0, stop - width)
        yield Window(low, min(low + width, n), start, stop)
        start = stop


def evaluate_perplexity(
    model: nn.Module,
    texts: Sequence[str],
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    window: int | None = None,
    stride: int | None = None,
    train_length: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Perplexity per token, word and byte, and bits per byte; a word is what white space divides.

    Windows are as long as was asked for, or as what the model `learnt` from, where that is known: what it would make of
    places that it never saw says nothing of it.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError("there is no text to read; is the file empty?")
    both = is_bidirectional(get_language_model(model))
    room = _choose_window(model, scoring, both, window, train_length)
    stride = max(1, room // 2) if stride is None else stride
    read = encode_passages(get_tokenizer(model), texts)
    cut = _split_passages(read, room, stride, both)
    found = compute_token_logprobs(model, cut, scoring, on_progress)
    nats, tokens = -float(found.sums.sum()), int(found.counts.sum())
    words, size = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
    kind = "pseudo_perplexity" if both else "perplexity"
    counts = {
        "documents": len(texts),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "windows": len(cut),
        "unscored": int(cut.span_lengths.sum()) - tokens,
        "unknown": count_unknown(get_tokenizer(model), read.tokens),
    }
    notes = [f"windows of {room} tokens, {stride} judged in each"]
    if counts["unknown"]:
        told = describe_unknown(counts["unknown"], len(read.tokens))
        notes.append(f"{told}, which makes words and bytes look likely")
    return EvaluationResult(
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


def _choose_window(
    model: nn.Module, scoring: ScoringConfig, is_bidirectional: bool, window: int | None, train_length: int | None
) -> int:
    """The tokens of a window: as many as asked for, or as it learnt from, or as the model allows."""
    longest, form = (
        get_max_length(get_language_model(model)),
        build_scoring_method(get_language_model(model), get_tokenizer(model), scoring),
    )
    most = None if longest is None else form.room(longest)
    if window is None:
        usual = most if train_length is None else max(1, form.room(min(train_length, longest or train_length)))
        return min(usual or DEFAULT_WINDOW, BIDIRECTIONAL_WINDOW) if is_bidirectional else usual or DEFAULT_WINDOW
    if window < 1 or (most is not None and window > most):
        raise UsageError(f"a window of {window} tokens; this model allows 1 to {most if most is not None else 'any'}")
    return window


def _split_passages(texts: Passages, width: int, stride: int, is_bidirectional: bool) -> Passages:
    """Every window as a passage of its own."""
    found = [
        (int(start), each)
        for start, n in zip(texts.offsets[:-1], texts.lengths, strict=True)
        for each in split_windows(int(n), width, stride, is_bidirectional=is_bidirectional)
    ]
    base, low, high, start, stop = np.array([(at, *each) for at, each in found], dtype=np.int64).T
    index, offsets = spread(base + low, high - low), compute_offsets(high - low)
    units = texts.unit_starts[index]
    units[offsets[:-1]] = True
    return Passages(tokens=texts.tokens[index], offsets=offsets, start=start - low, stop=stop - low, unit_starts=units)
