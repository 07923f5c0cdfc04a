"""LSTM layers over the tokens of a ragged batch, in one direction or both, and additive attention pooling.

Tokens are in the order of time steps and without padding.

It runs on torch's LSTM (cuDNN on a GPU). The written-out recurrence is the reference, and the only one that clips.

Legend: N tokens, n tokens without padding, S sequences, C cells, W input width, H units, P output width.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pretune.core.config import Fraction, Ge, Le, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.layers import get_compute_dtype


@spec
class BiLSTM:
    """Stacked bidirectional LSTM (Hochreiter and Schmidhuber, 1997) with 2 x `hidden` outputs per token."""

    hidden: Positive[int]
    depth: Positive[int] = 1
    dropout: Fraction = 0.0  # between the layers

    @property
    def width(self) -> int:
        """Output width."""
        return 2 * self.hidden

    def build(self, *, width: int) -> "BidirectionalLSTM":
        return BidirectionalLSTM(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        first, upper = width + self.hidden, (self.depth - 1) * (self.width + self.hidden)
        return 2 * 4 * self.hidden * (first + upper)

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + self.depth * 2 * 8 * self.hidden


class BidirectionalLSTM(nn.Module):
    """Bidirectional LSTM. Exact: sequences are independent, padding is skipped and has states 0."""

    def __init__(self, spec: BiLSTM, width: int) -> None:
        super().__init__()
        inner = spec.dropout if spec.depth > 1 else 0.0  # torch warns about a dropout of a single layer
        self.lstm = nn.LSTM(width, spec.hidden, spec.depth, dropout=inner, bidirectional=True)
        self.width = spec.width

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Return the outputs `[N, 2 H]` of states `[N, W]`."""
        order, sizes = order_by_step(batch)
        out = x.new_zeros(x.shape[0], self.width)
        if not len(order):
            return out
        read: PackedSequence = self.lstm(PackedSequence(x.index_select(0, order), sizes))[0]
        return out.to(read.data.dtype).index_copy(0, order, read.data)


