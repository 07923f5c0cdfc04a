"""Sampling of tokens from the vocabulary softmax, a block of rows at a time.

The caller passes one random number per row, so that a sample depends only on its row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.loss import BLOCK_BYTES, _pad_to_alignment


@torch.no_grad()
def sample_tokens(states: Tensor, weight: Tensor, bias: Tensor | None, chance: Tensor) -> Tensor:
    """Return the first token `[M]` whose cumulative softmax(states weight^T + bias) exceeds `chance`.

    With `chance` `[M]` uniform in [0, 1) this samples from the softmax. Products run in the autocast precision. No
    gradient, and no synchronization with the device.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    vocab = weight.shape[0]
    with torch.autocast(device, enabled=False):
        rows, table = states.to(dtype), _pad_to_alignment(weight.to(dtype))
        shift = None if bias is None else _pad_to_alignment(bias.to(dtype))
        size = max(BLOCK_BYTES.get(device, BLOCK_BYTES["cpu"]) // (8 * table.shape[0]), 64)  # two numbers of four bytes
        tokens = torch.empty(rows.shape[0], dtype=torch.long, device=rows.device)
        for start in range(0, rows.shape[0], size):
            part = slice(start, start + size)
            logits = F.linear(rows[part], table, shift)[:, :vocab].float()
            # NOTE: integers, because cumulative sums of floats on a GPU are neither deterministic nor monotonic.
            sums = (torch.softmax(logits, dim=1) * 2.0**30).to(torch.int32).cumsum(1, dtype=torch.int32)
            aim = (chance[part, None] * 2.0**24).long() * sums[:, -1:] >> 24
            tokens[part] = torch.searchsorted(sums, aim.to(torch.int32), right=True).squeeze(1)
    return tokens.clamp_(max=vocab - 1)  # for a chance of 1
