"""From states to the summed cross-entropy over the vocabulary, without keeping more than one matrix of logits."""

import torch.nn.functional as F
from torch import Tensor

from pretune.core.types import IGNORE, Loss

ALIGN = 64
"""On a GPU the vocabulary is rounded up to this: tensor cores halve their rate on an odd number of columns."""


def linear_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Loss:
    """Sum of -log softmax(states weight^T + bias)[label] over the labels that are not `IGNORE`.

    Logits stay in the precision of the product; the softmax is computed in fp32.
    """
    vocab = weight.shape[0]
    spare = -vocab % ALIGN if states.is_cuda else 0
    if spare:
        weight = F.pad(weight, (0, 0, 0, spare))
        bias = None if bias is None else F.pad(bias, (0, spare))
    logits = F.linear(states, weight, bias)[:, :vocab]
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="sum")
    return Loss(sum=total, count=(labels != IGNORE).sum())