def order_by_step(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the token indices in the order of a `PackedSequence`, and the number of tokens per step (on the CPU).

    First the first tokens of all sequences, longest sequence first, then their second tokens, and so on, without
    padding. Synchronizes with the device.

    >>> from pretune.data.layout import batch
    >>> order, sizes = order_by_step(batch([[5, 6], [7, 8, 9]]))
    >>> order.tolist(), sizes.tolist()
    ([3, 0, 4, 1, 5], [2, 2, 1])
    """
    real = torch.nonzero(batch.sequence >= 0).squeeze(1)
    lengths = batch.offsets.diff()
    rank = torch.empty_like(lengths, dtype=torch.long)
    longest_first = torch.argsort(lengths, descending=True, stable=True)
    rank[longest_first] = torch.arange(len(lengths), device=rank.device)
    step = batch.positions.index_select(0, real).long()
    key = step * len(lengths) + rank.index_select(0, batch.sequence.index_select(0, real).long())
    return real.index_select(0, torch.argsort(key)), torch.bincount(step).cpu()


@spec
class AdditiveAttention:
    """Attention pooling: states weighted by softmax(v . tanh(W h + b)) (Bahdanau et al., 2015)."""

    hidden: Positive[int]

    def build(self, *, width: int) -> "AttentionPool":
        return AttentionPool(self, width)

    def params(self, *, width: int) -> int:
        return width * self.hidden + 2 * self.hidden


class AttentionPool(nn.Module):
    def __init__(self, spec: AdditiveAttention, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, spec.hidden)
        self.query = nn.Linear(spec.hidden, 1, bias=False)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Pool states `[N, W]` into one vector per cell `[C, W]`; 0 for padding and spare cells."""
        sums = states.new_zeros(batch.cells + 1, states.shape[1])
        products = self.compute_weights(states, batch).unsqueeze(1) * states
        return sums.index_add(0, _get_cells(batch), products.to(states.dtype))[:-1]

    def compute_weights(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the weight of each token `[N]`; weights of a sequence sum to 1."""
        score = self.query(torch.tanh(self.dense(states))).squeeze(1)
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        owner = _get_cells(batch)
        top = score.new_full((batch.cells + 1,), -torch.inf).scatter_reduce(0, owner, score.detach(), "amax")
        share = torch.exp(score - top.index_select(0, owner))
        total = score.new_zeros(batch.cells + 1).index_add(0, owner, share)
        out: Tensor = share / total.index_select(0, owner)
        return out.masked_fill(batch.sequence < 0, 0)


def _get_cells(batch: Batch) -> Tensor:
    """Return the cell of each token; padding gets an extra cell, which is dropped."""
    return torch.where(batch.sequence < 0, batch.cells, batch.sequence).long()


States = tuple[Tensor, Tensor]
"""Output `[S, P]` and cell `[S, H]` of a layer."""


@spec(kind="lstm")
class LSTM:
    """LSTM layer (Hochreiter and Schmidhuber, 1997); a `projection` of its output saves weights (Sak et al., 2014).

    `cell_clip` and `output_clip` bound cell and projected output in every step. torch's LSTM does not clip: only the
    written-out recurrence does.
    """

    hidden: Positive[int]
    projection: Positive[int] | None = None
    biases: Annotated[int, Ge(1), Le(2)] = 2  # per gate: torch has one for the input and one for the recurrence
    residual: bool = False  # add the input to the output
    cell_clip: Positive[float] | None = None
    output_clip: Positive[float] | None = None
    weight_dropout: Fraction = 0.0  # of the recurrent weights: the same in all steps (Merity et al., 2018)
    dropout: Fraction = 0.0  # of the output: the same units in all steps of a sequence (Gal and Ghahramani, 2016)

    def __post_init__(self) -> None:
        if self.projection is not None and self.projection >= self.hidden:  # cuDNN has no larger ones
            raise UsageError(f"projection must be < hidden {self.hidden}, got {self.projection}")

    @property
    def width(self) -> int:
        """Output width."""
        return self.projection or self.hidden

    def build(self, *, width: int) -> "LSTMLayer":
        return LSTMLayer(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        return 4 * self.hidden * (width + self.width) + (self.projection or 0) * self.hidden

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + self.biases * 4 * self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Tokens of a batch in the order of time steps, longest sequence first: the layout of a `PackedSequence`."""

    index: Tensor  # [n] position in the batch
    sequence: Tensor  # [n] cell
    sizes: Tensor  # [steps] sequences per step, on the CPU
    is_even: bool  # all sequences have the same length
    cells: int
    tokens: int

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        """Return the layout of a batch; synchronizes with the device, unless one sequence fills each row."""
        tokens, rows = batch.tokens.shape[0], batch.rows
        if batch.one_per_row:
            index = torch.arange(tokens, device=batch.tokens.device).view(rows, -1).t().flatten()
            sizes = torch.full((batch.length,), rows)
        else:
            index, sizes = order_by_step(batch)
        return cls(
            index=index,
            sequence=batch.sequence.index_select(0, index),
            sizes=sizes,
            is_even=len(sizes) > 0 and int(sizes[0]) == int(sizes[-1]),
            cells=batch.cells,
            tokens=tokens,
        )

    @property
    def sequences(self) -> int:
        """Number of sequences S."""
        return int(self.sizes[0]) if len(self.sizes) else 0

    def to_steps(self, x: Tensor) -> Tensor:
        """Reorder `[N, W]` into `[n, W]`."""
        return x.index_select(0, self.index)

    def to_batch(self, x: Tensor) -> Tensor:
        """Restore the order of the batch: `[n, W]` into `[N, W]`, with zeros for padding."""
        return x.new_zeros(self.tokens, x.shape[1]).index_copy(0, self.index, x)

    def drop_units(self, x: Tensor, p: float, mask: Tensor | None = None) -> Tensor:
        """Drop units of `[n, W]`, the same ones in all steps of a sequence; `mask` is one of `draw_mask`."""
        mask = self.draw_mask(x, p) if mask is None else mask
        return x * mask.index_select(0, self.sequence)

    def draw_mask(self, x: Tensor, p: float) -> Tensor:
        """Return the factors `[C, W]` of the units of every cell."""
        return F.dropout(x.new_ones(self.cells, x.shape[1]), p)

    @classmethod
    def split_batch(cls, batch: Batch, window: int) -> tuple[Self, Self]:
        """Return the layouts of the last `window` tokens of every sequence, and, before it, of all others.

        Both have the sequences in the same order; those that fit into the window are not in the first.
        """
        lengths = batch.offsets.diff().index_select(0, batch.sequence.clamp(min=0))
        start = (lengths - window).clamp(min=0)
        is_late = batch.positions >= start
        head_batch = replace(batch, one_per_row=False, sequence=batch.sequence.masked_fill(is_late, -1))
        tail_batch = replace(
            batch,
            one_per_row=False,
            sequence=batch.sequence.masked_fill(~is_late, -1),
            positions=(batch.positions - start).clamp(min=0),
        )
        return cls.from_batch(head_batch), cls.from_batch(tail_batch)


class LSTMLayer(nn.Module):
    """One LSTM layer: `input` [4 H, W], `recurrent` [4 H, P] and `project` [P, H]; gates in the order i, f, g, o."""

    def __init__(self, spec: LSTM, width: int) -> None:
        super().__init__()
        self.spec, self.hidden, self.width = spec, spec.hidden, spec.width
        self.input = nn.Linear(width, 4 * spec.hidden)
        self.recurrent = nn.Linear(spec.width, 4 * spec.hidden, bias=spec.biases == 2)
        self.project = nn.Linear(spec.hidden, spec.projection, bias=False) if spec.projection else None
        self.adapter: nn.Module | None = None  # applied to the output, before residual and dropout
        self.clip_counts: Tensor | None = None  # [4] outputs beyond the bound, all outputs; the same of final cells

    def forward(
        self, x: Tensor, layout: StepLayout, exact: bool = False, start: States | None = None
    ) -> tuple[Tensor, States]:
        """Return the output `[n, P]` of steps `[n, W]` before dropout, and the final states of the S sequences.

        `start` are the states of the first sequences before these steps; all others start from zeros.
        """
        device = x.device.type
        dtype = get_compute_dtype(x)
        # NOTE: autocast would run cuDNN in fp16, whatever its dtype is.
        with torch.autocast(device, enabled=False):
            x, states = x.to(dtype), self._pad_start(x.to(dtype), layout, start)
            # NOTE: on a CPU the gradient of a packed LSTM is quadratic in the number of steps.
            if exact or (torch.is_grad_enabled() and not x.is_cuda and not layout.is_even):
                y, states = self._run_steps(x, layout, states, exact)
            else:
                y, states = self._run_torch(x, layout, states)
            if not exact and not self.training and (self.spec.cell_clip or self.spec.output_clip):
                self._count_clipped(y.detach(), states[1].detach())
        return self._finish(x, y), states

    def step(self, x: Tensor, states: States, exact: bool = False) -> tuple[Tensor, States]:
        """Return the output `[B, P]` of one new token per sequence `[B, W]`, and the new states."""
        output, cell = self._update(self.input(x) + self.recurrent(states[0]), states[1], exact)
        return self._finish(x, output), (output, cell)

    def _finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Apply adapter and residual to the output; the recurrence continues with the output itself."""
        y = y if self.adapter is None else self.adapter(y)
        return y + x.to(y.dtype) if self.spec.residual else y

    def _pad_start(self, x: Tensor, layout: StepLayout, start: States | None) -> States:
        """Return the states before the first step, of all sequences."""
        output, cell = (x.new_zeros(layout.sequences, size) for size in (self.width, self.hidden))
        if start is not None:
            output[: len(start[0])], cell[: len(start[1])] = start
        return output, cell

    def _run_torch(self, x: Tensor, layout: StepLayout, states: States) -> tuple[Tensor, States]:
        weights, start = self._compute_weights(x.dtype), [state.unsqueeze(0) for state in states]
        with warnings.catch_warnings():
            # cuDNN copies weights that are computed for each call (dropout, adapters, precision) into one chunk.
            warnings.filterwarnings("ignore", message="RNN module weights")
            # Arguments: with biases, one layer, no dropout, training, not bidirectional (and not batch first).
            # NOTE: on a CPU, projections have a kernel for packed sequences only; the other warns and falls back to it.
            if layout.is_even and (self.project is None or x.is_cuda):
                steps = x.view(len(layout.sizes), layout.sequences, -1)
                y, output, cell = torch.lstm(steps, start, weights, True, 1, 0.0, self.training, False, False)
                y = y.flatten(0, 1)
            else:
                y, output, cell = torch.lstm(x, layout.sizes, start, weights, True, 1, 0.0, self.training, False)
        return y, (output[0], cell[0])

    def _count_clipped(self, output: Tensor, cell: Tensor) -> None:
        """Count the values that clipping would have changed; of the cells torch's LSTM returns the last ones only."""
        counts: list[Tensor] = []
        for values, bound in ((output, self.spec.output_clip), (cell, self.spec.cell_clip)):
            is_beyond = values.abs() > (math.inf if bound is None else bound)
            counts += [is_beyond.sum().double(), values.new_tensor(values.numel()).double()]
        new_counts = torch.stack(counts)
        self.clip_counts = new_counts if self.clip_counts is None else self.clip_counts + new_counts

    def _compute_weights(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the weights as torch's LSTM takes them, with dropout of the recurrent ones."""
        recurrent = F.dropout(compute_weight(self.recurrent), self.spec.weight_dropout, self.training)
        bias = self.input.bias
        second_bias = torch.zeros_like(bias) if self.spec.biases == 1 else self.recurrent.bias
        parts = [compute_weight(self.input), recurrent, bias, second_bias]
        if self.project is not None:
            parts.append(compute_weight(self.project))
        return [part.to(dtype) for part in parts]

    def _run_steps(self, x: Tensor, layout: StepLayout, start: States, exact: bool) -> tuple[Tensor, States]:
        """Run the written-out recurrence."""
        weight, recurrent, bias, second_bias, *project = self._compute_weights(x.dtype)
        gates = F.linear(x, weight, bias + second_bias)
        output, cell = start
        outputs: list[Tensor] = []
        final_states: list[States] = []
        sizes = layout.sizes.tolist()
        for part, size in zip(torch.split(gates, sizes), sizes, strict=True):
            final_states.append((output[size:], cell[size:]))
            output, cell = self._update(
                part + F.linear(output[:size], recurrent), cell[:size], exact, project[0] if project else None
            )
            outputs.append(output)
        final_states.append((output, cell))
        last = tuple(torch.cat(parts) for parts in zip(*reversed(final_states), strict=True))
        return torch.cat(outputs), (last[0], last[1])

    def _update(self, gates: Tensor, cell: Tensor, exact: bool, project: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return output and cell after one step."""
        i, f, g, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        if exact and self.spec.cell_clip is not None:
            cell = cell.clamp(-self.spec.cell_clip, self.spec.cell_clip)
        output = torch.sigmoid(o) * torch.tanh(cell)
        if self.project is not None:
            output = self.project(output) if project is None else F.linear(output, project)
        if exact and self.spec.output_clip is not None:
            output = output.clamp(-self.spec.output_clip, self.spec.output_clip)
        return output, cell


def compute_weight(linear: nn.Module) -> Tensor:
    """Return the weight of a linear layer, with the change that an adapter in its place adds to it."""
    compute: Callable[[], Tensor] | None = getattr(linear, "compute_weight", None)
    return linear.get_parameter("weight") if compute is None else compute()


def reverse_index(batch: Batch) -> Tensor:
    """Return the index `[N]` that reverses every sequence of a batch (and back); padding stays.

    a b c | d e | -      ->      c b a | e d | -
    """
    cell = batch.sequence.clamp(min=0)
    ends = batch.offsets[1:].long().index_select(0, cell)
    identity = torch.arange(batch.tokens.shape[0], device=batch.tokens.device)
    return torch.where(batch.sequence >= 0, ends - 1 - batch.positions, identity)
