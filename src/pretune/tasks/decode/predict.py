"""Predictions of a model for examples, whatever the task."""

from collections.abc import Callable, Sequence

import torch

from pretune.adaptation.adapted import Adapted
from pretune.core.errors import UsageError
from pretune.tasks.decode import labels
from pretune.tasks.decode.generated import texts
from pretune.tasks.decode.logits import Tell, logits_of
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.decode.spans import spans
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.example import Example

TOKENS = 16384
"""Of a batch."""

_KINDS: dict[str, Callable[..., list[Prediction]]] = {
    "classification": labels.classes,
    "pair": labels.classes,
    "regression": labels.values,
    "tagging": labels.tags,
    "choice": labels.options,
    "span": spans,
}


def predict(
    model: Adapted,
    encoder: TaskEncoder,
    examples: Sequence[Example],
    *,
    tokens: int = TOKENS,
    precision: torch.dtype | None = None,
    beams: int = 1,
    tell: Tell | None = None,
) -> list[Prediction]:
    """One prediction for each example, in order; labels are not looked at. `beams` is for answers that are written."""
    if beams < 1 or (beams > 1 and not encoder.written):
        raise UsageError(f"beams {beams}: at least 1, and more than one only where answers are written")
    if encoder.written:
        return texts(model, encoder, examples, beams=beams, precision=precision, tell=tell)
    items, every = encoder.encode(examples, training=False), encoder.task.kind in ("tagging", "span")
    logits = logits_of(model, items, every=every, tokens=tokens, precision=precision, tell=tell)
    return _KINDS[encoder.task.kind](encoder, examples, items, logits)
