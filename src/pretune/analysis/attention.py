"""Attention of a model: the class of every head over held-out text, and who attends to whom in one text.

    heads = pt.analyze_attention("runs/books")                      # over validation text
    heads.shares["encoder"]["previous"], heads.classes["encoder"]   # [layers, heads] names of `CLASSES`
    view = pt.view_attention("runs/books", "The cat sat.", layer=2, head=1)
    view.tokens, view.weights                                       # [n, n]; view.draw("cat.svg")

The parts of a model are "encoder" and "decoder" (self-attention) and "cross" (decoder to encoder). The decoder of an
encoder-decoder reads the same text as its encoder, after the start token. Layers and heads are numbered from 1.
Legend: S sequences, L layers, H heads, n queries, m keys.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pretune.analysis.attention_inputs import (
    EncodedChunk,
    Part,
    count_heads,
    encode_chunk,
    get_weights,
    list_parts,
    run_batches,
)
from pretune.analysis.attention_patterns import (
    BROAD_THRESHOLD,
    MEASURED_PATTERNS,
    PATTERN_THRESHOLD,
    Doubles,
    HeadStatistics,
    build_patterns,
    build_visible,
    count_classes,
)
from pretune.analysis.held_out import ModelSource, check_texts, open_model, read_held_out
from pretune.analysis.pictures import Analysis
from pretune.analysis.words import format_tokens
from pretune.core.api import check_arguments
from pretune.core.errors import DataError, UsageError
from pretune.core.types import Output
from pretune.inference.text_model import check_outputs, eval_mode, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.nn.two_stream import AttentionStack

MAX_TEXTS, MAX_LENGTH = 200, 128
"""Texts of held-out data, and tokens of a text, by default."""
MAX_VIEW_TOKENS = 60
"""Maximum tokens of a text whose attention is shown."""
CHUNK_TEXTS = 256
"""Texts that are tokenized together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHeads(Analysis):
    """Every head of a model with its class, over held-out text. Arrays are `[layers, heads]`, by part."""

    classes: dict[str, NDArray[Any]]
    means: dict[str, dict[str, Doubles]]  # mean attention to each pattern
    uniform: dict[str, dict[str, Doubles]]  # the same of uniform attention [layers]
    entropy: dict[str, Doubles]  # relative to uniform attention
    texts: int
    tokens: int
    truncated_texts: int
    source: str
    threshold: float
    broad_threshold: float

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """Share of the heads of each part in each class."""
        return {part: count_classes(classes) for part, classes in self.classes.items()}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per head."""
        return [
            {"part": part, "layer": layer + 1, "head": head + 1, "class": str(classes[layer, head])}
            | {name: float(self.means[part][name][layer, head]) for name in MEASURED_PATTERNS}
            | {"entropy": float(self.entropy[part][layer, head])}
            for part, classes in self.classes.items()
            for layer, head in np.ndindex(classes.shape)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return shares, thresholds and heads as plain data."""
        return {
            "kind": "attention",
            "source": self.source,
            "texts": self.texts,
            "tokens": self.tokens,
            "cut": self.truncated_texts,
            "thresholds": {"pattern": self.threshold, "broad": self.broad_threshold},
            "shares": self.shares,
            "uniform": {
                part: {name: [float(value) for value in values] for name, values in patterns.items()}
                for part, patterns in self.uniform.items()
            },
            "heads": self.to_rows(),
        }

    def __repr__(self) -> str:
        counts = "; ".join(
            f"{part} {', '.join(f'{name} {share:.0%}' for name, share in shares.items() if share)}"
            for part, shares in self.shares.items()
        )
        return f"AttentionHeads({counts}; {self.texts} texts)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionView(Analysis):
    """Attention weights `[n, m]` of the tokens of one text; of one head, or a mean."""

    part: str
    layer: int | None  # from 1; None: the mean of all layers
    head: int | None  # from 1; None: the mean of all heads
    tokens: list[str]  # [n] that attend
    keys: list[str]  # [m] that are attended to
    weights: NDArray[np.float32]
    truncated: bool = False  # the text has more tokens than are shown

    @property
    def title(self) -> str:
        """Name of the part, the layer and the head."""
        layer = "mean of all layers" if self.layer is None else f"layer {self.layer}"
        return f"{self.part}, {layer}, {'mean of all heads' if self.head is None else f'head {self.head}'}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per token, with the weight of every key."""
        names = [f"{place} {name}" for place, name in enumerate(self.keys, 1)]
        return [
            {"token": token} | dict(zip(names, map(float, row), strict=True))
            for token, row in zip(self.tokens, self.weights, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return tokens and weights as plain data."""
        return {
            "kind": "attention-text",
            "part": self.part,
            "layer": self.layer,
            "head": self.head,
            "title": self.title,
            "truncated": self.truncated,
            "tokens": self.tokens,
            "keys": self.keys,
            "weights": [[round(float(weight), 6) for weight in row] for row in self.weights],
        }

    def __repr__(self) -> str:
        return f"AttentionView({self.title}: {' '.join(self.tokens)[:60]!r})"


@check_arguments()
def analyze_attention(
    model: ModelSource,
    texts: Sequence[str] | None = None,
    *,
    max_texts: int = MAX_TEXTS,
    length: int = MAX_LENGTH,
    threshold: float = PATTERN_THRESHOLD,
    broad_threshold: float = BROAD_THRESHOLD,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> AttentionHeads:
    """Classify every attention head of a model over held-out text.

    Args:
        model: A model, its directory, or hf:OWNER/NAME.
        texts: Texts; None: validation documents of the run, or else a built-in corpus.
        max_texts: Number of texts at most.
        length: Tokens of a text at most, special ones included; longer ones are truncated.
        threshold: Minimum attention to a pattern beyond that of uniform attention.
        broad_threshold: Minimum relative entropy of a broad head.
        device: Device of a model that is loaded; by default a GPU if available.
        on_progress: Called with the number of finished texts and the total.

    Raises:
        UsageError: The model has no attention (a recurrent one) or no tokenizer, or a number is out of range.
    """
    _check_limits(max_texts=max_texts, length=length, threshold=threshold, broad_threshold=broad_threshold)
    language_model = open_model(model, device)
    parts = list_parts(language_model)
    held_out = read_held_out(model, language_model, max_texts) if texts is None else None
    inputs = check_texts(held_out.texts if held_out is not None else texts or [])[:max_texts]
    statistics = {
        part: HeadStatistics(stack.depth, count_heads(stack, is_cross=part == "cross")) for part, stack in parts.items()
    }
    tokens = truncated_texts = finished_texts = 0
    with eval_mode(language_model):
        for start in range(0, len(inputs), CHUNK_TEXTS):
            chunk = encode_chunk(language_model, inputs[start : start + CHUNK_TEXTS], length)
            tokens, truncated_texts = tokens + len(chunk.source.tokens), truncated_texts + chunk.truncated_texts
            for indices, output in run_batches(language_model, chunk):
                _add_batch(statistics, parts, chunk, indices, output)
                finished_texts += len(indices)
                if on_progress is not None:
                    on_progress(finished_texts, len(inputs))
    if not any(part.queries.any() for part in statistics.values()):
        raise DataError("no text has two tokens, so there is no attention to classify; pass longer texts")
    return AttentionHeads(
        classes={part: values.classify(threshold, broad_threshold) for part, values in statistics.items()},
        means={part: values.means for part, values in statistics.items()},
        uniform={part: values.uniform for part, values in statistics.items()},
        entropy={part: values.entropy for part, values in statistics.items()},
        texts=len(inputs),
        tokens=tokens,
        truncated_texts=truncated_texts,
        source=held_out.source if held_out is not None else "given texts",
        threshold=threshold,
        broad_threshold=broad_threshold,
    )


def _check_limits(*, max_texts: int, length: int, threshold: float, broad_threshold: float) -> None:
    """Raise a UsageError for a number out of range."""
    for name, value, minimum in (("max_texts", max_texts, 1), ("length", length, 4)):
        if value < minimum:
            raise UsageError(f"{name} must be >= {minimum}, got {value}")
    for name, share in (("threshold", threshold), ("broad_threshold", broad_threshold)):
        if not 0 < share <= 1:
            raise UsageError(f"{name} must be above 0 and at most 1, got {share:g}")


@check_arguments()
def view_attention(
    model: ModelSource,
    text: str,
    *,
    layer: int | Literal["mean"] = -1,
    head: int | None = None,
    part: Part | None = None,
    device: str | None = None,
) -> AttentionView:
    """Return who attends to whom in one text.

    Args:
        model: A model, its directory, or hf:OWNER/NAME.
        text: A text of at most `MAX_VIEW_TOKENS` tokens; more are truncated.
        layer: Layer from 1, or negative from the end; "mean": the mean of all layers.
        head: Head from 1; None: the mean of all heads.
        part: "encoder", "decoder" or "cross"; None: the first that the model has.
        device: Device of a model that is loaded; by default a GPU if available.

    Raises:
        UsageError: The model has no attention (a recurrent one), or no such part, layer or head.
    """
    language_model, name, depth, heads = _open_part(model, part, text, device)
    if layer != "mean" and not (1 <= layer <= depth or -depth <= layer <= -1):
        raise UsageError(f"layer must be from 1 to {depth}, or from -1 to -{depth}, got {layer}")
    if head is not None and not 1 <= head <= heads:
        raise UsageError(f"head must be from 1 to {heads}, got {head}")
    view = _view_part(language_model, text, name, MAX_VIEW_TOKENS)
    number = None if layer == "mean" else layer if layer > 0 else depth + 1 + layer
    rows = view.weights.mean(0) if number is None else view.weights[number - 1]  # [H, n, m]
    return AttentionView(
        part=name,
        layer=number,
        head=head,
        tokens=view.tokens,
        keys=view.keys,
        weights=rows.mean(0) if head is None else rows[head - 1],
        truncated=view.truncated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllHeadsView:
    """Attention weights `[L, H, n, m]` of all heads of a part for the tokens of one text."""

    part: str
    tokens: list[str]  # [n] that attend
    keys: list[str]  # [m] that are attended to
    weights: NDArray[np.float32]
    truncated: bool


def view_all_heads(
    model: ModelSource, text: str, *, part: Part | None = None, max_weights: int = 2**19
) -> AllHeadsView:
    """Return who attends to whom in one text, by all heads of a part (by default the first that the model has).

    A text has at most `MAX_VIEW_TOKENS` tokens, and fewer if the weights were more than `max_weights`.
    """
    language_model, name, depth, heads = _open_part(model, part, text)
    max_tokens = max(4, min(MAX_VIEW_TOKENS, math.isqrt(max_weights // (depth * heads))))
    return _view_part(language_model, text, name, max_tokens)


def _open_part(
    model: ModelSource, part: Part | None, text: str, device: str | None = None
) -> tuple[LanguageModel, Part, int, int]:
    """Return a model, a part with attention (by default its first), and the layers and heads of that."""
    language_model = open_model(model, device)
    parts = list_parts(language_model)
    name = part or next(iter(parts))
    if name not in parts:
        raise UsageError(f"this model has no attention '{name}' (allowed: {', '.join(parts)})")
    if not text.strip():
        raise UsageError("the text is empty; pass a sentence")
    return language_model, name, parts[name].depth, count_heads(parts[name], is_cross=name == "cross")


def _view_part(model: LanguageModel, text: str, part: Part, max_tokens: int) -> AllHeadsView:
    with eval_mode(model):
        chunk = encode_chunk(model, [text], max_tokens)
        ((_, output),) = run_batches(model, chunk)
        weights = torch.stack([sequences[0].float() for sequences in get_weights(output, part)])
    check_outputs(weights, "attention weights")
    tokenizer = get_tokenizer(model)
    target = chunk.source if chunk.target is None or part == "encoder" else chunk.target
    keys = target if part == "decoder" else chunk.source
    return AllHeadsView(
        part=part,
        tokens=format_tokens(tokenizer, target.tokens.tolist()),
        keys=format_tokens(tokenizer, keys.tokens.tolist()),
        weights=weights.cpu().numpy(),
        truncated=chunk.truncated_texts > 0,
    )


def _add_batch(
    statistics: dict[Part, HeadStatistics],
    parts: dict[Part, AttentionStack],
    chunk: EncodedChunk,
    indices: Sequence[int],
    output: Output,
) -> None:
    """Add the sequences of a batch to the statistics of every part."""
    for part, stack in parts.items():
        weights = get_weights(output, part)
        layers = [stack.layers[index] for index in stack.layer_indices]
        for place, number in enumerate(indices):
            is_target = part != "encoder" and chunk.target is not None
            queries = chunk.target_roles[number] if is_target else chunk.source_roles[number]
            keys = chunk.source_roles[number] if part == "cross" else queries
            patterns, is_query = build_patterns(queries, keys), ~queries.special
            for layer, spec in enumerate(layers):
                window = None if part == "cross" else getattr(spec.attention, "window", None)
                causal = stack.causal and part != "cross"
                visible = build_visible(len(queries.index), len(keys.index), causal=causal, window=window)
                statistics[part].add(layer, weights[layer][place], patterns, visible, is_query)
    check_outputs(output.states, "states")
