"""Fused linear layer and cross-entropy over the vocabulary, or sampling from its softmax, a block of rows at a time.

The logits of a block are overwritten by their gradient, so that neither logits nor softmax are saved: memory is bounded
by the block, and each block is read twice instead of five times.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pretune.core.types import IGNORE_INDEX, Loss
from pretune.nn.layers import get_compute_dtype

ALIGN = 64
"""Multiple to which the vocabulary is padded on a GPU: an odd number of columns halves the matmul rate."""

BLOCK_BYTES = {"cuda": 2 << 30, "cpu": 64 << 20}


def split_rows(states: Tensor, row_bytes: int) -> Iterator[slice]:
    """Yield the blocks of rows whose working memory of `row_bytes` each is bounded; at least 64 rows."""
    size = max(BLOCK_BYTES.get(states.device.type, BLOCK_BYTES["cpu"]) // row_bytes, 64)
    for start in range(0, states.shape[0], size):
        yield slice(start, start + size)


def linear_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Loss:
    """Return the sum of -log softmax(states weight^T + bias)[label] over labels other than `IGNORE_INDEX`.

    Products run in the autocast precision; the softmax is computed in fp32 (fp64 for fp64 states). Without gradients,
    correct top-1 predictions are counted as well.
    """
    right = None if torch.is_grad_enabled() else torch.zeros((), device=labels.device, dtype=torch.long)
    total: Tensor = _LinearCrossEntropy.apply(states, weight, bias, labels, right)  # type: ignore[no-untyped-call]
    return Loss(sum=total, count=(labels != IGNORE_INDEX).sum(), correct=right)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, correct: Tensor | None
    ) -> Tensor:
        device = states.device.type
        dtype = get_compute_dtype(states)
        with_gradient, exact = any(ctx.needs_input_grad[:3]), torch.promote_types(dtype, torch.float32)
        with torch.autocast(device, enabled=False):
            rows, table, shift = states.to(dtype), pad_to_alignment(weight.to(dtype)), bias
            if shift is not None:
                shift = pad_to_alignment(shift.to(dtype))
            total = torch.zeros((), device=states.device, dtype=exact)
            gradients = LogitGradients(ctx, rows, table, exact)
            for part in split_rows(rows, table.shape[0] * rows.element_size()):
                logits = F.linear(rows[part], table, shift)
                if correct is not None:
                    correct += count_top1(logits[:, : weight.shape[0]], labels[part])
                total += _replace_with_gradient(logits, labels[part], weight.shape[0], with_gradient)
                gradients.add(logits, part)
        gradients.save(ctx, states, weight, bias)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return *scale_gradients(ctx, scale), None, None


class LogitGradients:
    """Gradients of states `[M, W]`, matrix `[V, W]` and bias `[V]`, the first three inputs of a function: sums over
    blocks of logits in its forward pass. An input that needs none has none: the matrix is frozen for LoRA.
    """

    def __init__(self, ctx: Any, rows: Tensor, table: Tensor, dtype: torch.dtype) -> None:
        for_rows, for_table, for_shift = ctx.needs_input_grad[:3]
        self._rows, self._table = rows, table
        self.rows = torch.empty_like(rows) if for_rows else None
        self.table = torch.zeros(table.shape, device=rows.device, dtype=dtype) if for_table else None
        self.shift = torch.zeros(table.shape[0], device=rows.device, dtype=dtype) if for_shift else None

    def add(self, logits: Tensor, part: slice) -> None:
        """Add the gradients of the rows of a block, whose logits are overwritten by their gradients."""
        if self.rows is not None:
            torch.mm(logits, self._table, out=self.rows[part])
        if self.table is not None:
            self.table += logits.t() @ self._rows[part]
        if self.shift is not None:
            self.shift += logits.sum(0, dtype=self.shift.dtype)

    def save(self, ctx: Any, *inputs: Tensor | None) -> None:
        """Save the gradients of the inputs for `scale_gradients`."""
        ctx.save_for_backward(self.rows, self.table, self.shift)
        ctx.sizes = [(0, None) if part is None else (part.shape[0], part.dtype) for part in inputs]


def scale_gradients(ctx: Any, scale: Tensor) -> Iterator[Tensor | None]:
    """Yield the gradients of `LogitGradients`, in the dtypes of their inputs."""
    for gradient, (length, dtype) in zip(ctx.saved_tensors, ctx.sizes, strict=True):
        yield None if gradient is None else _fit_rows(gradient * scale, length).to(dtype)


def _fit_rows(gradient: Tensor, length: int) -> Tensor:
    """Return a gradient of `length` rows: padding is dropped, and tokens that do not count have none."""
    missing = length - gradient.shape[0]
    if missing <= 0:
        return gradient[:length]
    return F.pad(gradient, (0, 0, 0, missing) if gradient.dim() == 2 else (0, missing))


def count_top1(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of labels whose logit is the unique maximum of their row."""
    target_logits = logits.gather(1, labels.clamp(min=0)[:, None])
    return (((logits >= target_logits).sum(1) == 1) & (labels != IGNORE_INDEX)).sum()


