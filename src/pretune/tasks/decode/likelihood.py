"""How likely a model finds the right answers: the perplexity of what should have been written (dialogue, summaries)."""

from collections.abc import Sequence

import torch

from pretune.adaptation.adapted import ModelWithHead
from pretune.core.errors import UsageError
from pretune.inference.text_model import eval_mode
from pretune.metrics.perplexity import perplexity
from pretune.tasks.decode.logits import iter_batches
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
    """Per token of the answers, the end of each included, given what is read before; of those that were cut the rest.

    Models with other vocabularies have other tokens, and cannot be compared by it.
    """
    if not encoder.is_generative:
        raise UsageError("this model does not write its answers, so it finds no text likely; ask for its labels")
    sequences = encoder.encode(examples).sequences
    device = next(model.parameters()).device
    nats = units = 0.0
    with eval_mode(model), torch.compiler.set_stance("force_eager"):
        for _, _, batch in iter_batches(sequences, tokens):
            with torch.autocast(device.type, precision, enabled=precision is not None):
                loss = model.spec.loss(model, batch.to(device))
            nats, units = nats + float(loss.sum), units + float(loss.count)
    return perplexity(nats, units)
