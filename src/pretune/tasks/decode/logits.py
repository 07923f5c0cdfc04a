"""Logits of items: a row per sequence or per token, in the order of the items.

Sequences are packed into rows; each is computed once, without loss, and filler is removed from the result.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretune.data.inference_batches import pack_batches
from pretune.data.sequences import spread
from pretune.inference.text_model import check_outputs, eval_mode
from pretune.tasks.encode.items import Items

ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished examples, and of all."""

Floats = NDArray[np.float32]


def compute_logits(
    model: nn.Module,
    items: Items,
    *,
    per_token: bool,
    tokens: int,
    precision: torch.dtype | None = None,
    on_progress: ProgressCallback | None = None,
) -> Floats:
    """Return `[S, K]`, or with `per_token` `[T, K]`; a batch has about `tokens` tokens."""
    sequences = replace(items.sequences, labels=None, targets=None)
    device = next(model.parameters()).device
    logits: Floats | None = None
    count_done = 0
    with eval_mode(model), torch.compiler.set_stance("force_eager"):
        for part in pack_batches(sequences, tokens=tokens, device=device.type):
            indices = part.indices
            with torch.autocast(device.type, precision, enabled=precision is not None):
                out = model(part.batch.to(device)).float().cpu()
            # A layout has more cells than sequences, so as many rows as sequences have no filler.
            has_filler = per_token or len(out) != len(indices)
            values = (out[part.token_positions if per_token else part.cells] if has_filler else out).numpy()
            check_outputs(values, "logits")
            size = len(sequences.tokens) if per_token else len(sequences)
            if logits is None:
                logits = np.zeros((size, values.shape[1]), dtype=np.float32)
            position: Any = (
                spread(sequences.offsets[:-1][indices], sequences.lengths[indices]) if per_token else indices
            )
            logits[position] = values
            count_done += len(indices)
            if on_progress is not None:
                on_progress(count_done, len(sequences))
    assert logits is not None
    return logits
