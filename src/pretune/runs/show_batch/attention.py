"""Who may attend to whom in a batch of one sequence, by the rules that the models themselves go by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pretune.core.types import IGNORE, Batch
from pretune.models.bidirectional_lm import mirrored
from pretune.nn.attention_mask import View, scope
from pretune.nn.two_stream import reached
from pretune.objectives.base import ModelShape
from pretune.runs.show_batch.types import Sight

Spell = Callable[[Tensor], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A mask before it is spelled out: queries and keys are tokens [q], [k]; which queries there are."""

    name: str
    mask: Tensor  # [q, k]
    queries: Tensor
    keys: Tensor
    places: Sequence[int] | None = None
    cross: bool = False


def sights(batch: Batch, shape: ModelShape, spell: Spell) -> tuple[Sight, ...]:
    """The masks of every kind of attention that a model of a shape has."""
    return tuple(_spelled(found, spell) for found in _BY_SHAPE[shape](batch))


def _encoder(batch: Batch) -> list[_Seen]:
    return [_within("encoder", batch, causal=False)]


def _decoder(batch: Batch) -> list[_Seen]:
    return [_within("decoder", batch, causal=True)]


def _both(batch: Batch) -> list[_Seen]:
    assert batch.source is not None
    cross = _Seen("decoder to encoder", _mask(batch, batch.source), batch.tokens, batch.source.tokens, cross=True)
    return [_within("encoder", batch.source, causal=False), _within("decoder", batch, causal=True), cross]


def _two_way(batch: Batch) -> list[_Seen]:
    turned, index = mirrored(batch)
    backward = _mask(turned, turned, causal=True)[index][:, index]
    return [
        _within("forward stack", batch, causal=True),
        _Seen("backward stack", backward, batch.tokens, batch.tokens),
    ]


def _two_stream(batch: Batch) -> list[_Seen]:
    content, query = reached(batch)
    found = [_Seen("content stream", _whole(content.mask, batch, batch), batch.tokens, batch.tokens)]
    if query is not None and batch.targets is not None:
        asked = batch.targets.index[batch.targets.labels != IGNORE]
        mask = _whole(query.mask, batch, batch)[asked]
        found.append(_Seen("query stream", mask, batch.tokens[asked], batch.tokens, asked.tolist()))
    return found


_BY_SHAPE: dict[ModelShape, Callable[[Batch], list[_Seen]]] = {
    "encoder": _encoder,
    "decoder": _decoder,
    "encoder-decoder": _both,
    "two-way": _two_way,
    "generator-discriminator": lambda batch: [_within("generator and discriminator", batch, causal=False)],
    "two-stream": _two_stream,
}


def _within(name: str, batch: Batch, *, causal: bool) -> _Seen:
    return _Seen(name, _mask(batch, batch, causal=causal), batch.tokens, batch.tokens)


def _mask(queries: Batch, keys: Batch, *, causal: bool = False) -> Tensor:
    return _whole(scope(queries, keys, View(causal=causal), "naive", torch.float32).mask, queries, keys)


def _whole(mask: Tensor | None, queries: Batch, keys: Batch) -> Tensor:
    """[q, k]; no mask hides nothing."""
    size = (len(queries.tokens), len(keys.tokens))
    return torch.ones(size, dtype=torch.bool) if mask is None else mask.expand(1, 1, *size)[0, 0]


def _spelled(found: _Seen, spell: Spell) -> Sight:
    queries = spell(found.queries)
    return Sight(
        name=found.name,
        queries=queries,
        places=tuple(range(len(queries)) if found.places is None else found.places),
        keys=spell(found.keys),
        seen=tuple(tuple(row) for row in found.mask.tolist()),
        cross=found.cross,
    )
