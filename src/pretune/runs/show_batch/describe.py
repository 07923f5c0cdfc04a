"""Description of one corrupted sequence: input, targets, attention masks, and facts about every token.

All values come from a real corruption and a real batch. A recording model receives the inputs of the loss, so that
targets and weights are those of the real loss.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.sequences import Ints, Sequences
from pretune.data.stream import Corruption
from pretune.models.bidirectional_lm import reverse_sequences
from pretune.nn.attention_mask import MaskSpec, build_context
from pretune.nn.two_stream import build_stream_masks
from pretune.objectives.base import ModelShape, Objective, count_vocabulary_targets
from pretune.objectives.masked import MaskReplacement
from pretune.objectives.replaced_token import fill_in
from pretune.runs.show_batch.texts import TokenRenderer

TokenFormatter = Callable[[Tensor], tuple[str, ...]]
TokenKind = Literal["text", "special", "mask", "random", "kept", "sentinel"]
"""Kind of an input token; `random` and `kept` tokens are predicted although they look unmasked."""
IN_PLACE_SHAPES = ("encoder", "generator-discriminator", "two-stream")
"""Shapes whose targets are at the masked positions; those of others are the next tokens."""
SHOWN_KINDS: Mapping[TokenKind, str] = {"mask": "mask", "random": "random", "kept": "kept"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Row of a token table: a value per token, "" for none."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSide:
    """Input of a model, or of one side of it, with the rows below its tokens."""

    name: str
    tokens: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    rows: tuple[TokenRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMap:
    """Attention mask: a row per query, a column per key."""

    name: str
    queries: tuple[str, ...]
    places: tuple[int, ...]  # of the queries in the input
    keys: tuple[str, ...]
    mask: tuple[tuple[bool, ...], ...]
    cross: bool = False  # keys of another side


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """Term of the loss: a mean over `count` targets, times its weight."""

    name: str
    weight: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSequence:
    """One corrupted sequence."""

    title: str  # "" for a single one
    input: str
    target: str
    sides: tuple[ModelSide, ...]
    attention: tuple[AttentionMap, ...]
    facts: tuple[str, ...]
    terms: tuple[LossTerm, ...]


class RecordedEdges(NamedTuple):
    """Positions of the tokens next to the span of every target [M], the position within it, and the labels."""

    left: Tensor
    right: Tensor
    place: Tensor
    labels: Tensor


class RecordingModel:
    """Stand-in for a model of the given shape. Its states are token positions, and its loss is 0.

    As a generator it samples ordinary tokens uniformly, from the given random numbers.
    """

    def __init__(self, token_ids: Ints, shape: ModelShape) -> None:
        self.shape: ModelShape = shape
        self.token_ids = torch.from_numpy(token_ids)
        self.recorded_targets: list[Targets] = []  # of the language-modelling head, call by call
        self.edges: RecordedEdges | None = None
        self.proposed_tokens: Tensor | None = None
        self.pair = nn.Linear(1, 2)  # classifies pairs

    def states(self, batch: Batch) -> Tensor:
        """Return token positions [N, 1]."""
        return torch.arange(len(batch.tokens)).float()[:, None]

    def compute_output(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the same states before and after dropout."""
        return self.states(batch), self.states(batch)

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the same states for both directions."""
        return self.states(batch), self.states(batch)

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Record the targets; return a zero loss with their count."""
        assert batch.targets is not None
        self.recorded_targets.append(batch.targets)
        return Loss(sum=torch.zeros(()), count=count_vocabulary_targets(batch))

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """Return zeros [C, 1]."""
        return states.new_zeros(batch.cells, 1)

    def compute_span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """Record the boundary positions, which the states hold; return a zero loss."""
        self.edges = RecordedEdges(left[:, 0].long(), right[:, 0].long(), place, labels)
        return Loss(sum=torch.zeros(()), count=(labels != IGNORE_INDEX).sum())

    def propose(self, batch: Batch, chance: Tensor) -> tuple[Loss, Tensor]:
        """Return a uniformly sampled token for every masked position."""
        self.proposed_tokens = self.token_ids[(chance * len(self.token_ids)).long()]
        return self.loss(self.states(batch), batch), self.proposed_tokens

    def detect(self, batch: Batch) -> Tensor:
        """Return zero logits [N]."""
        return torch.zeros(len(batch.tokens))


