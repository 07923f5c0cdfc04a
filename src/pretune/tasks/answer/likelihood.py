"""How likely a model finds the right answers: the perplexity of what should have been written (dialogue, summaries)."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pretune.adapt.adapted import Adapted
from pretune.core.errors import UsageError
from pretune.data.layout import lay_out
from pretune.data.plan import make_plan
from pretune.data.shape import Shape
from pretune.metrics.perplexity import perplexity
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.example import Example
from pretune.use.text import reading


def answer_perplexity(
    model: Adapted,
    encoder: TaskEncoder,
    examples: Sequence[Example],
    *,
    tokens: int = 16384,
    precision: torch.dtype | None = None,
) -> float:
    """Per token of the answers, the end of each included, given what is read before; of those that were cut the rest.

    Models with other vocabularies have other tokens, and cannot be compared by it.
    """
    if not encoder.written:
        raise UsageError("this model does not write its answers, so it finds no text likely; ask for its labels")
    sequences = encoder.encode(examples).sequences
    source = None if sequences.source is None else sequences.source.lengths
    room, wide = int(sequences.lengths.max()), None if source is None else int(source.max())
    shape = Shape(rows=max(tokens // (room + (wide or 0)), 1), length=room, source=wide)
    plan = make_plan(sequences.lengths, shape, seed=0, epoch=0, source=source)
    device = next(model.parameters()).device
    nats = units = 0.0
    with reading(model), torch.compiler.set_stance("force_eager"):
        for number in range(plan.batches):
            which, row = plan.batch(number)
            batch = lay_out(sequences.take(which), row, replace(shape, rows=int(row[-1]) + 1)).to(device)
            with torch.autocast(device.type, precision, enabled=precision is not None):
                loss = model.spec.loss(model, batch)
            nats, units = nats + float(loss.sum), units + float(loss.count)
    return perplexity(nats, units)
