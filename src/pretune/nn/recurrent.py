"""Bidirectional LSTM over a ragged batch, and additive attention pooling.

Legend: N tokens, C cells, W input width, H width of one direction.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pretune.core.config import Fraction, Positive, spec
from pretune.core.types import Batch


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
