"""Who may attend to whom: the one rule, and its form for each attention backend.

A `AttentionContext` is made once per forward pass and stack, and used by all of its layers. Legend: q and k count queries and
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

Backend = Literal["rows", "tiles", "varlen", "flex", "sdpa", "eager"]
BACKENDS: tuple[Backend, ...] = ("rows", "tiles", "varlen", "flex", "sdpa", "eager")
MAX_TILE_HEAD_WIDTH = 128
"""Heads that fit the tiles."""
MAX_BIAS_LENGTH = 2048
"""Rows up to this length have a bias for every pair of columns kept; longer ones only one for every distance."""
MIN_SPARSE_LENGTH = 512
"""From this row length on, a kernel that skips the blocks between sequences beats one masked product per row."""


class MaskKind(IntEnum):
    """What the tokens of a sequence may see of it: the values of `Batch.view`."""

    BIDIRECTIONAL = 0  # all of it
    CAUSAL = 1  # themselves and what is before
    ANTICAUSAL = 2  # themselves and what is after
    PREFIX = 3  # its prefix, themselves and what is before


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionContext:
    """What one attention layer needs to know of the batch; which fields are filled depends on the backend."""

    backend: Backend
    rows: int
    causal: bool = False
    window: int | None = None
    prefix_length: int = 0  # learned keys before each sequence: the first columns of every row of keys
    mask: Tensor | None = None  # rows, naive: bool, or float with the bias in it; [rows or 1, H or 1, R, R]
    bias: Tensor | None = None  # naive: [1, H, R, R]; tiles: [H, R, R]; flex: [H, distance + ahead + R - 1]
    offsets: tuple[Tensor, Tensor] | None = None  # varlen: of queries and keys
    lengths: tuple[int, int] = (0, 0)  # row length of queries and keys
    blocks: Any = None  # flex: its BlockMask; tiles: its Layout
    positions: Tensor | None = None  # flex with learned keys: [rows, R]
    rotation: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSpec:
    """The kind of attention a stack asks for, apart from the batch."""

    causal: bool
    window: int | None = None
    bias: Callable[[Tensor], Tensor] | None = None  # distance -> [H, …]
    prefix_length: int = (
        0  # learned keys that stand before each sequence as so many tokens would, and that all of it may see
    )


def may_attend(
    q_sequence: Tensor,
    k_sequence: Tensor,
    distance: Tensor,
    in_prefix: Tensor | None,
    mask_kind: Tensor | None,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """The rule: the same sequence, not the future (but for a prefix), what its sight allows, not beyond the window.

    `distance` is key position minus query position; `prefix_length` marks keys inside their sequence's prefix; `sight` is that
    of the query's sequence. Filler sees everything in its row, so that no query is left without a key; nothing ever
    sees filler's output.
    """
    allowed = q_sequence == k_sequence
    if causal:
        past = distance <= 0
        allowed = allowed & (past if in_prefix is None else past | in_prefix)
    if mask_kind is not None:
        both, right, prefix = (
            MaskKind.BIDIRECTIONAL.value,
            MaskKind.ANTICAUSAL.value,
            MaskKind.PREFIX.value,
        )  # NOTE: flex cannot trace enums
        seen = (mask_kind == both) | torch.where(mask_kind == right, distance >= 0, distance <= 0)
        allowed = allowed & (seen if in_prefix is None else seen | ((mask_kind == prefix) & in_prefix))
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    return allowed | (q_sequence < 0)


class BackendRequirements(TypedDict):
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


def choose_backend(**requirements: Unpack[BackendRequirements]) -> Backend:
    """The fastest backend that can do what is asked.

    `varlen` and `flex` cannot drop attention probabilities; `varlen` and `tiles` need half precision.
    """
    fast = (
        requirements["device"] == "cuda"
        and requirements["length"] >= MIN_SPARSE_LENGTH
        and requirements["dropout"] == 0
    )
    if requirements["weights"]:
        return "eager"
    if find_unsupported("tiles", **requirements) is None and (
        requirements["bias"] or (find_unsupported("sdpa", **requirements) is not None and not fast)
    ):
        return "tiles"
    if requirements["bias"] or requirements["prefix"] or requirements["view"]:
        return "flex" if fast else "rows"
    if find_unsupported("sdpa", **requirements) is None:
        return "sdpa"
    if requirements["ahead"]:
        return "flex" if fast else "rows"
    return "varlen" if fast and requirements["half"] else "rows"


def find_unsupported(backend: Backend, **requirements: Unpack[BackendRequirements]) -> str | None:
    """What a backend cannot do of what is asked, if anything."""
    near = (
        requirements["window"] is not None and requirements["window"] < requirements["length"] + requirements["ahead"]
    )
    half = requirements["device"] == "cuda" and requirements["half"]
    missing = {
        "attention weights": requirements["weights"] and backend != "eager",
        "attention dropout": requirements["dropout"] > 0 and backend in ("varlen", "flex"),
        "learned keys": requirements["ahead"] > 0 and backend in ("varlen", "tiles"),
        "a position bias": requirements["bias"] and backend in ("sdpa", "varlen"),
        "a prefix": requirements["prefix"] and backend in ("sdpa", "varlen", "tiles"),
        "a view of each sequence's own": requirements["view"] and backend in ("sdpa", "varlen", "tiles"),
        "several sequences in a row, or a window": backend == "sdpa" and (near or not requirements["whole"]),
        "a device other than CUDA in half precision": backend in ("varlen", "tiles") and not half,
        f"heads wider than {MAX_TILE_HEAD_WIDTH}": requirements["head"] > MAX_TILE_HEAD_WIDTH and backend == "tiles",
        f"a bias over rows longer than {MAX_BIAS_LENGTH}": requirements["bias"]
        and requirements["length"] > MAX_BIAS_LENGTH
        and backend == "tiles",
    }
    return next((what for what, lacking in missing.items() if lacking), None)


def build_context(
    queries: Batch, keys: Batch, mask_spec: MaskSpec, backend: Backend, dtype: torch.dtype
) -> AttentionContext:
    """Lay the rule out for a backend. Queries and keys are one batch (self) or two sides of one (cross)."""
    made = AttentionContext(
        backend=backend,
        rows=queries.rows,
        causal=mask_spec.causal,
        window=mask_spec.window,
        prefix_length=mask_spec.prefix_length,
        lengths=(queries.length, keys.length),
    )
    if backend == "sdpa":
        masked = mask_spec.prefix_length and mask_spec.causal
        return (
            replace(made, mask=_build_mask(queries, keys, mask_spec, _compute_distance(queries, keys)))
            if masked
            else made
        )
    if backend == "varlen":
        return replace(made, offsets=(queries.offsets, keys.offsets))
    if backend == "tiles":
        from pretune.nn.tiles import build_layout

        where = build_layout(queries.sequence, None if queries is keys else keys.sequence, queries.rows)
        bias = None if mask_spec.bias is None else mask_spec.bias(_compute_distance(queries, keys)).to(dtype)
        return replace(made, blocks=where, bias=bias)
    if backend == "flex":
        positions = queries.positions.view(queries.rows, -1) if mask_spec.prefix_length else None
        blocks, bias = _build_block_mask(queries, keys, mask_spec), _tabulate_bias(queries, keys, mask_spec)
        return replace(made, blocks=blocks, bias=bias, positions=positions)
    distance = _compute_distance(queries, keys)
    bias = None if mask_spec.bias is None else _compute_bias(queries, mask_spec.bias, distance, mask_spec.prefix_length)
    alike = (
        queries.one_per_row
        and keys.one_per_row
        and not mask_spec.causal
        and mask_spec.window is None
        and not _has_mask_kinds(queries, keys)
    )
    mask = None if alike else _build_mask(queries, keys, mask_spec, distance)
    if backend == "eager" or bias is None:
        return replace(made, mask=mask, bias=bias)
    bias = bias.to(dtype)
    return replace(made, mask=bias if mask is None else bias.masked_fill(~mask, float("-inf")))


def _make_columns(side: Batch) -> Tensor:
    return torch.arange(side.length, device=side.tokens.device)


def _compute_distance(queries: Batch, keys: Batch) -> Tensor:
    """`[R, R]`. In a row and a sequence positions are consecutive: their difference is the difference of columns."""
    return _make_columns(keys) - _make_columns(queries)[:, None]


def _compute_prefix_distance(queries: Batch, prefix_length: int) -> Tensor:
    """How far each of the learned keys stands from each query: `[rows or 1, R, P]`, all below 0."""
    positions = _make_columns(queries)[None] if queries.one_per_row else queries.positions.view(queries.rows, -1)
    return torch.arange(-prefix_length, 0, device=positions.device) - positions[..., None]


def _compute_bias(queries: Batch, bias: Callable[[Tensor], Tensor], distance: Tensor, prefix_length: int) -> Tensor:
    """The bias of every query and key `[rows or 1, H, R, R]`, with learned keys `[…, P + R]`."""
    made = bias(distance)[None]
    if not prefix_length:
        return made
    first = bias(_compute_prefix_distance(queries, prefix_length)).transpose(0, 1)
    return torch.cat((first, made.expand(first.shape[0], -1, -1, -1)), dim=-1)


def _build_mask(queries: Batch, keys: Batch, mask_spec: MaskSpec, distance: Tensor) -> Tensor:
    """Bool `[rows, 1, R, R]`, or `[1, 1, R, R]` where all rows are alike; with learned keys `[…, P + R]`."""
    mask = _build_text_mask(queries, keys, mask_spec, distance)
    if not mask_spec.prefix_length:
        return mask
    first = _compute_prefix_distance(queries, mask_spec.prefix_length)[:, None]
    seen = torch.ones_like(first, dtype=torch.bool) if mask_spec.window is None else first > -mask_spec.window
    rows = max(len(seen), len(mask))
    return torch.cat((seen.expand(rows, -1, -1, -1), mask.expand(rows, -1, -1, -1)), dim=-1)


def _build_text_mask(queries: Batch, keys: Batch, mask_spec: MaskSpec, distance: Tensor) -> Tensor:
    if queries.one_per_row and keys.one_per_row and queries.prefix is None and not _has_mask_kinds(queries, keys):
        same = torch.zeros((), device=distance.device, dtype=torch.long)
        return may_attend(same, same, distance, None, None, causal=mask_spec.causal, window=mask_spec.window)[
            None, None
        ]
    q_sequence = queries.sequence.view(queries.rows, 1, -1, 1)
    k_sequence = keys.sequence.view(queries.rows, 1, 1, -1)
    ahead = sight = None
    if queries.prefix is not None:
        ahead = _is_in_prefix(keys, queries.prefix).view(queries.rows, 1, 1, -1)
    if _has_mask_kinds(queries, keys):
        sight = _get_mask_kinds(queries).view(queries.rows, 1, -1, 1)
    return may_attend(q_sequence, k_sequence, distance, ahead, sight, causal=mask_spec.causal, window=mask_spec.window)


def _has_mask_kinds(queries: Batch, keys: Batch) -> bool:
    """Whether sequences differ in what they see: of themselves only, a source is seen whole."""
    return queries is keys and queries.view is not None


def _get_mask_kinds(side: Batch) -> Tensor:
    """[N] of each token's sequence."""
    assert side.view is not None
    return side.view[side.sequence.clamp(min=0)]


