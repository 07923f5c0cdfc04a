"""Who may attend to whom: the one rule, and its form for each attention backend.

A `Scope` is made once per forward pass and stack, and used by all of its layers. Legend: q and k count queries and
keys, R row length, H heads.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from pretune.core.types import Batch

Backend = Literal["rows", "tiles", "varlen", "flex", "plain", "naive"]
BACKENDS: tuple[Backend, ...] = ("rows", "tiles", "varlen", "flex", "plain", "naive")
WIDEST = 128
"""Heads that fit the tiles."""
BIASED = 2048
"""Rows up to this length have a bias for every pair of columns kept; longer ones only one for every distance."""
LONG = 512
"""From this row length on, a kernel that skips the blocks between sequences beats one masked product per row."""


class Sight(IntEnum):
    """What the tokens of a sequence may see of it: the values of `Batch.view`."""

    BOTH = 0  # all of it
    LEFT = 1  # themselves and what is before
    RIGHT = 2  # themselves and what is after
    PREFIX = 3  # its prefix, themselves and what is before


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What one attention layer needs to know of the batch; which fields are filled depends on the backend."""

    backend: Backend
    rows: int
    causal: bool = False
    window: int | None = None
    ahead: int = 0  # learned keys before each sequence: the first columns of every row of keys
    mask: Tensor | None = None  # rows, naive: bool, or float with the bias in it; [rows or 1, H or 1, R, R]
    bias: Tensor | None = None  # naive: [1, H, R, R]; tiles: [H, R, R]; flex: [H, distance + ahead + R - 1]
    offsets: tuple[Tensor, Tensor] | None = None  # varlen: of queries and keys
    lengths: tuple[int, int] = (0, 0)  # row length of queries and keys
    blocks: Any = None  # flex: its BlockMask; tiles: its Layout
    positions: Tensor | None = None  # flex with learned keys: [rows, R]
    rotation: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The kind of attention a stack asks for, apart from the batch."""

    causal: bool
    window: int | None = None
    bias: Callable[[Tensor], Tensor] | None = None  # distance -> [H, …]
    ahead: int = 0  # learned keys that stand before each sequence as so many tokens would, and that all of it may see


def may_attend(
    q_sequence: Tensor,
    k_sequence: Tensor,
    distance: Tensor,
    ahead: Tensor | None,
    sight: Tensor | None,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """The rule: the same sequence, not the future (but for a prefix), what its sight allows, not beyond the window.

    `distance` is key position minus query position; `ahead` marks keys inside their sequence's prefix; `sight` is that
    of the query's sequence. Filler sees everything in its row, so that no query is left without a key; nothing ever
    sees filler's output.
    """
    allowed = q_sequence == k_sequence
    if causal:
        past = distance <= 0
        allowed = allowed & (past if ahead is None else past | ahead)
    if sight is not None:
        both, right, prefix = Sight.BOTH.value, Sight.RIGHT.value, Sight.PREFIX.value  # NOTE: flex cannot trace enums
        seen = (sight == both) | torch.where(sight == right, distance >= 0, distance <= 0)
        allowed = allowed & (seen if ahead is None else seen | ((sight == prefix) & ahead))
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    return allowed | (q_sequence < 0)


class Facts(TypedDict):
    """What decides the backend: the device, the batch, and what is asked of attention."""

    device: str
    half: bool  # half precision
    whole: bool  # one sequence fills each row
    length: int  # of the longer rows
    bias: bool
    prefix: bool
    view: bool  # sequences differ in what they see
    window: int | None
    dropout: float  # of attention probabilities
    weights: bool  # they must be returned
    ahead: int  # learned keys before each sequence
    head: int  # width of a head


def pick(**facts: Unpack[Facts]) -> Backend:
    """The fastest backend that can do what is asked.

    `varlen` and `flex` cannot drop attention probabilities; `varlen` and `tiles` need half precision.
    """
    fast = facts["device"] == "cuda" and facts["length"] >= LONG and facts["dropout"] == 0
    if facts["weights"]:
        return "naive"
    if lacks("tiles", **facts) is None and (facts["bias"] or (lacks("plain", **facts) is not None and not fast)):
        return "tiles"
    if facts["bias"] or facts["prefix"] or facts["view"]:
        return "flex" if fast else "rows"
    if lacks("plain", **facts) is None:
        return "plain"
    if facts["ahead"]:
        return "flex" if fast else "rows"
    return "varlen" if fast and facts["half"] else "rows"


def lacks(backend: Backend, **facts: Unpack[Facts]) -> str | None:
    """What a backend cannot do of what is asked, if anything."""
    near = facts["window"] is not None and facts["window"] < facts["length"] + facts["ahead"]
    half = facts["device"] == "cuda" and facts["half"]
    missing = {
        "attention weights": facts["weights"] and backend != "naive",
        "attention dropout": facts["dropout"] > 0 and backend in ("varlen", "flex"),
        "learned keys": facts["ahead"] > 0 and backend in ("varlen", "tiles"),
        "a position bias": facts["bias"] and backend in ("plain", "varlen"),
        "a prefix": facts["prefix"] and backend in ("plain", "varlen", "tiles"),
        "a view of each sequence's own": facts["view"] and backend in ("plain", "varlen", "tiles"),
        "several sequences in a row, or a window": backend == "plain" and (near or not facts["whole"]),
        "a device other than CUDA in half precision": backend in ("varlen", "tiles") and not half,
        f"heads wider than {WIDEST}": facts["head"] > WIDEST and backend == "tiles",
        f"a bias over rows longer than {BIASED}": facts["bias"] and facts["length"] > BIASED and backend == "tiles",
    }
    return next((what for what, lacking in missing.items() if lacking), None)


def scope(queries: Batch, keys: Batch, view: View, backend: Backend, dtype: torch.dtype) -> Scope:
    """Lay the rule out for a backend. Queries and keys are one batch (self) or two sides of one (cross)."""
    made = Scope(
        backend=backend,
        rows=queries.rows,
        causal=view.causal,
        window=view.window,
        ahead=view.ahead,
        lengths=(queries.length, keys.length),
    )
    if backend == "plain":
        masked = view.ahead and view.causal
        return replace(made, mask=_mask(queries, keys, view, _distance(queries, keys))) if masked else made
    if backend == "varlen":
        return replace(made, offsets=(queries.offsets, keys.offsets))
    if backend == "tiles":
        from pretune.nn.tiles import layout

        where = layout(queries.sequence, None if queries is keys else keys.sequence, queries.rows)
        bias = None if view.bias is None else view.bias(_distance(queries, keys)).to(dtype)
        return replace(made, blocks=where, bias=bias)
    if backend == "flex":
        positions = queries.positions.view(queries.rows, -1) if view.ahead else None
        blocks, bias = _blocks(queries, keys, view), _by_distance(queries, keys, view)
        return replace(made, blocks=blocks, bias=bias, positions=positions)
    distance = _distance(queries, keys)
    bias = None if view.bias is None else _biases(queries, view.bias, distance, view.ahead)
    alike = queries.whole and keys.whole and not view.causal and view.window is None and not _views(queries, keys)
    mask = None if alike else _mask(queries, keys, view, distance)
    if backend == "naive" or bias is None:
        return replace(made, mask=mask, bias=bias)
    bias = bias.to(dtype)
    return replace(made, mask=bias if mask is None else bias.masked_fill(~mask, float("-inf")))


def _columns(side: Batch) -> Tensor:
    return torch.arange(side.length, device=side.tokens.device)


def _distance(queries: Batch, keys: Batch) -> Tensor:
    """`[R, R]`. In a row and a sequence positions are consecutive: their difference is the difference of columns."""
    return _columns(keys) - _columns(queries)[:, None]


def _before(queries: Batch, ahead: int) -> Tensor:
    """How far each of the learned keys stands from each query: `[rows or 1, R, P]`, all below 0."""
    positions = _columns(queries)[None] if queries.whole else queries.positions.view(queries.rows, -1)
    return torch.arange(-ahead, 0, device=positions.device) - positions[..., None]


def _biases(queries: Batch, bias: Callable[[Tensor], Tensor], distance: Tensor, ahead: int) -> Tensor:
    """The bias of every query and key `[rows or 1, H, R, R]`, with learned keys `[…, P + R]`."""
    made = bias(distance)[None]
    if not ahead:
        return made
    first = bias(_before(queries, ahead)).transpose(0, 1)
    return torch.cat((first, made.expand(first.shape[0], -1, -1, -1)), dim=-1)


def _mask(queries: Batch, keys: Batch, view: View, distance: Tensor) -> Tensor:
    """Bool `[rows, 1, R, R]`, or `[1, 1, R, R]` where all rows are alike; with learned keys `[…, P + R]`."""
    mask = _text_mask(queries, keys, view, distance)
    if not view.ahead:
        return mask
    first = _before(queries, view.ahead)[:, None]
    seen = torch.ones_like(first, dtype=torch.bool) if view.window is None else first > -view.window
    rows = max(len(seen), len(mask))
    return torch.cat((seen.expand(rows, -1, -1, -1), mask.expand(rows, -1, -1, -1)), dim=-1)


def _text_mask(queries: Batch, keys: Batch, view: View, distance: Tensor) -> Tensor:
    if queries.whole and keys.whole and queries.prefix is None and not _views(queries, keys):
        same = torch.zeros((), device=distance.device, dtype=torch.long)
        return may_attend(same, same, distance, None, None, causal=view.causal, window=view.window)[None, None]
    q_sequence = queries.sequence.view(queries.rows, 1, -1, 1)
    k_sequence = keys.sequence.view(queries.rows, 1, 1, -1)
    ahead = sight = None
    if queries.prefix is not None:
        ahead = _in_prefix(keys, queries.prefix).view(queries.rows, 1, 1, -1)
    if _views(queries, keys):
        sight = _sight(queries).view(queries.rows, 1, -1, 1)
    return may_attend(q_sequence, k_sequence, distance, ahead, sight, causal=view.causal, window=view.window)


def _views(queries: Batch, keys: Batch) -> bool:
    """Whether sequences differ in what they see: of themselves only, a source is seen whole."""
    return queries is keys and queries.view is not None


def _sight(side: Batch) -> Tensor:
    """[N] of each token's sequence."""
    assert side.view is not None
    return side.view[side.sequence.clamp(min=0)]


