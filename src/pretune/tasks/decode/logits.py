"""Logits of items: a row per sequence or per token, in the order of the items.

Sequences are packed into rows; each is computed once, without loss, and filler is removed from the result.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core.types import Batch
from pretune.data.batch_shape import BatchShape
from pretune.data.layout import lay_out
from pretune.data.plan import build_plan
from pretune.data.sequences import Ints, Sequences, spread
from pretune.inference.finite_check import check_outputs
from pretune.inference.text_model import eval_mode
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
        for indices, row, batch in iter_batches(sequences, tokens):
            with torch.autocast(device.type, precision, enabled=precision is not None):
                out = model(batch.to(device))
            values = _drop_filler(out, batch, row, per_token)
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


def iter_batches(sequences: Sequences, tokens: int) -> Iterator[tuple[Ints, Ints, Batch]]:
    """Yield all sequences in batches of about `tokens` tokens: their indices, the row of each, and the batch."""
    source = None if sequences.source is None else sequences.source.lengths
    length, source_length = int(sequences.lengths.max()), None if source is None else int(source.max())
    shape = BatchShape(rows=max(tokens // (length + (source_length or 0)), 1), length=length, source=source_length)
    plan = build_plan(sequences.lengths, shape, seed=0, epoch=0, source=source)
    for number in range(plan.batch_count):
        indices, row = plan.get_batch(number)
        yield indices, row, lay_out(sequences.take(indices), row, replace(shape, rows=int(row[-1]) + 1))


def _drop_filler(out: Tensor, batch: Batch, row: Ints, per_token: bool) -> Floats:
    """Return the rows of logits of the sequences, or of their tokens, without filler."""
    values = out.float().cpu()
    if not per_token and len(values) == len(row):  # rows of sequences already; a layout has more cells than those
        return values.numpy()
    mask = batch.sequence >= 0 if per_token else torch.from_numpy(np.arange(len(row)) + row)
    return values[mask].numpy()
