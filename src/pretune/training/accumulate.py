"""What is counted and summed over micro-batches and ranks, on the device."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pretune.core.types import Batch, Loss
from pretune.training.distributed import Ranks
from pretune.training.loss_module import TrainingObjective


def sum_step_counts(
    objective: TrainingObjective, batches: Sequence[Batch], ranks: Ranks, *, stop_signal: int, elapsed: float
) -> dict[str, Tensor]:
    """The targets of each term of the loss and the tokens of a whole step.

    With them travels what the ranks must agree on: whether one was asked to stop, and their mean time.
    """
    found = [{**objective.counts(batch), "tokens": _count_tokens(batch)} for batch in batches]
    summed = torch.stack([torch.stack([*one.values()]).double() for one in found]).sum(0)
    ours = torch.tensor([stop_signal, elapsed / ranks.world], dtype=torch.float64)
    summed = torch.cat((summed, ours.to(summed.device, non_blocking=True)))
    return dict(zip([*found[0], "asked", "elapsed"], ranks.sum(summed).unbind(), strict=True))


def _count_tokens(batch: Batch) -> Tensor:
    """The tokens of a batch, on both sides, filler left out."""
    own = (batch.sequence >= 0).sum()
    return own if batch.source is None else own + (batch.source.sequence >= 0).sum()


def reduce_over_ranks(loss: Loss, ranks: Ranks) -> Loss:
    """The sums and counts of all ranks, wide enough to add many more."""
    terms: Mapping[str, Loss] = loss.get_terms()
    found = [_stack_sums(term) for term in terms.values()]
    sums = torch.split(ranks.sum(torch.cat(found)), [len(one) for one in found])
    return Loss.from_parts(
        {
            name: Loss(sum=one[0], count=one[1], weight=term.weight, correct=one[2] if len(one) > 2 else None)
            for (name, term), one in zip(terms.items(), sums, strict=True)
        }
    )


def _stack_sums(term: Loss) -> Tensor:
    """Sum and count, and how many were right, where that is known."""
    values = (term.sum, term.count) if term.correct is None else (term.sum, term.count, term.correct)
    return torch.stack([value.double() for value in values])


def increase_micro_batches(micro: int, rows: int) -> int:
    """More micro-batches than `micro` of so many rows: twice as many, or the next number that cuts them equally.

    >>> increase_micro_batches(4, 6), increase_micro_batches(4, 9)
    (8, 12)
    """
    return micro * next(factor for factor in range(2, rows + 1) if rows % factor == 0)
