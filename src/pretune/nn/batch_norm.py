"""Batch normalization (Ioffe and Szegedy, 2015) over the sequences of a batch, for the task heads whose paper has it.

In training, rows are normalized by mean and variance of all sequences in the batch, and a running average of both is
kept; in evaluation by that average, so that the result of a sequence is independent of the others. Filler and spare
cells do not count. A micro-batch is normalized by itself, so its size matters; under `torchrun` statistics are those
of all ranks, which must call the module in the same order. A batch of one sequence has no variance: the running
statistics are used, and do not change.

NOTE: these are statistics of the weights in training; an average of weights (`ASGD`, several runs) would have others.

Legend: C cells, W width.
"""

from typing import Annotated, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import Gt, Le, Positive, spec


@spec
class BatchNorm:
    """Batch normalization; the defaults are torch's."""

    eps: Positive[float] = 1e-5
    momentum: Annotated[float, Gt(0), Le(1)] = 0.1  # weight of a batch in the running statistics

    def build(self, *, width: int) -> "SequenceNorm":
        return SequenceNorm(self, width)


class SequenceNorm(nn.Module):
    """Normalization of one row per cell. Statistics are at least fp32, whatever the type of the weights."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, spec: BatchNorm, width: int) -> None:
        super().__init__()
        self.eps, self.momentum = spec.eps, spec.momentum
        self.weight = Parameter(torch.ones(width))
        self.bias = Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor, is_sequence: Tensor | None = None) -> Tensor:
        """Normalize the rows `[C, W]`; `is_sequence` `[C]` is False for filler and spare cells, None: no such cells."""
        rows = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, var = (
            self._compute_statistics(rows, is_sequence) if self.training else (self.running_mean, self.running_var)
        )
        return ((rows - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias).to(x.dtype)

    def _compute_statistics(self, x: Tensor, is_sequence: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and variance `[W]` of the sequences, and update the running ones."""
        is_row = torch.ones_like(x[:, :1], dtype=torch.bool) if is_sequence is None else is_sequence[:, None]
        sums = _sum_over_ranks(torch.cat((x.where(is_row, 0.0), is_row.to(x.dtype)), dim=1).sum(0))
        count = sums[-1]
        mean = sums[:-1] / count.clamp(min=1)
        # NOTE: in a second pass: pooled states may differ by little, and a sum of squares would cancel.
        squares = _sum_over_ranks((x - mean).where(is_row, 0.0).square().sum(0))
        has_variance = count > 1
        with torch.no_grad():
            # A step with non-finite values is skipped, so it must not change the statistics either.
            is_valid = has_variance & mean.isfinite().all() & squares.isfinite().all()
            unbiased_var = squares / (count - 1).clamp(min=1)
            for running, new in ((self.running_mean, mean), (self.running_var, unbiased_var)):
                running.copy_(torch.where(is_valid, running.lerp(new.to(running.dtype), self.momentum), running))
        return (
            torch.where(has_variance, mean, self.running_mean),
            torch.where(has_variance, squares / count.clamp(min=1), self.running_var),
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move or convert; half precision is for the weights only."""
        statistics = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in statistics.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype.itemsize < old.dtype.itemsize:
                self._buffers[name] = old.to(new.device)
        return self


def _sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum over all ranks, with gradients of all ranks; the values if there is only one rank."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return values
    total: Tensor = _RankSum.apply(values)  # type: ignore[no-untyped-call]
    return total


class _RankSum(torch.autograd.Function):
    """Sum over the ranks. Losses are summed over them, too, so the gradient is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        total = slope.clone()
        dist.all_reduce(total)
        return total