def pad_to_alignment(table: Tensor) -> Tensor:
    """Return a matrix or vector with its rows padded to a multiple of `ALIGN` on a GPU."""
    spare = -table.shape[0] % ALIGN if table.is_cuda else 0
    return F.pad(table, (0, 0, 0, spare) if table.dim() == 2 else (0, spare)) if spare else table


def _replace_with_gradient(logits: Tensor, labels: Tensor, vocab: int, with_gradient: bool) -> Tensor:
    """Return the summed loss of a block; `with_gradient` overwrites the logits by softmax - one-hot."""
    if logits.is_cuda:
        from pretune.nn.loss_kernel import compute_row_losses

        return compute_row_losses(logits, labels, vocab, with_gradient).sum()
    work = logits.to(torch.promote_types(logits.dtype, torch.float32))  # no copy for fp32 and fp64
    real = (labels != IGNORE_INDEX)[:, None]
    index = labels.clamp(min=0)[:, None]
    top = work.amax(1, keepdim=True)
    target_logits = work.gather(1, index) - top
    norm = work.sub_(top).exp_().sum(1, keepdim=True)  # one exponential per logit, the dominant cost on a CPU
    if with_gradient:
        work.mul_(real / norm).scatter_add_(1, index, -real.to(work.dtype))
        logits.copy_(work)
    return ((norm.log() - target_logits) * real).sum()


def linear_logprobs(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return log softmax(states weight^T + bias)[label] of each row `[M]`; 0 for the label `IGNORE_INDEX`.

    Products run in the autocast precision, the softmax in fp32 (fp64 for fp64 states). Rows may have any gradient: the
    logits of a block are computed again in the backward pass.
    """
    dtype = get_compute_dtype(states)
    exact = torch.promote_types(dtype, torch.float32)
    with torch.autocast(states.device.type, enabled=False):
        rows, table = states.to(dtype), pad_to_alignment(weight.to(dtype))
        shift = None if bias is None else pad_to_alignment(bias.to(dtype))

        def compute(part: Tensor, part_labels: Tensor) -> Tensor:
            logits = F.linear(part, table, shift)[:, : weight.shape[0]].to(exact)
            return -F.cross_entropy(logits, part_labels, ignore_index=IGNORE_INDEX, reduction="none")

        blocks = [
            checkpoint(compute, rows[part], labels[part], use_reentrant=False, preserve_rng_state=False)
            for part in split_rows(rows, 3 * table.shape[0] * exact.itemsize)
        ]
    return torch.cat(blocks) if blocks else rows.new_zeros(0, dtype=exact)


@torch.no_grad()
def sample_tokens(states: Tensor, weight: Tensor, bias: Tensor | None, chance: Tensor) -> Tensor:
    """Return the first token `[M]` whose cumulative softmax(states weight^T + bias) exceeds `chance`.

    With `chance` `[M]` uniform in [0, 1), one number per row, this samples from the softmax, and a sample depends only
    on its row. Products run in the autocast precision. No gradient, and no synchronization with the device.
    """
    device = states.device.type
    dtype = get_compute_dtype(states)
    vocab = weight.shape[0]
    with torch.autocast(device, enabled=False):
        rows, table = states.to(dtype), pad_to_alignment(weight.to(dtype))
        shift = None if bias is None else pad_to_alignment(bias.to(dtype))
        tokens = torch.empty(rows.shape[0], dtype=torch.long, device=rows.device)
        for part in split_rows(rows, 8 * table.shape[0]):  # two numbers of four bytes
            logits = F.linear(rows[part], table, shift)[:, :vocab].float()
            # NOTE: integers, because cumulative sums of floats on a GPU are neither deterministic nor monotonic.
            sums = (torch.softmax(logits, dim=1) * 2.0**30).to(torch.int32).cumsum(1, dtype=torch.int32)
            aim = (chance[part, None] * 2.0**24).long() * sums[:, -1:] >> 24
            tokens[part] = torch.searchsorted(sums, aim.to(torch.int32), right=True).squeeze(1)
    return tokens.clamp_(max=vocab - 1)  # for a chance of 1
