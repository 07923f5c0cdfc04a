"""From states to a token drawn from the vocabulary, a block of rows at a time.

Whoever calls brings one random number per row, so what is drawn is a function of the row and of nothing else.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.loss import BLOCK_BYTES, _pad_to_alignment


@torch.no_grad()
def sample_tokens(states: Tensor, weight: Tensor, bias: Tensor | None, chance: Tensor) -> Tensor:
    """[M] the first token whose share of softmax(states weight^T + bias), added to those before it, exceeds `chance`.

    With `chance` [M] uniform from 0 to below 1 that is a draw from the softmax. Products run in the autocast precision.
    Without a gradient, and without waiting for the device.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    vocab = weight.shape[0]
    with torch.autocast(device, enabled=False):
        rows, table = states.to(dtype), _pad_to_alignment(weight.to(dtype))
        shift = None if bias is None else _pad_to_alignment(bias.to(dtype))
        size = max(BLOCK_BYTES.get(device, BLOCK_BYTES["cpu"]) // (8 * table.shape[0]), 64)  # two numbers of four bytes
        drawn = torch.empty(rows.shape[0], dtype=torch.long, device=rows.device)
        for start in range(0, rows.shape[0], size):
            part = slice(start, start + size)
            logits = F.linear(rows[part], table, shift)[:, :vocab].float()
            # NOTE: whole numbers, for on a GPU their sums always come out the same, in order, and those of others not.
            sums = (torch.softmax(logits, dim=1) * 2.0**30).to(torch.int32).cumsum(1, dtype=torch.int32)
            aim = (chance[part, None] * 2.0**24).long() * sums[:, -1:] >> 24
            drawn[part] = torch.searchsorted(sums, aim.to(torch.int32), right=True).squeeze(1)
    return drawn.clamp_(max=vocab - 1)  # where a chance is 1
