"""Perplexity of texts, and cloze tests.

Texts of any length are scored in overlapping windows, each token once. A decoder (or an encoder-decoder) scores the end
of each window given the tokens before it; a bidirectional model the middle, given both sides: its pseudo-perplexity
(Salazar et al., 2020). With windows of W tokens of which `stride` are scored, a token has at least W - stride tokens of
context (bidirectional: half of that on each side), or all there are.

    tokens    0 1 2 3 4 5 6 7 8 9       W = 4, stride = 2, scored tokens in capitals
    windows   A B C D
                  c d E F
                      e f G H
                          g h I J

Cloze tests are the last word of a passage (LAMBADA, Paperno et al., 2016), and blanks in user files.

    {"text": "The capital of France is ____.", "answer": "Paris", "category": "capitals"}

A decoder sees only the text before the blank. A bidirectional or infilling model also sees the text after it, or a
full stop if there is none, and one mask per token of the word.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

from pretune.core.errors import DataError, UsageError, explain_missing
from pretune.data.sequences import Bools, compute_offsets, spread
from pretune.evaluation import EvaluationResult
from pretune.evaluation.minimal_pairs import average_by_group
from pretune.inference.scoring import (
    DEFAULT_SCORING,
    ProgressCallback,
    ScoringConfig,
    build_scoring_method,
    compute_token_logprobs,
    get_max_length,
    is_bidirectional,
)
from pretune.inference.scoring_queries import Passages, encode_passages
from pretune.inference.text_model import (
    count_unknown,
    describe_unknown,
    get_language_model,
    get_predictive_model,
    get_tokenizer,
)
from pretune.metrics.numeric import bits, perplexity
from pretune.tasks.example import Example, Examples
from pretune.tasks.table import BlankRows, TableRow, is_blank, open_table
from pretune.text.tokenizer import Tokenizer

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

    Tokens without context are not scored, and neither are their words and bytes counted. The window defaults to the
    training length, if known, because the model is untrained at later positions.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise DataError("no text to evaluate; is the file empty?")
    bidirectional = scoring.bidirectional or is_bidirectional(get_predictive_model(model))
    window_length = _choose_window(model, scoring, bidirectional, window, train_length)
    stride = max(1, window_length // 2) if stride is None else stride
    passages = encode_passages(get_tokenizer(model), texts)
    windows = _split_passages(passages, window_length, stride, bidirectional)
    logprobs = compute_token_logprobs(model, windows, scoring, on_progress)
    nats, tokens = -float(logprobs.sums.sum()), int(logprobs.counts.sum())
    if not tokens:
        raise DataError("no token to score: each text is one token, and the model has no start token; pass longer text")
    total_size = sum(len(text.encode()) for text in texts)
    unscored_words, unscored_size = _measure_unscored(get_tokenizer(model), texts, np.isnan(logprobs.logprobs))
    words, size = sum(len(text.split()) for text in texts) - unscored_words, total_size - unscored_size
    kind = "pseudo_perplexity" if bidirectional else "perplexity"
    counts = {
        "documents": len(texts),
        "tokens": tokens,
        "words": words,
        "bytes": size,
        "windows": len(windows),
        "unscored": int(windows.span_lengths.sum()) - tokens,
        "unknown": count_unknown(get_tokenizer(model), passages.tokens, as_targets=True),
    }
    notes = [f"windows of {window_length} tokens, {stride} scored in each"]
    if counts["unknown"]:
        unknown_text = describe_unknown(counts["unknown"], len(passages.tokens))
        notes.append(f"{unknown_text}; word and byte perplexity are too low")
    scores = {
        kind: perplexity(nats, tokens),
        f"word_{kind}": perplexity(nats, max(words, 1)),
        f"byte_{kind}": perplexity(nats, size),
        "bits_per_byte": bits(nats, size),
    }
    if get_language_model(model).shape == "two-way":
        windows = _split_passages(passages.reverse(), window_length, stride, False)
        logprobs = compute_token_logprobs(model, windows, scoring, on_progress, backward=True)
        nats, tokens = -float(logprobs.sums.sum()), int(logprobs.counts.sum())
        scores |= {"backward_perplexity": perplexity(nats, tokens), "backward_bits_per_byte": bits(nats, total_size)}
        notes.append("perplexity: each token given those before it; backward_perplexity: given those after it")
    return EvaluationResult(
        task="perplexity",
        scores=scores,
        counts={name: count for name, count in counts.items() if count},
        notes=tuple(notes),
    )


def _measure_unscored(tokenizer: Tokenizer, texts: Sequence[str], is_unscored: Bools) -> tuple[int, int]:
    """Return the words and bytes of the unscored tokens, given those of all texts in order; a part of a word is none.

    A token has the white space before it; a character of several tokens belongs to the last one.
    """
    if not is_unscored.any():
        return 0, 0
    encoding = tokenizer.encode_batch(texts, literal=True)
    words = size = 0
    for place in np.flatnonzero(is_unscored).tolist():
        number = int(np.searchsorted(encoding.offsets, place, side="right")) - 1
        text, first, last = texts[number], int(encoding.offsets[number]), int(encoding.offsets[number + 1]) - 1
        start = 0 if place == first else len(text[: encoding.starts[place]].rstrip())
        stop = len(text) if place == last else len(text[: encoding.starts[place + 1]].rstrip())
        size += len(text[start:stop].encode())
        is_cut = start < stop and not (stop == len(text) or text[stop].isspace())
        words += max(len(text[start:stop].split()) - is_cut, 0) if start == 0 or text[start].isspace() else 0
    return words, size


def _choose_window(
    model: nn.Module, scoring: ScoringConfig, is_bidirectional: bool, window: int | None, train_length: int | None
) -> int:
    """Return the window length: the requested one, else the training length, else the model's maximum."""
    language_model = get_predictive_model(model)
    max_length = get_max_length(language_model)
    method = build_scoring_method(language_model, get_tokenizer(model), scoring)
    if window is None:
        limits = [length for length in (train_length, max_length) if length is not None]
        length = max(1, method.get_max_passage(min(limits))) if limits else DEFAULT_WINDOW
        return min(length, BIDIRECTIONAL_WINDOW) if is_bidirectional else length
    max_window = None if max_length is None else method.get_max_passage(max_length)
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


