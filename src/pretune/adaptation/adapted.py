"""A pre-trained model with a task head: the module that is trained, saved and used for prediction.

model = adapt(pt.load("runs/bert"), Classification(classes=2, labels=("bad", "good")))
model(batch)                         # logits, one row per sequence of the batch
ModelWithLoss(model, model.spec)     # for the training loop: the head's spec is the objective
pt.save(model, "runs/sst2")

`FlopsCounter` counts the FLOPs of its training. A full training step has three parts of equal cost: forward, gradients
of the activations, gradients of the weights. The first is computed for all layers, the second down to the lowest
trained block (or the embeddings), the third for trained matrices only. What methods add (adapters, low-rank products)
is a percent or two and is ignored; a scalar-mix head is counted.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from pretune.adaptation.heads import HEADS
from pretune.adaptation.heads.base import TaskHead, use_stored_pooling
from pretune.adaptation.heads.multi_task import MultiTask, MultiTaskHeads
from pretune.adaptation.heads.sequence import Choice, Classification, MultiLabel, Regression
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.peft.base import PeftMethod
from pretune.adaptation.scalar_mix import ScalarMixHead, extract_layers
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.models.model import LanguageModel, check_call
from pretune.models.spec import PARTS, Model, ModelShape
from pretune.nn.attention_mask import Backend
from pretune.nn.recurrent_stack import Recurrent
from pretune.text.tokenizer import Tokenizer
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import build_flops_counter
from pretune.training.optim import split_parts
from pretune.training.optim.base import HEADS_PART

SEQUENCE_HEADS = (Classification, MultiLabel, Regression, Choice)
"""Heads with one output row per sequence."""


class ModelWithHead(nn.Module):
    """A model (child `model`) and a task head (child `head`); with `head=None` the model's vocabulary head is used."""

    def __init__(self, model: LanguageModel, head: nn.Module | None, spec: TaskHead) -> None:
        super().__init__()
        self.model, self.head, self.spec = model, head, spec
        self.has_frozen_body = False  # the body computes features: in training, it has no dropout either

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.has_frozen_body:
            self.model.eval()
        return self

    @property
    def shape(self) -> ModelShape:
        """Shape of the body: encoder, decoder, encoder-decoder, …"""
        return self.model.shape

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer stored with the weights, which knows the labels of the head, or None."""
        labels = getattr(self.spec, "labels", ())
        tokenizer = self.model.tokenizer
        return tokenizer.with_labels(labels) if tokenizer is not None and labels else tokenizer

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

        For a head over all layers: these `[L, N, W]`, computed without a graph if the body is frozen. For a batch with
        features these, without running the body.
        """
        if batch.features is not None:
            return batch.features
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
    view = ModelWithHead(model.model, model.head.get_head(task), model.spec.heads[task])
    view.has_frozen_body = model.has_frozen_body
    return view.train(model.training)


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
HeadKind = Literal[
    "classification", "multi_label", "regression", "tagging", "dependency", "span", "choice", "generation"
]
HEADS_WITH_LABELS = ("classification", "multi_label", "tagging", "dependency")
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
        kind: "classification", "multi_label", "regression", "tagging", "dependency", "span", "choice" or "generation".
        labels: The names of the classes, tags or relations, in the order of their numbers (the first two, tagging and
            dependency).
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


FLOPS_PER_WEIGHT = 6
"""FLOPs per trained weight and token: two forward, four backward."""