def _in_prefix(side: Batch, prefix: Tensor) -> Tensor:
    return side.positions < prefix[side.sequence.clamp(min=0)]


def _by_distance(queries: Batch, keys: Batch, view: View) -> Tensor | None:
    """The bias as a table over distances, from the farthest key before to the farthest after."""
    if view.bias is None:
        return None
    distances = torch.arange(1 - queries.length - view.ahead, keys.length, device=queries.tokens.device)
    return view.bias(distances)


def _blocks(queries: Batch, keys: Batch, view: View) -> Any:
    q_sequence = queries.sequence.view(queries.rows, -1)
    k_sequence = keys.sequence.view(queries.rows, -1)
    prefix = None if queries.prefix is None else _in_prefix(keys, queries.prefix).view(queries.rows, -1)
    sights = _sight(queries).view(queries.rows, -1) if _views(queries, keys) else None
    positions, ahead, window = queries.positions.view(queries.rows, -1), view.ahead, view.window

    def rule(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if not ahead:
            return text(row, q, k)
        first = k < ahead
        seen = first if window is None else first & (positions[row, q] + ahead - k < window)
        return seen | (~first & text(row, q, (k - ahead).clamp(min=0)))

    def text(row: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return may_attend(
            q_sequence[row, q],
            k_sequence[row, k],
            k - q,
            None if prefix is None else prefix[row, k],
            None if sights is None else sights[row, q],
            causal=view.causal,
            window=view.window,
        )

    make = create_block_mask if queries.tokens.device.type == "cpu" else torch.compile(create_block_mask)
    return make(rule, queries.rows, None, queries.length, keys.length + ahead, device=queries.tokens.device)
