"""Triton kernel of the row losses of `loss`, for CUDA only; tests compare it with PyTorch."""

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore, misc"

BLOCK_COLUMNS = 4096


@triton.jit
def _row_loss_kernel(logits, labels, losses, width, vocab, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * width
    label = tl.load(labels + row)
    real = label >= 0
    # NOTE: loaded before the reductions below synchronize the threads: later it may be overwritten by a gradient.
    target = tl.load(base + tl.where(real, label, 0)).to(tl.float32)
    top = -float("inf")
    total = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(base + columns, mask=columns < vocab, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), 0)
        top = new
    norm = top + tl.log(total)
    tl.store(losses + row, tl.where(real, norm - target, 0.0))
    if GRADIENT:
        for start in range(0, width, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(base + columns, mask=columns < vocab, other=-float("inf")).to(tl.float32)
            p = tl.exp(x - norm)
            p = tl.where(columns == label, p - 1.0, p)
            p = tl.where(real, p, 0.0)
            tl.store(base + columns, p.to(logits.dtype.element_ty), mask=columns < width)


def compute_row_losses(logits: Tensor, labels: Tensor, vocab: int, with_gradient: bool) -> Tensor:
    """Return -log softmax at the label of every row, 0 for a negative label; columns from `vocab` on are padding.

    With `with_gradient` the logits are overwritten by the gradient of their row's loss.
    """
    losses = torch.empty(logits.shape[0], device=logits.device, dtype=torch.float32)
    _row_loss_kernel[(logits.shape[0],)](
        logits, labels, losses, logits.shape[1], vocab, GRADIENT=with_gradient, BLOCK=BLOCK_COLUMNS, num_warps=8
    )
    return losses
