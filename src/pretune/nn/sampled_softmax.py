"""Sampled softmax for large vocabularies (Jean et al., 2015; Jozefowicz et al., 2016), in training only.

The softmax of a target runs over its label and random tokens, which all targets of a batch share. Each logit is lowered
by the log of the probability that its token is among them. The minimum of the loss is then that of the exact softmax,
and the loss itself approaches the exact one as the number of samples grows. Random numbers are torch's, which training
seeds in every step.
"""

import math
from typing import Any

import torch
from torch import Tensor

from pretune.core.config import Positive, spec
from pretune.core.types import IGNORE_INDEX, Loss
from pretune.nn.layers import get_compute_dtype
from pretune.nn.loss import split_rows


@spec
class SampledSoftmax:
    """Number of random tokens in the softmax of a training step; evaluation is exact.

    Tokens are drawn from the log-uniform distribution p(k) = log((k + 2) / (k + 1)) / log(V + 1), which is Zipf's law
    for a vocabulary in the order of frequency, as `words` tokenizers number it. A token drawn twice counts once, so it
    is in the softmax with probability 1 - (1 - p)^samples.
    """

    samples: Positive[int] = 8192

    def draw(self, vocab: int, device: torch.device) -> Tensor:
        """Draw token ids `[samples]` with replacement; return them in ascending order."""
        chances = torch.rand(self.samples, device=device, dtype=torch.float64)
        ids = ((chances * math.log(vocab + 1)).exp() - 1).long().clamp_(0, vocab - 1)
        return ids.sort().values

    def compute_log_probs(self, tokens: Tensor, vocab: int) -> Tensor:
        """Return the log of the probability that each token is drawn at least once, in fp64."""
        ids = tokens.double()
        chance = ((ids + 2) / (ids + 1)).log() / math.log(vocab + 1)
        return (-torch.expm1(self.samples * torch.log1p(-chance))).log()

    def compute_loss(self, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Loss:
        """Return the summed loss of states `[M, W]` over labels other than `IGNORE_INDEX`.

        `weight` `[V, W]` and `bias` `[V]` are those of the exact softmax.
        """
        vocab, split = weight.shape[0], len(labels)
        sampled_ids = self.draw(vocab, weight.device)
        ids = torch.cat((labels.clamp(min=0), sampled_ids))
        rows = weight.index_select(0, ids)
        shift = -self.compute_log_probs(ids, vocab).to(torch.promote_types(weight.dtype, torch.float32))
        shift = shift if bias is None else shift + bias.index_select(0, ids)
        repeats = torch.zeros_like(sampled_ids, dtype=torch.bool)
        repeats[1:] = sampled_ids[1:] == sampled_ids[:-1]
        total: Tensor = _SampledCrossEntropy.apply(  # type: ignore[no-untyped-call]
            states,
            rows[:split],
            shift[:split],
            rows[split:],
            shift[split:].masked_fill(repeats, -torch.inf),
            labels,
            sampled_ids,
        )
        return Loss(sum=total, count=(labels != IGNORE_INDEX).sum())


class _SampledCrossEntropy(torch.autograd.Function):
    """Cross-entropy of each row's own logit among shared ones, a block of rows at a time; gradients in the forward."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # [M, W]
        label_rows: Tensor,  # [M, W] vocabulary rows of the labels
        label_shift: Tensor,  # [M] biases and corrections
        table: Tensor,  # [S, W] vocabulary rows of the samples
        shift: Tensor,  # [S]
        labels: Tensor,  # [M]
        sampled_ids: Tensor,  # [S]
    ) -> Tensor:
        device = states.device.type
        dtype = get_compute_dtype(states)
        exact = torch.promote_types(dtype, torch.float32)
        with torch.autocast(device, enabled=False):
            rows, label_table, columns = states.to(dtype), label_rows.to(dtype), table.to(dtype)
            total = torch.zeros((), device=states.device, dtype=exact)
            grad_rows, grad_label_rows = torch.empty_like(rows), torch.empty_like(label_table)
            grad_label_shift = torch.empty(len(rows), device=states.device, dtype=exact)
            grad_table = torch.zeros(columns.shape, device=states.device, dtype=exact)
            grad_shift = torch.zeros(len(columns), device=states.device, dtype=exact)
            for part in split_rows(rows, len(columns) * exact.itemsize):
                real = (labels[part] != IGNORE_INDEX)[:, None].to(exact)
                logits = (rows[part] @ columns.t()).to(exact) + shift
                logits.masked_fill_(labels[part, None] == sampled_ids, -torch.inf)  # the label itself was drawn
                label_logit = (rows[part] * label_table[part]).sum(-1, keepdim=True, dtype=exact) + label_shift[
                    part, None
                ]
                norm = torch.logaddexp(logits.logsumexp(1, keepdim=True), label_logit)
                total += ((norm - label_logit) * real).sum()
                gradient = logits.sub_(norm).exp_().mul_(real)
                label_gradient = ((label_logit - norm).exp() - 1) * real
                grad_label_shift[part] = label_gradient[:, 0]
                grad_shift += gradient.sum(0)
                gradient, label_gradient = gradient.to(dtype), label_gradient.to(dtype)
                grad_rows[part] = gradient @ columns + label_gradient * label_table[part]
                grad_label_rows[part] = label_gradient * rows[part]
                grad_table += gradient.t() @ rows[part]
        ctx.save_for_backward(grad_rows, grad_label_rows, grad_label_shift, grad_table, grad_shift)
        ctx.dtypes = [part.dtype for part in (states, label_rows, label_shift, table, shift)]
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((gradient * scale).to(dtype) for gradient, dtype in gradients), None, None
