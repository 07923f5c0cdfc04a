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
from pretune.data.batch_shape import Shape
from pretune.data.layout import lay_out
from pretune.data.plan import make_plan
from pretune.data.ragged import Ints, spread
from pretune.data.sequences import Sequences
from pretune.inference.finite_check import check_outputs
from pretune.inference.text_model import reading
from pretune.tasks.encode.items import Items

Tell = Callable[[int, int], None]
"""Told how many are done, and of how many."""

Floats = NDArray[np.float32]


def logits_of(
    model: nn.Module,
    items: Items,
    *,
    every: bool,
    tokens: int,
    precision: torch.dtype | None = None,
    tell: Tell | None = None,
) -> Floats:
    """`[S, K]`, or with `every` `[T, K]` where the head reads every token; about `tokens` tokens in a batch."""
    sequences = replace(items.sequences, labels=None, targets=None)
    device = next(model.parameters()).device
    found: Floats | None = None
    done = 0
    with reading(model), torch.compiler.set_stance("force_eager"):
        for which, row, batch in packed(sequences, tokens):
            with torch.autocast(device.type, precision, enabled=precision is not None):
                out = model(batch.to(device))
            here = _real(out, batch, row, every)
            check_outputs(here, "logits")
            size = len(sequences.tokens) if every else len(sequences)
            if found is None:
                found = np.zeros((size, here.shape[1]), dtype=np.float32)
            at: Any = spread(sequences.offsets[:-1][which], sequences.lengths[which]) if every else which
            found[at] = here
            done += len(which)
            if tell is not None:
                tell(done, len(sequences))
    assert found is not None
    return found


def packed(sequences: Sequences, tokens: int) -> Iterator[tuple[Ints, Ints, Batch]]:
    """All sequences, about `tokens` tokens at a time: which these are, the row of each, and the batch."""
    source = None if sequences.source is None else sequences.source.lengths
    room, wide = int(sequences.lengths.max()), None if source is None else int(source.max())
    shape = Shape(rows=max(tokens // (room + (wide or 0)), 1), length=room, source=wide)
    plan = make_plan(sequences.lengths, shape, seed=0, epoch=0, source=source)
    for number in range(plan.batches):
        which, row = plan.batch(number)
        yield which, row, lay_out(sequences.take(which), row, replace(shape, rows=int(row[-1]) + 1))


def _real(out: Tensor, batch: Batch, row: Ints, every: bool) -> Floats:
    """The rows of logits that are of sequences, or of their tokens; filler is left out."""
    values = out.float().cpu()
    if not every and len(values) == len(row):  # of sequences already; a layout has more cells than those
        return values.numpy()
    where = batch.sequence >= 0 if every else torch.from_numpy(np.arange(len(row)) + row)
    return values[where].numpy()
