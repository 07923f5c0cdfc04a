"""Perplexity of texts of any length: overlapping windows, each token scored once.

A decoder (or an encoder-decoder) scores the end of each window given the tokens before it; a bidirectional model the
middle, given both sides: its pseudo-perplexity (Salazar et al., 2020). With windows of W tokens of which `stride` are
scored, a token has at least W - stride tokens of context (bidirectional: half of that on each side), or all there are.

    tokens    0 1 2 3 4 5 6 7 8 9       W = 4, stride = 2, scored tokens in capitals
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
from pretune.data.sequences import compute_offsets, spread
from pretune.evaluation.result import EvaluationResult
from pretune.inference.scoring import DEFAULT_SCORING, Passages, ScoringConfig, compute_token_logprobs, encode_passages
from pretune.inference.scoring.logprobs import ProgressCallback, build_scoring_method, get_max_length, is_bidirectional
from pretune.inference.text_model import count_unknown, describe_unknown, get_language_model, get_tokenizer
from pretune.metrics.numeric import bits, perplexity

DEFAULT_WINDOW, BIDIRECTIONAL_WINDOW = 512, 128
"""Default window length; that of bidirectional models, where each token costs a copy of the window."""


class Window(NamedTuple):
    """Tokens [low, high) of a text, of which [start, stop) are scored."""

    low: int
    high: int
    start: int
    stop: int


def split_windows(n: int, width: int, stride: int, *, is_bidirectional: bool = False) -> Iterator[Window]:
    """Yield the windows of a text of n tokens.

    >>> [tuple(window) for window in split_windows(6, 4, 2)]
    [(0, 4, 0, 4), (2, 6, 4, 6)]
    >>> [tuple(window) for window in split_windows(6, 4, 2, is_bidirectional=True)]
    [(0, 4, 0, 2), (1, 5, 2, 4), (2, 6, 4, 6)]
    """
    if not 1 <= stride <= width:
        raise UsageError(f"stride must be from 1 to the window of {width} tokens, got {stride}")
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
    """Evaluate perplexity per token, word and byte, and bits per byte; words are separated by white space.

    The window defaults to the training length, if known, because the model is untrained at later positions.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError("no text to evaluate; is the file empty?")
    bidirectional = is_bidirectional(get_language_model(model))
    window_length = _choose_window(model, scoring, bidirectional, window, train_length)
    stride = max(1, window_length // 2) if stride is None else stride
    passages = encode_passages(get_tokenizer(model), texts)
    windows = _split_passages(passages, window_length, stride, bidirectional)
    logprobs = compute_token_logprobs(model, windows, scoring, on_progress)
    nats, tokens = -float(logprobs.sums.sum()), int(logprobs.counts.sum())
    words, size = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
    kind = "pseudo_perplexity" if bidirectional else "perplexity"
    counts = {
        "documents": len(texts),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "windows": len(windows),
        "unscored": int(windows.span_lengths.sum()) - tokens,
        "unknown": count_unknown(get_tokenizer(model), passages.tokens),
    }
    notes = [f"windows of {window_length} tokens, {stride} scored in each"]
    if counts["unknown"]:
        unknown_text = describe_unknown(counts["unknown"], len(passages.tokens))
        notes.append(f"{unknown_text}; word and byte perplexity are too low")
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
    """Return the window length: the requested one, else the training length, else the model's maximum."""
    max_length = get_max_length(get_language_model(model))
    method = build_scoring_method(get_language_model(model), get_tokenizer(model), scoring)
    max_window = None if max_length is None else method.get_max_passage(max_length)
    if window is None:
        default_window = (
            max_window
            if train_length is None
            else max(1, method.get_max_passage(min(train_length, max_length or train_length)))
        )
        return (
            min(default_window or DEFAULT_WINDOW, BIDIRECTIONAL_WINDOW)
            if is_bidirectional
            else default_window or DEFAULT_WINDOW
        )
    if window < 1 or (max_window is not None and window > max_window):
        raise UsageError(f"window must be from 1 to {max_window or 'any length'}, got {window}")
    return window


def _split_passages(texts: Passages, width: int, stride: int, is_bidirectional: bool) -> Passages:
    """Return every window as a passage of its own."""
    windows = [
        (int(start), window)
        for start, n in zip(texts.offsets[:-1], texts.lengths, strict=True)
        for window in split_windows(int(n), width, stride, is_bidirectional=is_bidirectional)
    ]
    base, low, high, start, stop = np.array([(position, *window) for position, window in windows], dtype=np.int64).T
    index, offsets = spread(base + low, high - low), compute_offsets(high - low)
    units = texts.unit_starts[index]
    units[offsets[:-1]] = True
    return Passages(tokens=texts.tokens[index], offsets=offsets, start=start - low, stop=stop - low, unit_starts=units)
