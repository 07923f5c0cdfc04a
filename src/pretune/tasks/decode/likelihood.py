"""Perplexity of the reference answers (dialogue, summaries)."""

from collections.abc import Sequence

import torch

from pretune.adaptation.adapted import ModelWithHead
from pretune.core.errors import UsageError
from pretune.data.inference_batches import pack_batches
from pretune.inference.text_model import eval_mode
from pretune.metrics.numeric import perplexity
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.example import Example


def answer_perplexity(
    model: ModelWithHead,
    encoder: TaskEncoder,
    examples: Sequence[Example],
    *,
    tokens: int = 16384,
    precision: torch.dtype | None = None,
) -> float:
    """Return the perplexity per token of the answers, including their end tokens; of truncated ones, of the rest.

    Models with different vocabularies have different tokens, so they cannot be compared by it.
    """
    if not encoder.is_generative:
        raise UsageError("perplexity needs a model that generates its answers; this one has a head")
    sequences = encoder.encode(examples).sequences
    device = next(model.parameters()).device
    nats = units = 0.0
    with eval_mode(model), torch.compiler.set_stance("force_eager"):
        for _, _, batch in pack_batches(sequences, tokens=tokens, device=device.type):
            with torch.autocast(device.type, precision, enabled=precision is not None):
                loss = model.spec.loss(model, batch.to(device))
            nats, units = nats + float(loss.sum), units + float(loss.count)
    return perplexity(nats, units)