@dataclass(frozen=True, slots=True)
class CorruptedSequence:
    """A sequence before and after corruption, with its objective."""

    title: str
    objective: Objective
    corruption: Corruption
    renderer: TokenRenderer
    shape: ModelShape
    original: Sequences
    batch: Batch

    def format_tokens(self, ids: Tensor) -> tuple[str, ...]:
        """Return tokens as text; "" for none."""
        return self.renderer.format_tokens(ids.tolist())

    def place_labels(self, targets: Targets) -> Tensor:
        """Return the label of every token [N], IGNORE_INDEX where there is none."""
        labels = torch.full_like(self.batch.tokens, IGNORE_INDEX)
        is_target = targets.labels != IGNORE_INDEX
        labels[targets.index[is_target]] = targets.labels[is_target]
        return labels


def describe_sequence(sequence: CorruptedSequence) -> ShownSequence:
    """Describe a sequence; a recording model receives the loss's inputs, so targets and weights are the real ones."""
    model = RecordingModel(sequence.renderer.vocabulary.list_ordinary_ids(), sequence.shape)
    loss = sequence.objective.loss(model, sequence.batch)
    labels = sequence.place_labels(model.recorded_targets[0])
    return ShownSequence(
        title=sequence.title,
        input=_format_input(sequence, labels),
        target=_format_targets(sequence, labels),
        sides=tuple(_build_sides(sequence, model, loss)),
        attention=build_attention_maps(sequence.batch, sequence.shape, sequence.format_tokens),
        facts=tuple(_describe_facts(sequence, model)),
        terms=tuple(
            LossTerm(name=name, weight=float(term.weight), count=int(term.count))
            for name, term in loss.get_terms().items()
        ),
    )


def _format_input(sequence: CorruptedSequence, labels: Tensor) -> str:
    """Return the input as text; for a decoder with a prefix, the prefix."""
    batch = sequence.batch
    if batch.source is not None:
        return sequence.renderer.format_line(batch.source.tokens.tolist())
    first_target = int((labels != IGNORE_INDEX).nonzero()[0]) if (labels != IGNORE_INDEX).any() else 0
    input_length = len(labels) if sequence.shape in IN_PLACE_SHAPES or first_target == 0 else first_target + 1
    return sequence.renderer.format_line(batch.tokens[:input_length].tolist())


def _format_targets(sequence: CorruptedSequence, labels: Tensor) -> str:
    """Return the targets as text, with dots between targets that are not adjacent."""
    if sequence.shape not in IN_PLACE_SHAPES:
        return sequence.renderer.format_line(labels.tolist())
    places = np.flatnonzero(labels.numpy() != IGNORE_INDEX)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
    return " … ".join(sequence.renderer.format_line(labels[torch.from_numpy(run)].tolist()) for run in runs)


def _build_sides(sequence: CorruptedSequence, model: RecordingModel, loss: Loss) -> Iterator[ModelSide]:
    """Yield the tokens of each model side with the targets below them."""
    batch, labels = sequence.batch, sequence.place_labels(model.recorded_targets[0])
    target_row = TokenRow(name="target", values=sequence.format_tokens(labels))
    if batch.source is not None:
        yield _build_side(sequence, "encoder", batch.source, [], _find_hidden_span(sequence, labels))
        yield _build_side(sequence, "decoder", batch, [target_row])
    elif len(model.recorded_targets) > 1:
        ways = [
            TokenRow(name=f"target, {name}", values=sequence.format_tokens(sequence.place_labels(targets)))
            for name, targets in zip(loss.get_terms(), model.recorded_targets, strict=False)
        ]
        yield _build_side(sequence, sequence.shape, batch, ways)
    elif model.proposed_tokens is not None:
        yield _build_side(sequence, "generator", batch, [target_row], labels)
        yield _build_detector_side(sequence, model.proposed_tokens)
    else:
        hidden_labels = labels if sequence.shape == "encoder" else None
        yield _build_side(sequence, sequence.shape, batch, [target_row], hidden_labels)