FULL_STOP = "."
CATEGORIES = ("category", "relation")
"""Names of the field that holds the category of a probe."""


def evaluate_cloze(
    model: nn.Module,
    examples: Examples,
    scoring: ScoringConfig = DEFAULT_SCORING,
    *,
    name: str = "lambada",
    on_progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Evaluate the share of examples whose word (`target`) is predicted greedily, and the perplexity of words.

    If all examples have a category (`group`), the groups are the accuracies of categories, and `macro_accuracy` is
    their mean.
    """
    if not examples:
        raise DataError("no passages to evaluate; is the file empty?")
    is_decoder = get_predictive_model(model).shape == "decoder"
    texts: list[str] = []
    spans: list[tuple[int, int]] = []
    for example in examples:
        context, word = example.text.rstrip(), example.target or ""
        start = f"{context} {word}" if context else word
        texts.append(start if is_decoder else start + (example.pair or FULL_STOP))
        spans.append((len(context), len(start)))
    result = compute_token_logprobs(
        model, encode_passages(get_tokenizer(model), texts, spans, single_unit=True), scoring, on_progress
    )
    counts = {"examples": len(examples), "cut": result.truncated_passages, "tokens": len(result.logprobs)}
    notes = () if is_decoder else ("one mask per token of the word, followed by a full stop if no text follows",)
    nats = -float(np.sum(result.sums))
    categories = average_by_group(result.is_greedy, [example.group for example in examples])
    macro = {"macro_accuracy": float(np.mean([*categories.values()]))} if categories else {}
    return EvaluationResult(
        task=name,
        scores={"accuracy": float(result.is_greedy.mean()), **macro, "perplexity": perplexity(nats, len(texts))},
        groups=categories,
        counts={name: count for name, count in {**counts, "categories": len(categories)}.items() if count},
        notes=notes,
    )


def read_blanks(path: Path) -> list[Example]:
    """Read JSON lines with a `text` that has one blank (____ or [MASK]) and its `answer`.

    A `category` or `relation` becomes the example's group; either all lines have one or none has.
    """
    if not path.is_file():
        raise DataError(f"{path}: {explain_missing(path)}; pass JSON lines with text and answer with --data")
    examples: list[Example] = []

    def parse_row(row: TableRow) -> Example:
        parts = re.split(r"_{2,}|\[MASK\]", row.get_text("text"))
        answer = row.get_text("answer").strip()
        if len(parts) != 2:
            raise DataError(f"{row.location}: 'text' has {len(parts) - 1} blanks, expected one (____ or [MASK])")
        group = next((row.get_text(name).strip() for name in CATEGORIES if not is_blank(row.values.get(name))), None)
        examples.append(Example(text=parts[0], target=answer, pair=parts[1] or None, group=group))
        if (group is None) != (examples[0].group is None):
            state = "missing" if group is None else "present"
            raise DataError(
                f"{row.location}: the category is {state}, unlike in the first line; use a category (or relation) "
                "in all lines or in none"
            )
        return examples[-1]

    return BlankRows().parse_all(path, open_table(path).read_rows(), parse_row)
