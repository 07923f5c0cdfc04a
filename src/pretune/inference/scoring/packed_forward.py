"""Log-probabilities of targets in many sequences: packed into rows without padding, the head at targets only.

Nothing synchronizes with the device before a part is done. The body runs in the requested precision; the head and the
softmax in fp32 at least, a block of rows at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pretune.core.seed import extend_mix, mix_array
from pretune.core.types import IGNORE_INDEX, Batch, Targets
from pretune.data.inference_batches import PackedBatch, pack_batches
from pretune.data.sequences import Bools, Ints, Sequences, compute_starts, spread
from pretune.inference.finite_check import check_outputs
from pretune.models.model import LanguageModel

BATCH_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 12}
BLOCK_BYTES = {"cuda": 1 << 30, "cpu": 32 << 20}
"""Maximum size of the logits computed at once."""


class TargetLogProbs(NamedTuple):
    """Log-probabilities [M] of the targets, and whether each was the most probable token."""

    logprobs: NDArray[np.float64]
    is_argmax: Bools


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
    """Compute the log-probability of every target, in batches of about `tokens` tokens; a tie is not an argmax.

    With `deduplicate` equal inputs are computed once, whatever their targets: a question with several answers of one
    token. `on_progress` is called with the number of targets of each batch.
    """
    target_index, representatives = TargetIndex.from_sequences(sequences, deduplicate)
    inputs = replace(sequences, targets=None).take(representatives)
    device = model.tokens.weight.device
    target_ids: list[Ints] = []
    results: list[tuple[Tensor, Tensor]] = []
    for part in pack_batches(inputs, tokens=tokens, device=device.type):
        batch_target_ids, targets = target_index.select(part, inputs.lengths[part.indices])
        device_batch = replace(part.batch, targets=targets).to(device)
        with torch.autocast(device.type, precision, enabled=precision is not None):
            states = model.states(device_batch)
        results.append(compute_logprobs(model, states, device_batch))
        target_ids.append(batch_target_ids)
        if on_progress is not None:
            on_progress(len(batch_target_ids))
    logprobs, is_argmax = np.empty(len(target_index.labels)), np.empty(len(target_index.labels), dtype=np.bool_)
    if results:
        order = np.concatenate(target_ids)
        logprobs[order] = torch.cat([values for values, _ in results]).double().cpu().numpy()
        is_argmax[order] = torch.cat([values for _, values in results]).cpu().numpy()
    check_outputs(logprobs, "log-probabilities")
    return TargetLogProbs(logprobs, is_argmax)


@dataclass(frozen=True, slots=True)
class TargetIndex:
    """Targets of each distinct sequence: positions and labels, ordered by sequence.

    A position may have several labels.
    """

    starts: Ints  # [S] first target of each sequence
    counts: Ints  # [S]
    positions: Ints  # [M] within the sequence
    labels: Ints  # [M]
    target_ids: Ints  # [M] index of the target in the original sequences

    @classmethod
    def from_sequences(cls, sequences: Sequences, deduplicate: bool) -> tuple["TargetIndex", Ints]:
        """Collect the targets of sequences; returns also the indices of the sequences to compute."""
        assert sequences.targets is not None
        every = np.arange(len(sequences))
        representatives, groups = find_distinct(sequences) if deduplicate else (every, every)
        positions = np.flatnonzero(sequences.targets != IGNORE_INDEX)
        owner = groups[np.repeat(np.arange(len(sequences)), sequences.lengths)[positions]]
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=len(representatives))
        sequence_positions = sequences.compute_positions()[positions]
        return cls(
            compute_starts(counts), counts, sequence_positions[order], sequences.targets[positions][order], order
        ), representatives

    def select(self, part: PackedBatch, lengths: Ints) -> tuple[Ints, Targets]:
        """Return the ids of the targets in a batch of sequences of these lengths, and their positions in it."""
        index = spread(self.starts[part.indices], self.counts[part.indices])
        inside = np.repeat(compute_starts(lengths), self.counts[part.indices]) + self.positions[index]
        positions = torch.from_numpy(part.token_positions[inside])
        targets = Targets(index=positions, labels=torch.from_numpy(self.labels[index]))
        return self.target_ids[index], targets


def find_distinct(sequences: Sequences) -> tuple[Ints, Ints]:
    """Find equal inputs; returns the first index of each group, and the group of every sequence.

    >>> texts = Sequences(tokens=np.array([5, 6, 5, 5, 6]), offsets=np.array([0, 2, 3, 5]))
    >>> [part.tolist() for part in find_distinct(texts)]
    [[0, 1], [0, 1, 0]]
    """
    key, check = _compute_keys(sequences.tokens, sequences.offsets, sequences.segments, sequences.order)
    if sequences.source is not None:
        source_keys = _compute_keys(sequences.source.tokens, sequences.source.offsets)
        key, check = (
            key ^ extend_mix(source_keys[0], np.ones(1, np.int64)),
            check ^ extend_mix(source_keys[1], np.ones(1, np.int64)),
        )
    _, first_indices, groups = np.unique(key, return_index=True, return_inverse=True)
    if (check[first_indices][groups] != check).any():  # a hash collision: once in 10^9 texts
        return np.arange(len(sequences)), np.arange(len(sequences))
    order = np.argsort(first_indices)  # groups in the order of their first members
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first_indices[order], rank[groups]


def _compute_keys(
    values: Ints, offsets: Ints, segments: Ints | None = None, order: Ints | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return two 64-bit hashes [S] over tokens and positions of every sequence."""
    lengths = np.diff(offsets)
    places = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    for extra in (segments, order):
        if extra is not None:
            places = places * 4 + extra
    with np.errstate(over="ignore"):
        hashes = extend_mix(mix_array((0,), values), places)
        squares = hashes * hashes
        sums = [np.append(np.uint64(0), np.cumsum(part, dtype=np.uint64)) for part in (hashes, squares)]
        return sums[0][offsets[1:]] - sums[0][offsets[:-1]], sums[1][offsets[1:]] - sums[1][offsets[:-1]]


def compute_logprobs(model: LanguageModel, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities [M] of the targets, and whether each is the unique maximum."""
    assert model.head is not None and batch.targets is not None
    labels = batch.targets.labels
    weight = model.tokens.weight if model.head.weight is None else model.head.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    size = max(BLOCK_BYTES.get(labels.device.type, BLOCK_BYTES["cpu"]) // (weight.shape[0] * dtype.itemsize), 16)
    logprobs, is_argmax = [], []
    with torch.autocast(labels.device.type, enabled=False):
        rows = model.head.transform_states(states.index_select(0, batch.targets.index).to(weight.dtype)).to(dtype)
        table, bias = weight.to(dtype), None if model.head.bias is None else model.head.bias.to(dtype)
        for start in range(0, rows.shape[0], size):
            logits = F.linear(rows[start : start + size], table, bias)
            target_logits = logits.gather(1, labels[start : start + size, None])
            is_argmax.append((logits >= target_logits).sum(1) == 1)
            logprobs.append(target_logits[:, 0] - logits.logsumexp(1))
    if not logprobs:
        return rows.new_empty(0), labels.new_empty(0, dtype=torch.bool)
    return torch.cat(logprobs), torch.cat(is_argmax)
