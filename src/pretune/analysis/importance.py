"""Importance of tokens for a prediction: gradient x input (Shrikumar et al., 2016; Li et al., 2016).

    result = compute_importance(predictor.model, predictor.encoder, example)
    result.tokens, result.scores        # positive: the token raises the logit of the prediction

The score of a token is the product of its embedding with the gradient of the predicted logit: to first order, how much
the embedding adds to the logit. In an encoder-decoder it is the sum over both copies of the text.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.analysis.words import format_tokens
from pretune.core.errors import UsageError
from pretune.data.layout import pack_in_order
from pretune.data.sequences import Sequences
from pretune.inference.text_model import check_outputs
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import PredictedLogits
from pretune.tasks.example import Example
from pretune.tasks.predict import BATCH_TOKENS, compute_logits
from pretune.tasks.types import get_type


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenImportance:
    """Scores of the tokens of an input, for the logit of a label (`name`)."""

    name: str
    tokens: list[str]
    scores: list[float]
    special: list[bool]  # special tokens that stand for no text


def compute_importance(
    model: ModelWithHead, encoder: TaskEncoder, example: Example, *, label: str | None = None
) -> TokenImportance:
    """Return the importance of every token of an example for its prediction, or for another label.

    A long passage has several windows; the tokens are those of the window with the answer.

    Raises:
        UsageError: The model generates its answers, or its predictions are not single logits.
    """
    check_explainable(encoder)
    items, outputs = encoder.encode([example], training=False), get_type(encoder.task).outputs
    logits = compute_logits(model, items, per_token=encoder.per_token, tokens=BATCH_TOKENS)
    target = outputs.select_logits(encoder.rules, example, items, logits, label)
    sequence = replace(items.sequences, labels=None, targets=None).take(np.array([target.sequence]))
    scores = _compute_scores(model, sequence, target)
    tokenizer, text = encoder.rules.tokenizer, sequence if sequence.source is None else sequence.source
    ids = text.tokens.tolist()
    unknown = tokenizer.special.get("unk")
    special = [token in tokenizer.special_ids and token != unknown for token in ids]
    return TokenImportance(
        name=target.name,
        tokens=format_tokens(tokenizer, ids[encoder.slots :]),
        scores=scores[encoder.slots :],
        special=special[encoder.slots :],
    )


def check_explainable(encoder: TaskEncoder) -> None:
    """Raise a UsageError if no logits stand for a prediction."""
    if encoder.is_generative:
        raise UsageError("it generates its answers, so no logit stands for an answer")
    if not get_type(encoder.task).outputs.is_explainable:
        raise UsageError(f"no logits stand for a prediction of type '{encoder.task.kind}'")


def _compute_scores(model: ModelWithHead, sequence: Sequences, target: PredictedLogits) -> list[float]:
    """Return gradient x input of every token of a sequence; of both copies of an encoder-decoder's input."""
    embeddings: list[Tensor] = []

    def detach(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    device = next(model.parameters()).device
    is_training = model.training
    handle = model.model.tokens.register_forward_hook(detach)
    model.eval()
    try:
        with torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            logits = model(pack_in_order(sequence).to(device))
            value = logits[list(target.rows), list(target.columns)].float().sum()
            if not value.requires_grad:
                raise UsageError("the layers of this model are frozen features, so no gradient reaches its input")
            gradients = torch.autograd.grad(value, embeddings)
    finally:
        handle.remove()
        model.train(is_training)
    products = [
        (rows.detach() * gradient).float().sum(-1) for rows, gradient in zip(embeddings, gradients, strict=True)
    ]
    length = int((sequence if sequence.source is None else sequence.source).lengths[0])
    total = products[0][:length]
    if sequence.source is not None:  # the decoder reads the text, without virtual tokens, behind the start token
        slots = length - int(sequence.lengths[0])
        total = total + F.pad(products[1][1 : length - slots], (slots, 1))
    check_outputs(total, "gradients")
    scores: list[float] = total.cpu().tolist()
    return scores
