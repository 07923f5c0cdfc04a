"""A pre-trained model with a task head: the module that is trained, saved and used for prediction.

model = adapt(pt.load("runs/bert"), Classification(classes=2, labels=("bad", "good")))
model(batch)                         # logits, one row per sequence of the batch
ModelWithLoss(model, model.spec)     # for the training loop: the head's spec is the objective
pt.save(model, "runs/sst2")
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from pretune.adaptation.heads import HEADS
from pretune.adaptation.heads.base import TaskHead, use_stored_pooling
from pretune.adaptation.heads.choice import Choice
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.generation import Generation
from pretune.adaptation.heads.multi_label import MultiLabel
from pretune.adaptation.heads.multi_task import MultiTask, MultiTaskHeads
from pretune.adaptation.heads.regression import Regression
from pretune.adaptation.peft.base import PeftMethod
from pretune.adaptation.scalar_mix import extract_layers
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.models.model import LanguageModel, check_call
from pretune.models.spec import PARTS, ModelShape
from pretune.nn.attention_mask import Backend
from pretune.text.tokenizer import Tokenizer

SEQUENCE_HEADS = (Classification, MultiLabel, Regression, Choice)
"""Heads with one output row per sequence."""


class ModelWithHead(nn.Module):
    """A model (child `model`) and a task head (child `head`); with `head=None` the model's vocabulary head is used."""

    def __init__(self, model: LanguageModel, head: nn.Module | None, spec: TaskHead) -> None:
        super().__init__()
        self.model, self.head, self.spec = model, head, spec

    @property
    def shape(self) -> ModelShape:
        """Shape of the body: encoder, decoder, encoder-decoder, …"""
        return self.model.shape

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer stored with the weights, or None."""
        return self.model.tokenizer

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters that require gradients, for an optimizer."""
        return (parameter for parameter in self.parameters() if parameter.requires_grad)

    def loss(self, batch: Batch) -> Loss:
        """Return the head's summed loss over a batch with labels; divide `sum` by `count` for the mean."""
        return self.spec.loss(self, batch)

    @property
    def attention_backend(self) -> Backend | None:
        """Forced attention backend, or None."""
        return self.model.attention_backend

    @attention_backend.setter
    def attention_backend(self, backend: Backend | None) -> None:
        self.model.attention_backend = backend

    def states(self, batch: Batch) -> Tensor:
        """Return the body's states `[N, W]`.

        For a head over all layers: these `[L, N, W]`, computed without a graph if the body is frozen.
        """
        if not getattr(self.head, "reads_all_layers", False):
            return self.model.states(batch)
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.model.parameters()):
            hidden = self.model(batch, hidden=True).hidden
            assert hidden is not None
            return torch.stack(hidden)
        return torch.stack(extract_layers(self.model, batch, "last")[0])

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        check_call(arguments, options)
        return super().__call__(*arguments, **options)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits: one row per sequence `[S, K]`, in order and without filler, or one row per token.

        Token rows are those of the flat batch, filler included (`Batch.split` separates them). NOTE: the head module
        itself returns a row per cell, which is independent of the batch's content; losses are computed from those rows.
        """
        states = self.states(batch)
        out: Tensor | None = self.model.logits(states, batch) if self.head is None else self.head(states, batch)
        if out is None:
            raise UsageError("this model has no vocabulary head")
        spec = self.spec.heads[batch.task] if isinstance(self.spec, MultiTask) else self.spec
        return out.index_select(0, batch.find_sequence_cells()) if isinstance(spec, SEQUENCE_HEADS) else out

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the body block by block; the head is too small to gain from it."""
        self.model.compile(*args, **options)


def select_head(model: ModelWithHead, task: int) -> ModelWithHead:
    """Return a model with one head out of several, sharing the weights, for prediction or saving."""
    if not isinstance(model.spec, MultiTask) or not 0 <= task < len(model.spec.heads):
        raise UsageError(f"this model has no head {task}; heads of several tasks are numbered from 0 (`MultiTask`)")
    assert isinstance(model.head, MultiTaskHeads)
    return ModelWithHead(model.model, model.head.get_head(task), model.spec.heads[task]).train(model.training)


def adapt(model: LanguageModel, head: TaskHead, *, seed: int = 0) -> ModelWithHead:
    """Return a model with a new task head instead of its pre-training heads; the body's weights are shared, not copied.

    Pooling: the head's own setting, else that of the model's directory (sentence-transformers), else that of the
    family's paper. The vocabulary head is kept if the task uses it. A pooler becomes the first layer of a head that
    reads through it.
    """
    head_spec = use_stored_pooling(head, model).resolve(model.spec)
    module = head_spec.build(model, seed=seed)
    body = copy(model)
    body._modules = dict(model._modules)
    pretraining_parts: dict[str, Any] = {
        part: None for part in (*PARTS, "span") if part != "head" or not _uses_vocabulary_head(head_spec)
    }
    for part in pretraining_parts:
        setattr(body, part, None)
    body.spec = replace(model.spec, **pretraining_parts)
    return ModelWithHead(body, module, head_spec).train(model.training)


def _uses_vocabulary_head(head: TaskHead) -> bool:
    """Return True if a task needs the vocabulary head."""
    if isinstance(head, MultiTask):
        return any(map(_uses_vocabulary_head, head.heads))
    return isinstance(head, Generation) or (isinstance(head, Classification) and head.lm_loss_weight > 0)


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