def _build_detector_side(sequence: CorruptedSequence, proposed_tokens: Tensor) -> ModelSide:
    """Return the discriminator's input after replacement, and its label for every token."""
    filled_batch, is_replaced = fill_in(sequence.batch, proposed_tokens)
    news = is_replaced.tolist()
    kinds = _classify_tokens(sequence, filled_batch.tokens)
    return ModelSide(
        name="discriminator",
        tokens=sequence.format_tokens(filled_batch.tokens),
        kinds=tuple("random" if new else kind for new, kind in zip(news, kinds, strict=True)),
        rows=(TokenRow(name="replaced", values=tuple("yes" if new else "no" for new in news)),),
    )


def _build_side(
    sequence: CorruptedSequence, name: str, batch: Batch, rows: list[TokenRow], hidden_labels: Tensor | None = None
) -> ModelSide:
    """Return tokens with their rows: targets, masking, spans, order, segments."""
    kinds = _classify_tokens(sequence, batch.tokens, hidden_labels)
    if hidden_labels is not None:
        appearance = tuple(SHOWN_KINDS.get(kind, "") for kind in kinds)
        rows = [*rows, TokenRow(name="shown as", values=appearance)] if any(appearance) else rows
    if batch.blanks is not None and bool((batch.blanks >= 0).any()):
        rows.append(TokenRow(name="span", values=tuple(str(n) if n >= 0 else "" for n in batch.blanks.tolist())))
    if batch.order is not None:
        rows.append(TokenRow(name="order", values=tuple(map(str, batch.order.tolist()))))
    if batch.segments is not None and bool(batch.segments.any()):
        rows.append(TokenRow(name="segment", values=tuple("ABCDEFGH"[n % 8] for n in batch.segments.tolist())))
    return ModelSide(name=name, tokens=sequence.format_tokens(batch.tokens), kinds=kinds, rows=tuple(rows))


def _find_hidden_span(sequence: CorruptedSequence, labels: Tensor) -> Tensor | None:
    """Return the masked span of a source whose masking uses 80/10/10 replacement, at its place in the text."""
    source, was = sequence.batch.source, torch.from_numpy(sequence.original.tokens)
    if source is None or not isinstance(getattr(sequence.corruption, "replacement", None), MaskReplacement):
        return None
    target_tokens = labels[labels != IGNORE_INDEX]
    is_changed = source.tokens != was
    for start in range(len(was) - len(target_tokens) + 1):
        inside = torch.zeros_like(is_changed)
        inside[start : start + len(target_tokens)] = True
        if bool((was[inside] == target_tokens).all()) and not bool((is_changed & ~inside).any()):
            return torch.where(inside, was, IGNORE_INDEX)
    return None


def _classify_tokens(
    sequence: CorruptedSequence, tokens: Tensor, labels: Tensor | None = None
) -> tuple[TokenKind, ...]:
    """Return the kind of every token; with labels at the masked positions, also the replacement."""
    vocabulary = sequence.renderer.vocabulary
    mask, special, sentinels = vocabulary.find("mask"), {*vocabulary.special}, {*vocabulary.sentinels}
    hidden = [IGNORE_INDEX] * len(tokens) if labels is None else labels.tolist()

    def kind(token: int, label: int) -> TokenKind:
        if token == mask:
            return "mask"
        if token in sentinels:
            return "sentinel"
        if label != IGNORE_INDEX:
            return "kept" if token == label else "random"
        return "special" if token in special else "text"

    return tuple(kind(token, label) for token, label in zip(tokens.tolist(), hidden, strict=True))


