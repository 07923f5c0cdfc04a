"""A model with a head for a task on it: what is trained, saved and asked.

model = adapt(pt.load("runs/bert"), Classification(classes=2, labels=("bad", "good")))
model(batch)                         # logits, one row for each sequence of the batch
Trainee(model, model.spec)           # for the loop: the head's spec is what it learns
pt.save(model, "runs/sst2")
"""

from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.adaptation.heads.base import TaskHead, use_stored_pooling
from pretune.adaptation.heads.choice import Choice
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.generation import Generation
from pretune.adaptation.heads.multi_task import MultiTaskHeads, Several
from pretune.adaptation.heads.regression import Regression
from pretune.adaptation.scalar_mix import extract_layers
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.models.model import LanguageModel, check_call
from pretune.models.spec import PARTS, ModelShape
from pretune.nn.attention_mask import Backend

SEQUENCE_HEADS = (Classification, Regression, Choice)
"""Heads that read whole sequences."""


class ModelWithHead(nn.Module):
    """Its children are `model` and `head`; a head of None is the model's own over the vocabulary."""

    def __init__(self, model: LanguageModel, head: nn.Module | None, spec: TaskHead) -> None:
        super().__init__()
        self.model, self.head, self.spec = model, head, spec

    @property
    def shape(self) -> ModelShape:
        """What the body is made of."""
        return self.model.shape

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the weights, or None."""
        return self.model.tokenizer

    @property
    def attention_backend(self) -> Backend | None:
        """The backend that is forced, if any."""
        return self.model.attention_backend

    @attention_backend.setter
    def attention_backend(self, backend: Backend | None) -> None:
        self.model.attention_backend = backend

    def states(self, batch: Batch) -> Tensor:
        """The body's states `[N, W]`; where the head mixes all layers, these `[L, N, W]`, without a graph if frozen."""
        if not getattr(self.head, "reads_all_layers", False):
            return self.model.states(batch)
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.model.parameters()):
            found = self.model(batch, hidden=True).hidden
            assert found is not None
            return torch.stack(found)
        return torch.stack(extract_layers(self.model, batch, "last")[0])

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        check_call(arguments, options)
        return super().__call__(*arguments, **options)

    def forward(self, batch: Batch) -> Tensor:
        """Logits, as the head is: one row for each sequence `[S, K]`, in order and without filler, or for each token.

        Rows of tokens are those of the flat batch (`Batch.split` takes them), filler included. NOTE: the head itself
        has a row for each cell, which needs no look at the batch; losses are computed from those.
        """
        states = self.states(batch)
        out: Tensor | None = self.model.logits(states, batch) if self.head is None else self.head(states, batch)
        if out is None:
            raise UsageError("this model has no vocabulary head")
        spec = self.spec.heads[batch.task] if isinstance(self.spec, Several) else self.spec
        return out.index_select(0, batch.find_sequence_cells()) if isinstance(spec, SEQUENCE_HEADS) else out

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the body block by block; the head is small."""
        self.model.compile(*args, **options)


def select_head(model: ModelWithHead, task: int) -> ModelWithHead:
    """A model that has several heads with one of them: the same weights, for predictions and to be saved."""
    if not isinstance(model.spec, Several) or not 0 <= task < len(model.spec.heads):
        raise UsageError(f"this model has no head {task}; heads of several tasks are those of `Several`, from 0")
    assert isinstance(model.head, MultiTaskHeads)
    return ModelWithHead(model.model, model.head.get_head(task), model.spec.heads[task]).train(model.training)


def adapt(model: LanguageModel, head: TaskHead, *, seed: int = 0) -> ModelWithHead:
    """Put a new head on a model in place of those it was pre-trained with; the body's weights are the same tensors.

    The head pools as it says, or as the model's directory does (sentence-transformers), or as the family's paper does.
    The vocabulary head stays where the task uses it. A pooler becomes the first layer of a head that reads through it.
    """
    resolved = use_stored_pooling(head, model).resolve(model.spec)
    made = resolved.build(model, seed=seed)
    body = copy(model)
    body._modules = dict(model._modules)
    dropped: dict[str, Any] = {
        part: None for part in (*PARTS, "span") if part != "head" or not _uses_vocabulary_head(resolved)
    }
    for part in dropped:
        setattr(body, part, None)
    body.spec = replace(model.spec, **dropped)
    return ModelWithHead(body, made, resolved).train(model.training)


def _uses_vocabulary_head(head: TaskHead) -> bool:
    """Whether a task needs the vocabulary head."""
    if isinstance(head, Several):
        return any(map(_uses_vocabulary_head, head.heads))
    return isinstance(head, Generation) or (isinstance(head, Classification) and head.language > 0)