class FlopsCounter:
    """Counter of a run's FLOPs from its `BatchStats`; `stage` changes whenever parameters are frozen or unfrozen."""

    def __init__(self, model: ModelWithHead, stage: Callable[[], int] = lambda: 0) -> None:
        self.model, self.stage = model, stage
        self._compute_full_flops = build_flops_counter(model.model.spec)
        self._cached_share: tuple[int, float] | None = None
        self._last_flops = self._total = 0.0
        reader = model.head if isinstance(model.head, ScalarMixHead) else None
        self._reader_flops = 0 if reader is None else FLOPS_PER_WEIGHT * count_matrix_weights(reader)
        self._extra_share = 0.0 if reader is None or reader.backwards is None else 1 / 3  # a second body, forward only

    def __call__(self, stats: BatchStats) -> float:
        """Return the FLOPs up to now; stats smaller than the last ones start a new count."""
        full_flops = self._compute_full_flops(stats)
        if full_flops < self._last_flops:
            self._last_flops = self._total = 0.0
        self._total += (full_flops - self._last_flops) * (self.flops_share + self._extra_share)
        self._last_flops = full_flops
        return self._total + self._reader_flops * stats.tokens

    @property
    def flops_share(self) -> float:
        """Current FLOPs of a step relative to training all weights."""
        stage = self.stage()
        if self._cached_share is None or self._cached_share[0] != stage:
            self._cached_share = stage, compute_flops_share(self.model)
        return self._cached_share[1]


def count_matrix_weights(module: nn.Module) -> int:
    """Return the number of trained weights in matrices."""
    return sum(weight.numel() for weight in module.parameters() if weight.ndim == 2 and weight.requires_grad)


def compute_flops_share(model: ModelWithHead) -> float:
    """Return the FLOPs of a step relative to training all weights: from 1/3 (all frozen) to 1.

    >>> from pretune.models.model import build
    >>> from pretune.models.catalog import resolve
    >>> from pretune.adaptation.adapted import adapt
    >>> from pretune.adaptation.freeze import Frozen, LastOnly, freeze
    >>> from pretune.adaptation.heads.sequence import Regression
    >>> model = adapt(build(resolve("bert-tiny", {})), Regression())
    >>> round(compute_flops_share(model), 3), freeze(model, LastOnly()) and round(compute_flops_share(model), 3)
    (1.0, 0.667)
    >>> freeze(model, Frozen()) and round(compute_flops_share(model), 3)
    0.333
    """
    parameters = dict(model.named_parameters())
    trainable_names = {name for name, parameter in parameters.items() if parameter.requires_grad}
    parts = split_parts(model)
    body_parts = [names for part, names in parts.items() if part != HEADS_PART]  # from the embeddings up
    sizes, shares_weights = _count_block_weights(model.model.spec), model.model.spec.shared
    trainable_weights = [
        sum(parameters[name].numel() for name in names if name in trainable_names and parameters[name].ndim == 2)
        for names in body_parts
    ]
    is_trained = [not trainable_names.isdisjoint(names) for names in body_parts]
    if any(name.startswith("model.prompt") for name in trainable_names):  # it precedes the first block
        is_trained[0] = True
    if not any(is_trained):
        return 1 / 3
    if shares_weights or len(body_parts) < len(sizes):  # one set of weights for all layers: all trained, or few
        return 1.0 if sum(trainable_weights) > sum(sizes) / max(len(sizes), 1) / 2 else 2 / 3
    first_block = len(body_parts) - len(sizes)  # where they begin
    backward_weights = sum(sizes[max(is_trained.index(True) - first_block, 0) :])
    weights = sum(min(trainable, size) for trainable, size in zip(trainable_weights[first_block:], sizes, strict=True))
    return (1 + (backward_weights + weights) / sum(sizes)) / 3


def _count_block_weights(spec: Model) -> list[int]:
    """Return the matrix weights of every block, from the bottom up, in the order of the model's parts."""
    counts = []
    for stack in spec.stacks:
        if isinstance(stack, Recurrent):
            counts += stack.count_weights(width=spec.width)
            continue
        for block in stack.layers:
            cross_weights = block.cross.count_weights(width=spec.width) if block.cross else 0
            self_weights = block.attention.count_weights(width=spec.width) + block.feedforward.count_weights(
                width=spec.width
            )
            counts.append(self_weights + cross_weights)
    return counts
