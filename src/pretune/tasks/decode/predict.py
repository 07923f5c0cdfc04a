"""Predictions of a model for the examples of any task."""

from collections.abc import Callable, Sequence

import torch

from pretune.adaptation.adapted import ModelWithHead
from pretune.core.errors import UsageError
from pretune.tasks.decode import labels
from pretune.tasks.decode.generated import generate_texts
from pretune.tasks.decode.logits import ProgressCallback, compute_logits
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.decode.spans import predict_spans
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.example import Example

BATCH_TOKENS = 16384
"""Tokens of a batch."""

_PREDICTORS: dict[str, Callable[..., list[Prediction]]] = {
    "classification": labels.predict_classes,
    "pair": labels.predict_classes,
    "regression": labels.predict_values,
    "tagging": labels.predict_tags,
    "choice": labels.predict_choices,
    "span": predict_spans,
}


def predict(
    model: ModelWithHead,
    encoder: TaskEncoder,
    examples: Sequence[Example],
    *,
    tokens: int = BATCH_TOKENS,
    precision: torch.dtype | None = None,
    beams: int = 1,
    on_progress: ProgressCallback | None = None,
) -> list[Prediction]:
    """Return one prediction per example, in order; labels are not used. `beams` is for generated answers."""
    if beams < 1 or (beams > 1 and not encoder.is_generative):
        raise UsageError(f"beams must be >= 1, and 1 for a model that does not generate its answers, got {beams}")
    if encoder.is_generative:
        return generate_texts(model, encoder, examples, beams=beams, precision=precision, on_progress=on_progress)
    items, per_token = encoder.encode(examples, training=False), encoder.task.kind in ("tagging", "span")
    logits = compute_logits(
        model, items, per_token=per_token, tokens=tokens, precision=precision, on_progress=on_progress
    )
    return _PREDICTORS[encoder.task.kind](encoder, examples, items, logits)
