"""Heads and adapters for custom training loops: `pt.add_head`, `pt.add_adapter`.

model = pt.add_head(pt.load("runs/bert"), "classification", labels=["bad", "good"])
pt.add_adapter(model, pt.LoRA(rank=8))
optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-3)
loss = model.loss(model.tokenizer(["a lovely film", "dull"], labels=[1, 0]))
(loss.sum / loss.count).backward()
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from torch import nn

from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads import HEADS
from pretune.adaptation.peft.base import PeftMethod
from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel

M = TypeVar("M", bound=LanguageModel | ModelWithHead)
HeadKind = Literal["classification", "multi_label", "regression", "tagging", "span", "choice", "generation"]
HEADS_WITH_LABELS = ("classification", "multi_label", "tagging")
"""Heads that need the names of their labels."""


def add_head(
    model: nn.Module,
    kind: HeadKind,
    *,
    labels: Sequence[str] | None = None,
    dropout: float | None = None,
    seed: int = 0,
) -> ModelWithHead:
    """Return a model with a new task head; its body has the same weights as `model`, which is unchanged.

    Args:
        model: A pre-trained model, as returned by `pt.load`.
        kind: "classification", "multi_label", "regression", "tagging", "span", "choice" or "generation".
        labels: The names of the classes or tags, in the order of their numbers (the first two, and tagging).
        dropout: Dropout before the head; None: the head's default.
        seed: Seed of the new weights.

    Raises:
        UsageError: an unknown kind, missing labels, labels that the head does not have, or a model that has a head.
    """
    if not isinstance(model, LanguageModel):
        raise UsageError(f"add_head takes a model as returned by pt.load, got {type(model).__name__}")
    head = HEADS.get(kind)
    settings: dict[str, Any] = {} if dropout is None else {"dropout": dropout}
    if kind in HEADS_WITH_LABELS:
        if not labels:
            raise UsageError(f"a {kind} head needs labels, such as labels=['bad', 'good']")
        settings |= {"classes": len(labels), "labels": tuple(labels)}
    elif labels is not None:
        raise UsageError(f"a {kind} head has no labels; remove labels")
    return adapt(model, head(**settings), seed=seed)


def add_adapter(model: M, method: PeftMethod, *, seed: int = 0) -> M:
    """Apply a parameter-efficient method to a model in place, and return the same model.

    All other parameters of the body are frozen; those of a task head stay trainable.

    Args:
        model: A pre-trained model, with or without a head (`pt.add_head`).
        method: The method, such as `pt.LoRA(rank=8)`.
        seed: Seed of the new weights.

    Raises:
        UsageError: a model that has an adapter already.
    """
    if not isinstance(model, LanguageModel | ModelWithHead):
        raise UsageError(f"add_adapter takes a model as returned by pt.load, got {type(model).__name__}")
    method.apply(model.model if isinstance(model, ModelWithHead) else model, seed=seed)
    return model