def _is_in_prefix(side: Batch, prefix: Tensor) -> Tensor:
    return side.positions < prefix[side.sequence.clamp(min=0)]


def _tabulate_bias(queries: Batch, keys: Batch, mask_spec: MaskSpec) -> Tensor | None:
    """The bias as a table over distances, from the farthest key before to the farthest after."""
    if mask_spec.bias is None:
        return None
    distances = torch.arange(1 - queries.length - mask_spec.prefix_length, keys.length, device=queries.tokens.device)
    return mask_spec.bias(distances)


def _build_block_mask(queries: Batch, keys: Batch, mask_spec: MaskSpec) -> Any:
    q_sequence = queries.sequence.view(queries.rows, -1)
    k_sequence = keys.sequence.view(queries.rows, -1)
    prefix = None if queries.prefix is None else _is_in_prefix(keys, queries.prefix).view(queries.rows, -1)
    sights = _get_mask_kinds(queries).view(queries.rows, -1) if _has_mask_kinds(queries, keys) else None
    positions, ahead, window = queries.positions.view(queries.rows, -1), mask_spec.prefix_length, mask_spec.window

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
            causal=mask_spec.causal,
            window=mask_spec.window,
        )

    make = create_block_mask if queries.tokens.device.type == "cpu" else torch.compile(create_block_mask)
    return make(rule, queries.rows, None, queries.length, keys.length + ahead, device=queries.tokens.device)
