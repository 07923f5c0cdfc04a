"""What a model says of items: its logits for every sequence, or for every token, in the order of the items.

Sequences are packed into rows and each is read once, with no loss and no filler in the answer.
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
from pretune.data.ragged import Ints, spread
from pretune.data.sequences import Sequences
from pretune.inference.finite_check import check_outputs
from pretune.inference.text_model import eval_mode
from pretune.tasks.encode.items import Items

ProgressCallback = Callable[[int, int], None]
"""Told how many are done, and of how many."""

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
    """`[S, K]`, or with `every` `[T, K]` where the head reads every token; about `tokens` tokens in a batch."""
    sequences = replace(items.sequences, labels=None, targets=None)
    device = next(model.parameters()).device
    found: Floats | None = None
    done = 0
    with eval_mode(model), torch.compiler.set_stance("force_eager"):
        for which, row, batch in iter_batches(sequences, tokens):
            with torch.autocast(device.type, precision, enabled=precision is not None):
                out = model(batch.to(device))
            here = _drop_filler(out, batch, row, per_token)
            check_outputs(here, "logits")
            size = len(sequences.tokens) if per_token else len(sequences)
            if found is None:
                found = np.zeros((size, here.shape[1]), dtype=np.float32)
            at: Any = spread(sequences.offsets[:-1][which], sequences.lengths[which]) if per_token else which
            found[at] = here
            done += len(which)
            if on_progress is not None:
                on_progress(done, len(sequences))
    assert found is not None
    return found


def iter_batches(sequences: Sequences, tokens: int) -> Iterator[tuple[Ints, Ints, Batch]]:
    """All sequences, about `tokens` tokens at a time: which these are, the row of each, and the batch."""
    source = None if sequences.source is None else sequences.source.lengths
    room, wide = int(sequences.lengths.max()), None if source is None else int(source.max())
    shape = BatchShape(rows=max(tokens // (room + (wide or 0)), 1), length=room, source=wide)
    plan = build_plan(sequences.lengths, shape, seed=0, epoch=0, source=source)
    for number in range(plan.batch_count):
        which, row = plan.get_batch(number)
        yield which, row, lay_out(sequences.take(which), row, replace(shape, rows=int(row[-1]) + 1))


def _drop_filler(out: Tensor, batch: Batch, row: Ints, per_token: bool) -> Floats:
    """The rows of logits that are of sequences, or of their tokens; filler is left out."""
    values = out.float().cpu()
    if not per_token and len(values) == len(row):  # of sequences already; a layout has more cells than those
        return values.numpy()
    where = batch.sequence >= 0 if per_token else torch.from_numpy(np.arange(len(row)) + row)
    return values[where].numpy()