def _describe_facts(sequence: CorruptedSequence, model: RecordingModel) -> Iterator[str]:
    """Yield further facts about the sequence."""
    batch = sequence.batch
    if batch.prefix is not None and int(batch.prefix[0]):
        yield f"The first {int(batch.prefix[0])} tokens attend to each other bidirectionally."
    if batch.order is not None:
        ranks = [(int(rank), int(place)) for place, rank in enumerate(batch.order.tolist()) if rank]
        turns = " then ".join(f"{sequence.renderer.format_token(int(batch.tokens[p]))} ({p})" for _, p in sorted(ranks))
        yield f"Prediction order: {turns or 'none'}. Rank 0 is context, visible to all."
    if model.edges is not None:
        yield from _describe_edges(sequence, model.edges)


def _describe_edges(sequence: CorruptedSequence, edges: RecordedEdges) -> Iterator[str]:
    for left, right in dict.fromkeys(zip(edges.left.tolist(), edges.right.tolist(), strict=True)):
        inside = (edges.left == left) & (edges.right == right) & (edges.labels != IGNORE_INDEX)
        if bool(inside.any()):
            text = sequence.renderer.format_line(edges.labels[inside].tolist())
            left_token, right_token = sequence.format_tokens(sequence.batch.tokens[[left, right]])
            boundaries = f"{left_token} ({left}) and {right_token} ({right})"
            yield f"Span boundary objective: '{text}' is also predicted from its boundaries {boundaries}."


def build_attention_maps(batch: Batch, shape: ModelShape, formatter: TokenFormatter) -> tuple[AttentionMap, ...]:
    """Return the attention masks of a model of this shape, built by the models' own functions."""

    def build(
        name: str, mask: Tensor, queries: Tensor | None = None, keys: Batch = batch, cross: bool = False
    ) -> AttentionMap:
        """Return a map [q, k]; `queries` are the positions of its rows in the batch, by default all."""
        rows = torch.arange(len(batch.tokens)) if queries is None else queries
        return AttentionMap(
            name=name,
            queries=formatter(batch.tokens[rows]),
            places=tuple(rows.tolist()),
            keys=formatter(keys.tokens),
            mask=tuple(map(tuple, mask.tolist())),
            cross=cross,
        )

    if shape == "two-way":
        reversed_batch, index = reverse_sequences(batch)
        backward = _build_mask(reversed_batch, reversed_batch, causal=True)[index][:, index]
        return build("forward stack", _build_mask(batch, batch, causal=True)), build("backward stack", backward)
    if shape == "two-stream":
        content, query = build_stream_masks(batch)
        maps = [build("content stream", _expand_mask(content.mask, batch, batch))]
        if query is not None and batch.targets is not None:
            rows = batch.targets.index[batch.targets.labels != IGNORE_INDEX]
            maps.append(build("query stream", _expand_mask(query.mask, batch, batch)[rows], rows))
        return tuple(maps)
    if batch.source is not None:
        (encoder,) = build_attention_maps(batch.source, "encoder", formatter)
        decoder = build("decoder", _build_mask(batch, batch, causal=True))
        cross = build("decoder to encoder", _build_mask(batch, batch.source), keys=batch.source, cross=True)
        return encoder, decoder, cross
    name = "generator and discriminator" if shape == "generator-discriminator" else shape
    return (build(name, _build_mask(batch, batch, causal=shape == "decoder")),)


def _build_mask(queries: Batch, keys: Batch, *, causal: bool = False) -> Tensor:
    context = build_context(queries, keys, MaskSpec(causal=causal), "eager", torch.float32)
    return _expand_mask(context.mask, queries, keys)


def _expand_mask(mask: Tensor | None, queries: Batch, keys: Batch) -> Tensor:
    """Expand to [q, k]; None masks nothing."""
    size = (len(queries.tokens), len(keys.tokens))
    return torch.ones(size, dtype=torch.bool) if mask is None else mask.expand(1, 1, *size)[0, 0]
