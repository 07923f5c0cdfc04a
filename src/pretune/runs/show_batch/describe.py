"""A lesson of one sequence, spelled out: what is read, what is to be said, and what is known of every token."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretune.core.types import IGNORE, Batch, Loss, Targets
from pretune.data.sequences import Sequences
from pretune.data.stream import Lesson
from pretune.objectives.base import ModelShape, Objective
from pretune.objectives.mask_replacement import Disguise
from pretune.objectives.replaced_token import filled_in
from pretune.runs.show_batch.attention import sights
from pretune.runs.show_batch.recording_model import Edges, Onlooker
from pretune.runs.show_batch.token_text import Spelling
from pretune.runs.show_batch.types import Drawn, Kind, Row, Side, Term

IN_PLACE = ("encoder", "generator-discriminator", "two-stream")
"""Shapes whose targets stand over the tokens they hide; those of others are what comes next."""
SHOWN: Mapping[Kind, str] = {"mask": "mask", "random": "random", "kept": "kept"}


@dataclass(frozen=True, slots=True)
class Lessoned:
    """A sequence before and after, and what it was made by."""

    title: str
    objective: Objective
    lesson: Lesson
    spelling: Spelling
    shape: ModelShape
    before: Sequences
    batch: Batch

    def spell(self, ids: Tensor) -> tuple[str, ...]:
        """Tokens by name, "" for none."""
        return self.spelling.tokens(ids.tolist())

    def labels(self, targets: Targets) -> Tensor:
        """[N] what is to be said at every token, IGNORE where nothing is."""
        labels = torch.full_like(self.batch.tokens, IGNORE)
        asked = targets.labels != IGNORE
        labels[targets.index[asked]] = targets.labels[asked]
        return labels


def tell(taught: Lessoned) -> Drawn:
    """The lesson in words. The loss is asked for with a model that only listens, so it says what is asked."""
    model = Onlooker(taught.spelling.vocabulary.ordinary())
    loss = taught.objective.loss(model, taught.batch)
    labels = taught.labels(model.asked[0])
    return Drawn(
        title=taught.title,
        reads=_reads(taught, labels),
        says=_says(taught, labels),
        sides=tuple(_sides(taught, model, loss)),
        sights=sights(taught.batch, taught.shape, taught.spell),
        facts=tuple(_facts(taught, model)),
        terms=tuple(
            Term(name=name, weight=float(term.weight), count=int(term.count)) for name, term in loss.terms().items()
        ),
    )


def _reads(taught: Lessoned, labels: Tensor) -> str:
    """The input as a line of text: of a decoder that is given a first part, that part."""
    batch = taught.batch
    if batch.source is not None:
        return taught.spelling.line(batch.source.tokens.tolist())
    asked = int((labels != IGNORE).nonzero()[0]) if (labels != IGNORE).any() else 0
    given = len(labels) if taught.shape in IN_PLACE or asked == 0 else asked + 1
    return taught.spelling.line(batch.tokens[:given].tolist())


def _says(taught: Lessoned, labels: Tensor) -> str:
    """The targets as a line of text, with dots for what lies between them where they stand."""
    if taught.shape not in IN_PLACE:
        return taught.spelling.line(labels.tolist())
    places = np.flatnonzero(labels.numpy() != IGNORE)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
    return " … ".join(taught.spelling.line(labels[torch.from_numpy(run)].tolist()) for run in runs)


def _sides(taught: Lessoned, model: Onlooker, loss: Loss) -> Iterator[Side]:
    """Everything that is read, with what is to be said under it."""
    batch, labels = taught.batch, taught.labels(model.asked[0])
    says = Row(name="says", values=taught.spell(labels))
    if batch.source is not None:
        yield _side(taught, "encoder", batch.source, [], _stretch(taught, labels))
        yield _side(taught, "decoder", batch, [says])
    elif len(model.asked) > 1:
        ways = [
            Row(name=f"says, {name}", values=taught.spell(taught.labels(asked)))
            for name, asked in zip(loss.terms(), model.asked, strict=False)
        ]
        yield _side(taught, taught.shape, batch, ways)
    elif model.drawn is not None:
        yield _side(taught, "generator", batch, [says], labels)
        yield _detector(taught, model.drawn)
    else:
        yield _side(taught, taught.shape, batch, [says], labels if taught.shape == "encoder" else None)


def _detector(taught: Lessoned, drawn: Tensor) -> Side:
    """What a discriminator reads after the blanks are filled in, and what it should say of every token."""
    shown, replaced = filled_in(taught.batch, drawn)
    news = replaced.tolist()
    kinds: Iterator[Kind] = (
        "random" if new else kind for new, kind in zip(news, _kinds(taught, shown.tokens), strict=True)
    )
    says = Row(name="replaced", values=tuple("yes" if new else "no" for new in news))
    return Side(name="discriminator", tokens=taught.spell(shown.tokens), kinds=tuple(kinds), rows=(says,))


def _side(taught: Lessoned, name: str, batch: Batch, rows: list[Row], hides: Tensor | None = None) -> Side:
    """Tokens with their rows, with what the batch knows of them, and where they hide others, in what disguise."""
    kinds = _kinds(taught, batch.tokens, hides)
    if hides is not None:
        shown = tuple(SHOWN.get(kind, "") for kind in kinds)
        rows = [*rows, Row(name="shown as", values=shown)] if any(shown) else rows
    if batch.blanks is not None and bool((batch.blanks >= 0).any()):
        rows.append(Row(name="span", values=tuple(str(n) if n >= 0 else "" for n in batch.blanks.tolist())))
    if batch.order is not None:
        rows.append(Row(name="order", values=tuple(map(str, batch.order.tolist()))))
    if batch.segments is not None and bool(batch.segments.any()):
        rows.append(Row(name="segment", values=tuple("ABCDEFGH"[n % 8] for n in batch.segments.tolist())))
    return Side(name=name, tokens=taught.spell(batch.tokens), kinds=kinds, rows=tuple(rows))


def _stretch(taught: Lessoned, labels: Tensor) -> Tensor | None:
    """What a source hides where it is in disguise: the stretch that the decoder says, at its place in the text."""
    source, was = taught.batch.source, torch.from_numpy(taught.before.tokens)
    if source is None or not isinstance(getattr(taught.lesson, "disguise", None), Disguise):
        return None
    said = labels[labels != IGNORE]
    changed = source.tokens != was
    for start in range(len(was) - len(said) + 1):
        inside = torch.zeros_like(changed)
        inside[start : start + len(said)] = True
        if bool((was[inside] == said).all()) and not bool((changed & ~inside).any()):
            return torch.where(inside, was, IGNORE)
    return None


def _kinds(taught: Lessoned, tokens: Tensor, labels: Tensor | None = None) -> tuple[Kind, ...]:
    """What every token is; with labels, which stand over the tokens they hide, also in what disguise."""
    vocabulary = taught.spelling.vocabulary
    mask, special, sentinels = vocabulary.find("mask"), {*vocabulary.special}, {*vocabulary.sentinels}
    hidden = [IGNORE] * len(tokens) if labels is None else labels.tolist()

    def kind(token: int, label: int) -> Kind:
        if token == mask:
            return "mask"
        if token in sentinels:
            return "sentinel"
        if label != IGNORE:
            return "kept" if token == label else "random"
        return "special" if token in special else "text"

    return tuple(kind(token, label) for token, label in zip(tokens.tolist(), hidden, strict=True))


def _facts(taught: Lessoned, model: Onlooker) -> Iterator[str]:
    """What else there is to know of the sequence."""
    batch = taught.batch
    if batch.prefix is not None and int(batch.prefix[0]):
        yield f"The first {int(batch.prefix[0])} tokens see each other in both directions."
    if batch.order is not None:
        asked = [(int(rank), int(place)) for place, rank in enumerate(batch.order.tolist()) if rank]
        turns = " then ".join(f"{taught.spelling.token(int(batch.tokens[p]))} ({p})" for _, p in sorted(asked))
        yield f"Order of prediction: {turns or 'nothing'}. Rank 0 is context, which all may see."
    if model.edges is not None:
        yield from _edges(taught, model.edges)


def _edges(taught: Lessoned, edges: Edges) -> Iterator[str]:
    for left, right in dict.fromkeys(zip(edges.left.tolist(), edges.right.tolist(), strict=True)):
        inside = (edges.left == left) & (edges.right == right) & (edges.labels != IGNORE)
        if bool(inside.any()):
            said = taught.spelling.line(edges.labels[inside].tolist())
            one, other = taught.spell(taught.batch.tokens[[left, right]])
            yield f"Boundary: '{said}' is also said from its edges alone, {one} ({left}) and {other} ({right})."
