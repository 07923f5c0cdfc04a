"""A lesson of one sequence, spelled out: what is read, what is to be said, and what is known of every token."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.sequences import Sequences
from pretune.data.stream import Corruption
from pretune.objectives.base import ModelShape, Objective
from pretune.objectives.mask_replacement import MaskReplacement
from pretune.objectives.replaced_token import fill_in
from pretune.runs.show_batch.attention import build_attention_maps
from pretune.runs.show_batch.recording_model import RecordedEdges, RecordingModel
from pretune.runs.show_batch.token_text import TokenRenderer
from pretune.runs.show_batch.types import LossTerm, ModelSide, ShownSequence, TokenKind, TokenRow

IN_PLACE_SHAPES = ("encoder", "generator-discriminator", "two-stream")
"""Shapes whose targets stand over the tokens they hide; those of others are what comes next."""
SHOWN_KINDS: Mapping[TokenKind, str] = {"mask": "mask", "random": "random", "kept": "kept"}


@dataclass(frozen=True, slots=True)
class CorruptedSequence:
    """A sequence before and after, and what it was made by."""

    title: str
    objective: Objective
    corruption: Corruption
    renderer: TokenRenderer
    shape: ModelShape
    original: Sequences
    batch: Batch

    def format_tokens(self, ids: Tensor) -> tuple[str, ...]:
        """Tokens by name, "" for none."""
        return self.renderer.format_tokens(ids.tolist())

    def place_labels(self, targets: Targets) -> Tensor:
        """[N] what is to be said at every token, IGNORE where nothing is."""
        labels = torch.full_like(self.batch.tokens, IGNORE_INDEX)
        asked = targets.labels != IGNORE_INDEX
        labels[targets.index[asked]] = targets.labels[asked]
        return labels


def describe_sequence(sequence: CorruptedSequence) -> ShownSequence:
    """The lesson in words. The loss is asked for with a model that only listens, so it says what is asked."""
    model = RecordingModel(sequence.renderer.vocabulary.list_ordinary_ids())
    loss = sequence.objective.loss(model, sequence.batch)
    labels = sequence.place_labels(model.recorded_targets[0])
    return ShownSequence(
        title=sequence.title,
        reads=_format_input(sequence, labels),
        says=_format_targets(sequence, labels),
        sides=tuple(_build_sides(sequence, model, loss)),
        sights=build_attention_maps(sequence.batch, sequence.shape, sequence.format_tokens),
        facts=tuple(_describe_facts(sequence, model)),
        terms=tuple(
            LossTerm(name=name, weight=float(term.weight), count=int(term.count))
            for name, term in loss.get_terms().items()
        ),
    )


def _format_input(sequence: CorruptedSequence, labels: Tensor) -> str:
    """The input as a line of text: of a decoder that is given a first part, that part."""
    batch = sequence.batch
    if batch.source is not None:
        return sequence.renderer.format_line(batch.source.tokens.tolist())
    asked = int((labels != IGNORE_INDEX).nonzero()[0]) if (labels != IGNORE_INDEX).any() else 0
    given = len(labels) if sequence.shape in IN_PLACE_SHAPES or asked == 0 else asked + 1
    return sequence.renderer.format_line(batch.tokens[:given].tolist())


def _format_targets(sequence: CorruptedSequence, labels: Tensor) -> str:
    """The targets as a line of text, with dots for what lies between them where they stand."""
    if sequence.shape not in IN_PLACE_SHAPES:
        return sequence.renderer.format_line(labels.tolist())
    places = np.flatnonzero(labels.numpy() != IGNORE_INDEX)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
    return " … ".join(sequence.renderer.format_line(labels[torch.from_numpy(run)].tolist()) for run in runs)


def _build_sides(sequence: CorruptedSequence, model: RecordingModel, loss: Loss) -> Iterator[ModelSide]:
    """Everything that is read, with what is to be said under it."""
    batch, labels = sequence.batch, sequence.place_labels(model.recorded_targets[0])
    says = TokenRow(name="says", values=sequence.format_tokens(labels))
    if batch.source is not None:
        yield _build_side(sequence, "encoder", batch.source, [], _find_hidden_span(sequence, labels))
        yield _build_side(sequence, "decoder", batch, [says])
    elif len(model.recorded_targets) > 1:
        ways = [
            TokenRow(name=f"says, {name}", values=sequence.format_tokens(sequence.place_labels(asked)))
            for name, asked in zip(loss.get_terms(), model.recorded_targets, strict=False)
        ]
        yield _build_side(sequence, sequence.shape, batch, ways)
    elif model.proposed_tokens is not None:
        yield _build_side(sequence, "generator", batch, [says], labels)
        yield _build_detector_side(sequence, model.proposed_tokens)
    else:
        yield _build_side(sequence, sequence.shape, batch, [says], labels if sequence.shape == "encoder" else None)


def _build_detector_side(sequence: CorruptedSequence, proposed_tokens: Tensor) -> ModelSide:
    """What a discriminator reads after the blanks are filled in, and what it should say of every token."""
    shown, replaced = fill_in(sequence.batch, proposed_tokens)
    news = replaced.tolist()
    kinds: Iterator[TokenKind] = (
        "random" if new else kind for new, kind in zip(news, _classify_tokens(sequence, shown.tokens), strict=True)
    )
    says = TokenRow(name="replaced", values=tuple("yes" if new else "no" for new in news))
    return ModelSide(
        name="discriminator", tokens=sequence.format_tokens(shown.tokens), kinds=tuple(kinds), rows=(says,)
    )


def _build_side(
    sequence: CorruptedSequence, name: str, batch: Batch, rows: list[TokenRow], hidden_labels: Tensor | None = None
) -> ModelSide:
    """Tokens with their rows, with what the batch knows of them, and where they hide others, in what disguise."""
    kinds = _classify_tokens(sequence, batch.tokens, hidden_labels)
    if hidden_labels is not None:
        shown = tuple(SHOWN_KINDS.get(kind, "") for kind in kinds)
        rows = [*rows, TokenRow(name="shown as", values=shown)] if any(shown) else rows
    if batch.blanks is not None and bool((batch.blanks >= 0).any()):
        rows.append(TokenRow(name="span", values=tuple(str(n) if n >= 0 else "" for n in batch.blanks.tolist())))
    if batch.order is not None:
        rows.append(TokenRow(name="order", values=tuple(map(str, batch.order.tolist()))))
    if batch.segments is not None and bool(batch.segments.any()):
        rows.append(TokenRow(name="segment", values=tuple("ABCDEFGH"[n % 8] for n in batch.segments.tolist())))
    return ModelSide(name=name, tokens=sequence.format_tokens(batch.tokens), kinds=kinds, rows=tuple(rows))


def _find_hidden_span(sequence: CorruptedSequence, labels: Tensor) -> Tensor | None:
    """What a source hides where it is in disguise: the stretch that the decoder says, at its place in the text."""
    source, was = sequence.batch.source, torch.from_numpy(sequence.original.tokens)
    if source is None or not isinstance(getattr(sequence.corruption, "replacement", None), MaskReplacement):
        return None
    said = labels[labels != IGNORE_INDEX]
    changed = source.tokens != was
    for start in range(len(was) - len(said) + 1):
        inside = torch.zeros_like(changed)
        inside[start : start + len(said)] = True
        if bool((was[inside] == said).all()) and not bool((changed & ~inside).any()):
            return torch.where(inside, was, IGNORE_INDEX)
    return None


def _classify_tokens(
    sequence: CorruptedSequence, tokens: Tensor, labels: Tensor | None = None
) -> tuple[TokenKind, ...]:
    """What every token is; with labels, which stand over the tokens they hide, also in what disguise."""
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
    """What else there is to know of the sequence."""
    batch = sequence.batch
    if batch.prefix is not None and int(batch.prefix[0]):
        yield f"The first {int(batch.prefix[0])} tokens see each other in both directions."
    if batch.order is not None:
        asked = [(int(rank), int(place)) for place, rank in enumerate(batch.order.tolist()) if rank]
        turns = " then ".join(f"{sequence.renderer.format_token(int(batch.tokens[p]))} ({p})" for _, p in sorted(asked))
        yield f"Order of prediction: {turns or 'nothing'}. Rank 0 is context, which all may see."
    if model.edges is not None:
        yield from _describe_edges(sequence, model.edges)


def _describe_edges(sequence: CorruptedSequence, edges: RecordedEdges) -> Iterator[str]:
    for left, right in dict.fromkeys(zip(edges.left.tolist(), edges.right.tolist(), strict=True)):
        inside = (edges.left == left) & (edges.right == right) & (edges.labels != IGNORE_INDEX)
        if bool(inside.any()):
            said = sequence.renderer.format_line(edges.labels[inside].tolist())
            one, other = sequence.format_tokens(sequence.batch.tokens[[left, right]])
            yield f"Boundary: '{said}' is also said from its edges alone, {one} ({left}) and {other} ({right})."
