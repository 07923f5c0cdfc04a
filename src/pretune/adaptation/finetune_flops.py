"""FLOPs of a training step with frozen parameters.

A full training step has three parts of equal cost: forward, gradients of the activations, gradients of the weights. The
first is computed for all layers, the second down to the lowest trained block (or the embeddings), the third for trained
matrices only. What methods add (adapters, low-rank products) is a percent or two and is ignored; a scalar-mix head is
counted.
"""

from collections.abc import Callable

from torch import nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.scalar_mix import ScalarMixHead
from pretune.models.spec import Model
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import build_flops_counter
from pretune.training.optim import split_parts
from pretune.training.optim.base import HEADS

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
    >>> from pretune.adaptation.heads.regression import Regression
    >>> model = adapt(build(resolve("bert-tiny", {})), Regression())
    >>> round(compute_flops_share(model), 3), freeze(model, LastOnly()) and round(compute_flops_share(model), 3)
    (1.0, 0.667)
    >>> freeze(model, Frozen()) and round(compute_flops_share(model), 3)
    0.333
    """
    parameters = dict(model.named_parameters())
    trainable_names = {name for name, parameter in parameters.items() if parameter.requires_grad}
    parts = split_parts(model)
    body_parts = [names for part, names in parts.items() if part != HEADS]  # from the embeddings up
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
        for block in stack.layers:
            cross_weights = block.cross.count_weights(width=spec.width) if block.cross else 0
            self_weights = block.attention.count_weights(width=spec.width) + block.feedforward.count_weights(
                width=spec.width
            )
            counts.append(self_weights + cross_weights)
    return counts
