"""Reading many sequences that have targets: packed into rows without padding, the head at the targets only.

Sequences are sorted into rows of a few lengths, rows into batches of equal shape (a compiled model compiles once for
each length), and nothing waits for the device before a part is done. The body runs in the precision asked for; the
last layer and the softmax in fp32 at least, a block of rows at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pretune.core.seed import extend_mix, mix_array
from pretune.core.types import IGNORE_INDEX, Batch, Targets
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.packing import pack
from pretune.data.ragged import Bools, Ints, compute_starts, spread
from pretune.data.sequences import Sequences
from pretune.inference.finite_check import check_outputs
from pretune.models.model import LanguageModel

MIN_ROW_TOKENS = 128
"""The shortest rows: what is shorter shares one. Longer ones have twice that, four times, …"""

BATCH_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 12}
BLOCK_BYTES = {"cuda": 1 << 30, "cpu": 32 << 20}
"""Of the logits that are there at a time."""


class TargetLogProbs(NamedTuple):
    """What a model says of the targets, in their order: log-probabilities [M], and whether each was the likeliest."""

    logprobs: NDArray[np.float64]
    is_argmax: Bools


class Bin(NamedTuple):
    """Sequences that share a shape of batches: which they are, and the lengths of rows on both sides."""

    indices: Ints
    length: int
    source: int | None


@torch.no_grad()
def compute_target_logprobs(
    model: LanguageModel,
    sequences: Sequences,
    *,
    tokens: int,
    precision: torch.dtype | None = None,
    deduplicate: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> TargetLogProbs:
    """The log-probability of every target, about `tokens` tokens at a time; a tie is not the likeliest.

    With `alike` sequences that are read alike are looked for and read once, whatever their targets: a question with
    several answers of one token. `tell` is told how many targets were read, batch by batch.
    """
    asks, one = TargetIndex.from_sequences(sequences, deduplicate)
    bare = replace(sequences, targets=None).take(one)
    device = model.tokens.weight.device
    places: list[Ints] = []
    found: list[tuple[Tensor, Tensor]] = []
    for which, batch in iterate_batches(bare, tokens, fixed=device.type == "cuda"):
        number, targets = asks.select(which, bare.lengths[which], batch)
        there = replace(batch, targets=targets).to(device)
        with torch.autocast(device.type, precision, enabled=precision is not None):
            states = model.states(there)
        found.append(compute_logprobs(model, states, there))
        places.append(number)
        if on_progress is not None:
            on_progress(len(number))
    logs, first = np.empty(len(asks.labels)), np.empty(len(asks.labels), dtype=np.bool_)
    if found:
        at = np.concatenate(places)
        logs[at] = torch.cat([one for one, _ in found]).double().cpu().numpy()
        first[at] = torch.cat([one for _, one in found]).cpu().numpy()
    check_outputs(logs, "log-probabilities")
    return TargetLogProbs(logs, first)


@dataclass(frozen=True, slots=True)
class TargetIndex:
    """What is asked of each sequence that is read: at which of its places, for which token; in the order of sequences.

    A place may be asked for several tokens.
    """

    starts: Ints  # [S] where the asks of a sequence begin
    counts: Ints  # [S]
    positions: Ints  # [M] inside the sequence
    labels: Ints  # [M]
    target_ids: Ints  # [M] which target of the sequences that were given it is

    @classmethod
    def from_sequences(cls, sequences: Sequences, deduplicate: bool) -> tuple["TargetIndex", Ints]:
        """The targets of sequences, and which sequences are to be read: one of those that are alike, or all."""
        assert sequences.targets is not None
        every = np.arange(len(sequences))
        one, same = find_distinct(sequences) if deduplicate else (every, every)
        asked = np.flatnonzero(sequences.targets != IGNORE_INDEX)
        owner = same[np.repeat(np.arange(len(sequences)), sequences.lengths)[asked]]
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=len(one))
        place = sequences.compute_positions()[asked]
        return cls(compute_starts(counts), counts, place[order], sequences.targets[asked][order], order), one

    def select(self, indices: Ints, lengths: Ints, batch: Batch) -> tuple[Ints, Targets]:
        """Those of the sequences in a batch: their numbers, and where they lie."""
        index = spread(self.starts[indices], self.counts[indices])
        inside = np.repeat(compute_starts(lengths), self.counts[indices]) + self.positions[index]
        real = np.flatnonzero(batch.sequence.numpy() >= 0)  # the tokens of all sequences, in their order
        targets = Targets(index=torch.from_numpy(real[inside]), labels=torch.from_numpy(self.labels[index]))
        return self.target_ids[index], targets


def find_distinct(sequences: Sequences) -> tuple[Ints, Ints]:
    """One of each group of sequences that are read alike, and the group of every sequence.

    >>> texts = Sequences(tokens=np.array([5, 6, 5, 5, 6]), offsets=np.array([0, 2, 3, 5]))
    >>> [part.tolist() for part in find_distinct(texts)]
    [[0, 1], [0, 1, 0]]
    """
    key, check = _compute_keys(sequences.tokens, sequences.offsets, sequences.segments, sequences.order)
    if sequences.source is not None:
        there = _compute_keys(sequences.source.tokens, sequences.source.offsets)
        key, check = (
            key ^ extend_mix(there[0], np.ones(1, np.int64)),
            check ^ extend_mix(there[1], np.ones(1, np.int64)),
        )
    _, one, same = np.unique(key, return_index=True, return_inverse=True)
    if (check[one][same] != check).any():  # not alike, though their keys are: once in a thousand million texts
        return np.arange(len(sequences)), np.arange(len(sequences))
    order = np.argsort(one)  # groups in the order of their first members
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return one[order], rank[same]


def _compute_keys(
    values: Ints, offsets: Ints, segments: Ints | None = None, order: Ints | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """[S] two sums of 64 bits each over what is where in every stretch."""
    lengths = np.diff(offsets)
    places = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    for more in (segments, order):
        if more is not None:
            places = places * 4 + more
    with np.errstate(over="ignore"):
        mixed = extend_mix(mix_array((0,), values), places)
        squared = mixed * mixed
        sums = [np.append(np.uint64(0), np.cumsum(part, dtype=np.uint64)) for part in (mixed, squared)]
        return sums[0][offsets[1:]] - sums[0][offsets[:-1]], sums[1][offsets[1:]] - sums[1][offsets[:-1]]


def iterate_batches(sequences: Sequences, tokens: int, *, fixed: bool = False) -> Iterator[tuple[Ints, Batch]]:
    """All sequences in batches, and which are in each, in the order they lie there.

    Those of one length of rows have equally many; with `fixed` as many as there is room for, the last with empty rows.
    """
    for group in iterate_bins(sequences):
        part = sequences.take(group.indices)
        if part.source is None or group.source is None:
            row = pack(part.lengths, group.length)
        else:
            row = pack(part.lengths, group.length, source=part.source.lengths, source_room=group.source)
        order = np.argsort(row, kind="stable")
        ordered = row[order]
        total, most = int(ordered[-1]) + 1, max(1, tokens // (group.length + (group.source or 0)))
        count = -(-total // most)
        rows = most if fixed and count > 1 else -(-total // count)
        for at in range(count):
            low, high = np.searchsorted(ordered, (at * rows, (at + 1) * rows)).tolist()
            taken = order[low:high]
            if len(taken):
                shape = BatchShape(rows=rows, length=group.length, source=group.source)
                yield group.indices[taken], lay_out(part.take(taken), ordered[low:high] - at * rows, shape)


def iterate_bins(sequences: Sequences) -> Iterator[Bin]:
    """Sequences of about one length together: rows of 128 tokens, of 256, and so on, of the side with more tokens."""
    source = sequences.source
    longer = sequences.lengths if source is None else np.maximum(sequences.lengths, source.lengths)
    kind = np.ceil(np.log2(np.maximum(longer / MIN_ROW_TOKENS, 1))).astype(np.int64)
    for size in np.unique(kind).tolist():
        which = np.flatnonzero(kind == size)
        here = sequences.lengths[which]
        if source is None:
            yield Bin(which, _choose_row_length(here, MIN_ROW_TOKENS << size), None)
            continue
        there = source.lengths[which]
        if here.sum() >= there.sum():
            length = _choose_row_length(here, MIN_ROW_TOKENS << size)
            yield Bin(which, length, _choose_other_length(there, length * there.sum() / here.sum()))
        else:
            other = _choose_row_length(there, MIN_ROW_TOKENS << size)
            yield Bin(which, _choose_other_length(here, other * here.sum() / there.sum()), other)


def _choose_row_length(lengths: Ints, max_length: int) -> int:
    """The length of rows; where there is little to read, one row as long as all of it."""
    return min(max_length, int(lengths.sum()))


def _choose_other_length(lengths: Ints, expected: float) -> int:
    """The length of rows on the side with fewer tokens: a little more than its share, and room for the longest."""
    return max(int(lengths.max()), -(-int(1.15 * expected) // 8) * 8)


def compute_logprobs(model: LanguageModel, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probabilities [M] of the targets, and whether each is likelier than all else."""
    assert model.head is not None and batch.targets is not None
    labels = batch.targets.labels
    weight = model.tokens.weight if model.head.weight is None else model.head.weight
    exact = torch.promote_types(weight.dtype, torch.float32)
    size = max(BLOCK_BYTES.get(labels.device.type, BLOCK_BYTES["cpu"]) // (weight.shape[0] * exact.itemsize), 16)
    logs, first = [], []
    with torch.autocast(labels.device.type, enabled=False):
        rows = model.head.transform_states(states.index_select(0, batch.targets.index).to(weight.dtype)).to(exact)
        table, bias = weight.to(exact), None if model.head.bias is None else model.head.bias.to(exact)
        for start in range(0, rows.shape[0], size):
            logits = F.linear(rows[start : start + size], table, bias)
            picked = logits.gather(1, labels[start : start + size, None])
            first.append((logits >= picked).sum(1) == 1)
            logs.append(picked[:, 0] - logits.logsumexp(1))
    if not logs:
        return rows.new_empty(0), labels.new_empty(0, dtype=torch.bool)
    return torch.cat(logs), torch.cat(first)
