"""Attention masks: one rule, and its form for each attention backend.

An `AttentionContext` is built once per forward pass and stack, and used by all of its layers. Legend: q and k index
queries and keys, R row length, H heads, P learned prefix keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from pretune.core.types import Batch
from pretune.nn.positions import DistanceTable, Rotation

Backend = Literal["rows", "tiles", "varlen", "flex", "sdpa", "eager"]
BACKENDS: tuple[Backend, ...] = ("rows", "tiles", "varlen", "flex", "sdpa", "eager")
MAX_TILE_HEAD_WIDTH = 128
"""Widest head that the tile kernels support."""
MAX_BIAS_LENGTH = 2048
"""Longest row with a bias for every pair of columns; longer rows need one per distance."""
MIN_SPARSE_LENGTH = 512
"""Row length from which a kernel that skips blocks between sequences beats one masked product per row."""


class MaskKind(IntEnum):
    """Mask of a sequence; the values of `Batch.view`."""

    BIDIRECTIONAL = 0  # all tokens
    CAUSAL = 1  # itself and earlier tokens
    ANTICAUSAL = 2  # itself and later tokens
    PREFIX = 3  # the prefix, itself and earlier tokens


MASK_KINDS = tuple(kind.value for kind in MaskKind)
"""Their numbers: flex cannot trace enums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionContext:
    """Inputs of an attention layer that depend on the batch only; the filled fields depend on the backend."""

    backend: Backend
    rows: int
    causal: bool = False
    window: int | None = None
    prefix_length: int = 0  # learned keys: the first columns of every row of keys
    mask: Tensor | None = None  # rows, eager: bool, or float with the bias in it; [rows or 1, H or 1, R, R]
    bias: Tensor | None = None  # eager: [1, H, R, R]; tiles: [H, R, R]; flex: [H, distance + P + R - 1]
    offsets: tuple[Tensor, Tensor] | None = None  # varlen: of queries and keys
    lengths: tuple[int, int] = (0, 0)  # row length of queries and keys
    blocks: Any = None  # flex: its BlockMask; tiles: its Layout
    positions: Tensor | None = None  # flex with learned keys: [rows, R]
    rotation: Rotation | None = None
    scores: bool = False  # eager: return the scores before the softmax instead of the weights
    distances: DistanceTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSpec:
    """Mask settings of a stack, independent of the batch."""

    causal: bool
    window: int | None = None
    bias: Callable[[Tensor], Tensor] | None = None  # distance -> [H, …]
    prefix_length: int = 0  # learned keys before each sequence, visible to all of its tokens


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
    """Return True where a query may attend to a key: same sequence, causal and sequence mask, window.

    `distance` is key position minus query position; `in_prefix` marks keys in the prefix of their sequence;
    `mask_kind` is that of the query's sequence. Padding attends to its whole row, so that every query has a key; no
    token attends to padding.
    """
    is_allowed = q_sequence == k_sequence
    if causal:
        past = distance <= 0
        is_allowed = is_allowed & (past if in_prefix is None else past | in_prefix)
    if mask_kind is not None:
        bidirectional, _, anticausal, prefix = MASK_KINDS
        is_visible = (mask_kind == bidirectional) | torch.where(mask_kind == anticausal, distance >= 0, distance <= 0)
        is_allowed = is_allowed & (
            is_visible if in_prefix is None else is_visible | ((mask_kind == prefix) & in_prefix)
        )
    if window is not None:
        is_allowed = is_allowed & (distance.abs() < window)
    return is_allowed | (q_sequence < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRequirements:
    """Facts that determine the backend: device, batch layout and required features."""

    device: str
    half: bool  # half precision
    one_per_row: bool  # one sequence fills each row
    length: int  # of the longer side's rows
    bias: bool
    prefix: bool
    view: bool  # sequences have different masks
    window: int | None
    dropout: float  # of attention probabilities
    weights: bool  # return them
    prefix_length: int  # learned keys before each sequence
    head: int  # width of a head
    distances: bool = False  # scores of distances that depend on the content


def choose_backend(needs: BackendRequirements) -> Backend:
    """Return the fastest backend that supports all requirements.

    `varlen` and `flex` have no attention dropout; `varlen` and `tiles` need half precision.
    """
    fast = needs.device == "cuda" and needs.length >= MIN_SPARSE_LENGTH and needs.dropout == 0
    if needs.weights:
        return "eager"
    if needs.distances:
        return "rows"
    has_sdpa = find_unsupported("sdpa", needs) is None
    if find_unsupported("tiles", needs) is None and (needs.bias or not (has_sdpa or fast)):
        return "tiles"
    if needs.bias or needs.prefix or needs.view:
        return "flex" if fast else "rows"
    if has_sdpa:
        return "sdpa"
    if needs.prefix_length:
        return "flex" if fast else "rows"
    return "varlen" if fast and needs.half else "rows"


def find_unsupported(backend: Backend, needs: BackendRequirements) -> str | None:
    """Return a required feature that a backend does not support, or None."""
    has_window = needs.window is not None and needs.window < needs.length + needs.prefix_length
    has_long_bias = needs.bias and needs.length > MAX_BIAS_LENGTH
    half = needs.device == "cuda" and needs.half
    missing = {
        "attention weights": needs.weights and backend != "eager",
        "attention dropout": needs.dropout > 0 and backend in ("varlen", "flex"),
        "learned keys": needs.prefix_length > 0 and backend in ("varlen", "tiles"),
        "scores of distances": needs.distances and backend not in ("rows", "tiles", "eager"),
        "a window on scores of distances": needs.distances and has_window and backend == "tiles",
        "a position bias": needs.bias and backend in ("sdpa", "varlen"),
        "a prefix": needs.prefix and backend in ("sdpa", "varlen", "tiles"),
        "a mask per sequence": needs.view and backend in ("sdpa", "varlen", "tiles"),
        "several sequences in a row, or a window": backend == "sdpa" and (has_window or not needs.one_per_row),
        "a device other than CUDA in half precision": backend in ("varlen", "tiles") and not half,
        f"heads wider than {MAX_TILE_HEAD_WIDTH}": needs.head > MAX_TILE_HEAD_WIDTH and backend == "tiles",
        f"a bias over rows longer than {MAX_BIAS_LENGTH}": has_long_bias and backend == "tiles",
    }
    return next((feature for feature, is_missing in missing.items() if is_missing), None)


def build_context(
    queries: Batch, keys: Batch, mask_spec: MaskSpec, backend: Backend, dtype: torch.dtype
) -> AttentionContext:
    """Build the context for a backend. Queries and keys are one batch (self) or target and source (cross)."""
    context = AttentionContext(
        backend=backend,
        rows=queries.rows,
        causal=mask_spec.causal,
        window=mask_spec.window,
        prefix_length=mask_spec.prefix_length,
        lengths=(queries.length, keys.length),
    )
    if backend == "sdpa":
        if not (mask_spec.prefix_length and mask_spec.causal):
            return context
        return replace(context, mask=_build_mask(queries, keys, mask_spec, _compute_distance(queries, keys)))
    if backend == "varlen":
        return replace(context, offsets=(queries.offsets, keys.offsets))
    if backend == "tiles":
        from pretune.nn.tiles import build_layout

        layout = build_layout(queries.sequence, None if queries is keys else keys.sequence, queries.rows)
        bias = None if mask_spec.bias is None else mask_spec.bias(_compute_distance(queries, keys)).to(dtype)
        return replace(context, blocks=layout, bias=bias)
    if backend == "flex":
        positions = queries.positions.view(queries.rows, -1) if mask_spec.prefix_length else None
        blocks, bias = _build_block_mask(queries, keys, mask_spec), _tabulate_bias(queries, keys, mask_spec)
        return replace(context, blocks=blocks, bias=bias, positions=positions)
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
        return replace(context, mask=mask, bias=bias)
    bias = bias.to(dtype)
    return replace(context, mask=bias if mask is None else bias.masked_fill(~mask, float("-inf")))


def _make_columns(side: Batch) -> Tensor:
    return torch.arange(side.length, device=side.tokens.device)


def _compute_distance(queries: Batch, keys: Batch) -> Tensor:
    """Return key minus query position `[R, R]`: within a sequence of a row, the difference of columns."""
    return _make_columns(keys) - _make_columns(queries)[:, None]


def _compute_prefix_distance(queries: Batch, prefix_length: int) -> Tensor:
    """Return the distance of each learned key from each query: `[rows or 1, R, P]`, all negative."""
    positions = _make_columns(queries)[None] if queries.one_per_row else queries.positions.view(queries.rows, -1)
    return torch.arange(-prefix_length, 0, device=positions.device) - positions[..., None]


def _compute_bias(queries: Batch, bias: Callable[[Tensor], Tensor], distance: Tensor, prefix_length: int) -> Tensor:
    """Return the bias of every query and key `[rows or 1, H, R, R]`, with learned keys `[…, P + R]`."""
    text_bias = bias(distance)[None]
    if not prefix_length:
        return text_bias
    first = bias(_compute_prefix_distance(queries, prefix_length)).transpose(0, 1)
    return torch.cat((first, text_bias.expand(first.shape[0], -1, -1, -1)), dim=-1)


def _build_mask(queries: Batch, keys: Batch, mask_spec: MaskSpec, distance: Tensor) -> Tensor:
    """Return a boolean mask `[rows, 1, R, R]`, or `[1, 1, R, R]` if rows are equal; with learned keys `[…, P + R]`."""
    mask = _build_text_mask(queries, keys, mask_spec, distance)
    if not mask_spec.prefix_length:
        return mask
    first = _compute_prefix_distance(queries, mask_spec.prefix_length)[:, None]
    prefix_mask = torch.ones_like(first, dtype=torch.bool) if mask_spec.window is None else first > -mask_spec.window
    rows = max(len(prefix_mask), len(mask))
    return torch.cat((prefix_mask.expand(rows, -1, -1, -1), mask.expand(rows, -1, -1, -1)), dim=-1)


def _build_text_mask(queries: Batch, keys: Batch, mask_spec: MaskSpec, distance: Tensor) -> Tensor:
    if queries.one_per_row and keys.one_per_row and queries.prefix is None and not _has_mask_kinds(queries, keys):
        same = torch.zeros((), device=distance.device, dtype=torch.long)
        return may_attend(same, same, distance, None, None, causal=mask_spec.causal, window=mask_spec.window)[
            None, None
        ]
    q_sequence = queries.sequence.view(queries.rows, 1, -1, 1)
    k_sequence = keys.sequence.view(queries.rows, 1, 1, -1)
    in_prefix = mask_kind = None
    if queries.prefix is not None:
        in_prefix = _is_in_prefix(keys, queries.prefix).view(queries.rows, 1, 1, -1)
    if _has_mask_kinds(queries, keys):
        mask_kind = _get_mask_kinds(queries).view(queries.rows, 1, -1, 1)
    mask = may_attend(
        q_sequence, k_sequence, distance, in_prefix, mask_kind, causal=mask_spec.causal, window=mask_spec.window
    )
    parents = _find_parents(queries)  # NOTE: they are before their children; no window or bias may count columns
    return mask if parents is None else mask | (parents.view(queries.rows, 1, -1, 1) == k_sequence)


def _has_mask_kinds(queries: Batch, keys: Batch) -> bool:
    """Return True if sequences have their own masks; only in self-attention, a source is fully visible."""
    return queries is keys and queries.view is not None


def _find_parents(side: Batch) -> Tensor | None:
    """Return the cell that each token's sequence continues, or -2 `[N]`; None if no sequence continues another."""
    if side.parents is None:
        return None
    cells = side.parents[side.sequence.clamp(min=0)]
    return torch.where(cells == side.sequence, -2, cells)


def _get_mask_kinds(side: Batch) -> Tensor:
    """Return the mask kind of each token's sequence `[N]`."""
    assert side.view is not None
    return side.view[side.sequence.clamp(min=0)]


def _is_in_prefix(side: Batch, prefix: Tensor) -> Tensor:
    return side.positions < prefix[side.sequence.clamp(min=0)]


def _tabulate_bias(queries: Batch, keys: Batch, mask_spec: MaskSpec) -> Tensor | None:
    """Return the bias as a table over distances, from the first to the last key."""
    if mask_spec.bias is None:
        return None
    distances = torch.arange(1 - queries.length - mask_spec.prefix_length, keys.length, device=queries.tokens.device)
    return mask_spec.bias(distances)


def _build_block_mask(queries: Batch, keys: Batch, mask_spec: MaskSpec) -> Any:
    q_sequence = queries.sequence.view(queries.rows, -1)
    k_sequence = keys.sequence.view(queries.rows, -1)
    prefix = None if queries.prefix is None else _is_in_prefix(keys, queries.prefix).view(queries.rows, -1)
    mask_kinds = _get_mask_kinds(queries).view(queries.rows, -1) if _has_mask_kinds(queries, keys) else None
    parents = None if (cells := _find_parents(queries)) is None else cells.view(queries.rows, -1)
    positions = queries.positions.view(queries.rows, -1)
    prefix_length, causal, window = mask_spec.prefix_length, mask_spec.causal, mask_spec.window

    def rule(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if not prefix_length:
            return text(row, q, k)
        first = k < prefix_length
        is_visible = first if window is None else first & (positions[row, q] + prefix_length - k < window)
        return is_visible | (~first & text(row, q, (k - prefix_length).clamp(min=0)))

    def text(row: Tensor, q: Tensor, k: Tensor) -> Tensor:
        is_visible = may_attend(
            q_sequence[row, q],
            k_sequence[row, k],
            k - q,
            None if prefix is None else prefix[row, k],
            None if mask_kinds is None else mask_kinds[row, q],
            causal=causal,
            window=window,
        )
        return is_visible if parents is None else is_visible | (parents[row, q] == k_sequence[row, k])

    make = create_block_mask if queries.tokens.device.type == "cpu" else torch.compile(create_block_mask)
    return make(rule, queries.rows, None, queries.length, keys.length + prefix_length, device=queries.tokens.device)
