"""Sums and counts over micro-batches and ranks, computed on the device."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pretune.core.types import Batch, Loss
from pretune.training.distributed import Ranks
from pretune.training.loss_module import TrainingObjective


def sum_step_counts(
    objective: TrainingObjective, batches: Sequence[Batch], ranks: Ranks, *, stop_signal: int, elapsed_seconds: float
) -> dict[str, Tensor]:
    """Sum the target counts of each loss term and the tokens of a step over micro-batches and ranks.

    Also reduces the values the ranks must agree on: the stop signal and the mean elapsed time.
    """
    batch_counts = [{**objective.counts(batch), "tokens": _count_tokens(batch)} for batch in batches]
    totals = torch.stack([torch.stack([*counts.values()]).double() for counts in batch_counts]).sum(0)
    rank_values = torch.tensor([stop_signal, elapsed_seconds / ranks.world], dtype=torch.float64)
    totals = torch.cat((totals, rank_values.to(totals.device, non_blocking=True)))
    return dict(zip([*batch_counts[0], "stop_signal", "elapsed_seconds"], ranks.sum(totals).unbind(), strict=True))


def _count_tokens(batch: Batch) -> Tensor:
    """Count the tokens of a batch and its source, padding excluded."""
    tokens = (batch.sequence >= 0).sum()
    return tokens if batch.source is None else tokens + (batch.source.sequence >= 0).sum()


def reduce_over_ranks(loss: Loss, ranks: Ranks) -> Loss:
    """Sum losses and counts over all ranks, in float64."""
    terms: Mapping[str, Loss] = loss.get_terms()
    stacked_sums = [_stack_sums(term) for term in terms.values()]
    sums = torch.split(ranks.sum(torch.cat(stacked_sums)), [len(row) for row in stacked_sums])
    return Loss.from_parts(
        {
            name: Loss(sum=row[0], count=row[1], weight=term.weight, correct=row[2] if len(row) > 2 else None)
            for (name, term), row in zip(terms.items(), sums, strict=True)
        }
    )


def _stack_sums(term: Loss) -> Tensor:
    """Stack sum, count and, if known, the number of correct predictions."""
    values = (term.sum, term.count) if term.correct is None else (term.sum, term.count, term.correct)
    return torch.stack([value.double() for value in values])


def increase_micro_batches(micro: int, rows: int) -> int:
    """Return the next number of micro-batches above `micro` that divides the rows equally.

    >>> increase_micro_batches(4, 6), increase_micro_batches(4, 9)
    (8, 12)
    """
    return micro * next(factor for factor in range(2, rows + 1) if rows % factor == 0)
