"""Recurrence over the ragged batch: a bidirectional LSTM and the attention that pools what it says.

Legend: N tokens, C cells, W width read, H width of one direction.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pretune.core.config import spec
from pretune.core.types import Batch


@spec
class BiLSTM:
    """LSTMs (Hochreiter and Schmidhuber, 1997) in both directions, layer over layer; they say 2 x `hidden` a token."""

    hidden: int
    depth: int = 1
    dropout: float = 0.0  # between the layers

    @property
    def width(self) -> int:
        """The width of what comes out."""
        return 2 * self.hidden

    def build(self, *, width: int) -> "BidirectionalLSTM":
        return BidirectionalLSTM(self, width)

    def count_weights(self, *, width: int) -> int:
        """How many weights a token is multiplied with."""
        first, more = width + self.hidden, (self.depth - 1) * (self.width + self.hidden)
        return 2 * 4 * self.hidden * (first + more)

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + self.depth * 2 * 8 * self.hidden


class BidirectionalLSTM(nn.Module):
    """Exact: every sequence is read as if it were alone, and nothing is read of filler, whose states are 0."""

    def __init__(self, spec: BiLSTM, width: int) -> None:
        super().__init__()
        inner = spec.dropout if spec.depth > 1 else 0.0  # torch warns about a dropout that has no place
        self.lstm = nn.LSTM(width, spec.hidden, spec.depth, dropout=inner, bidirectional=True)
        self.width = spec.width

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """States `[N, W]` to `[N, 2 H]`."""
        order, sizes = order_by_step(batch)
        out = x.new_zeros(x.shape[0], self.width)
        if not len(order):
            return out
        read: PackedSequence = self.lstm(PackedSequence(x.index_select(0, order), sizes))[0]
        return out.to(read.data.dtype).index_copy(0, order, read.data)


def order_by_step(batch: Batch) -> tuple[Tensor, Tensor]:
    """The places of all tokens in the order recurrence reads them, and how many it reads at each step (on the CPU).

    First the first tokens of all sequences, the longest sequence first; then their second tokens, and so on. Filler is
    left out. Waits for the device.

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
    """One vector a sequence: its states weighed by softmax(v . tanh(W h + b)) (Bahdanau et al., 2015)."""

    hidden: int

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
        """States `[N, W]` to one vector for each cell `[C, W]`, 0 for filler and spare cells."""
        pooled = states.new_zeros(batch.cells + 1, states.shape[1])
        weighed = self.compute_weights(states, batch).unsqueeze(1) * states
        return pooled.index_add(0, _get_cells(batch), weighed.to(states.dtype))[:-1]

    def compute_weights(self, states: Tensor, batch: Batch) -> Tensor:
        """How much each token counts `[N]`: those of a sequence sum to 1."""
        score = self.query(torch.tanh(self.dense(states))).squeeze(1)
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        owner = _get_cells(batch)
        top = score.new_full((batch.cells + 1,), -torch.inf).scatter_reduce(0, owner, score.detach(), "amax")
        share = torch.exp(score - top.index_select(0, owner))
        total = score.new_zeros(batch.cells + 1).index_add(0, owner, share)
        out: Tensor = share / total.index_select(0, owner)
        return out.masked_fill(batch.sequence < 0, 0)


def _get_cells(batch: Batch) -> Tensor:
    """The cell of each token; all filler shares one more, which is thrown away."""
    return torch.where(batch.sequence < 0, batch.cells, batch.sequence).long()
