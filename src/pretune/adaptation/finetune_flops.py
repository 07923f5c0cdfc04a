"""FLOPs of a step in which not everything is trained.

A whole training step is three parts alike: forward, the gradient of what a layer read, the gradient of its weights. The
first is for all layers; the second reaches down to the lowest block of which anything is trained, or to the embeddings;
the third is for the matrices that are trained. What methods add (adapters, low-rank products) is a percent or two, and
left out; a reader of mixed layers is counted.
"""

from collections.abc import Callable

from torch import nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.scalar_mix import ScalarMixHead
from pretune.models.spec import Model
from pretune.training.batch_stats import BatchStats
from pretune.training.flops import build_flops_counter
from pretune.training.optim import split_parts
from pretune.training.optim.groups import HEADS

FLOPS_PER_WEIGHT = 6
"""FLOPs of a weight for each token, trained: two forward, four backward."""


class FlopsCounter:
    """Counts the FLOPs of a run from what it has read; `stage` changes when something was frozen or opened."""

    def __init__(self, model: ModelWithHead, stage: Callable[[], int] = lambda: 0) -> None:
        self.model, self.stage = model, stage
        self._compute_full_flops = build_flops_counter(model.model.spec)
        self._cached_share: tuple[int, float] | None = None
        self._last_flops = self._total = 0.0
        reader = model.head if isinstance(model.head, ScalarMixHead) else None
        self._reader_flops = 0 if reader is None else FLOPS_PER_WEIGHT * count_matrix_weights(reader)
        self._extra_share = 0.0 if reader is None or reader.backwards is None else 1 / 3  # a second body, forward alone

    def __call__(self, stats: BatchStats) -> float:
        """All so far; a tally that holds less than the last one begins anew."""
        whole = self._compute_full_flops(stats)
        if whole < self._last_flops:
            self._last_flops = self._total = 0.0
        self._total += (whole - self._last_flops) * (self.flops_share + self._extra_share)
        self._last_flops = whole
        return self._total + self._reader_flops * stats.tokens

    @property
    def flops_share(self) -> float:
        """Of what training everything takes, as things stand."""
        now = self.stage()
        if self._cached_share is None or self._cached_share[0] != now:
            self._cached_share = now, compute_flops_share(self.model)
        return self._cached_share[1]


def count_matrix_weights(module: nn.Module) -> int:
    """The trained weights that a token is multiplied with."""
    return sum(weight.numel() for weight in module.parameters() if weight.ndim == 2 and weight.requires_grad)


def compute_flops_share(model: ModelWithHead) -> float:
    """How much of a step that trains everything is computed: a third where all is frozen, up to 1.

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
    named = dict(model.named_parameters())
    open_ = {name for name, parameter in named.items() if parameter.requires_grad}
    divided = split_parts(model)
    below = [names for part, names in divided.items() if part != HEADS]  # from the embeddings up
    sizes, shared = _count_block_weights(model.model.spec), model.model.spec.shared
    learnt = [sum(named[name].numel() for name in names if name in open_ and named[name].ndim == 2) for names in below]
    trained = [not open_.isdisjoint(names) for names in below]
    if any(name.startswith("model.prompt") for name in open_):  # it stands before the first block
        trained[0] = True
    if not any(trained):
        return 1 / 3
    if shared or len(below) < len(sizes):  # layers with the same weights: from below, and all of them or few
        return 1.0 if sum(learnt) > sum(sizes) / max(len(sizes), 1) / 2 else 2 / 3
    blocks = len(below) - len(sizes)  # where they begin
    reached = sum(sizes[max(trained.index(True) - blocks, 0) :])
    weights = sum(min(own, size) for own, size in zip(learnt[blocks:], sizes, strict=True))
    return (1 + (reached + weights) / sum(sizes)) / 3


def _count_block_weights(spec: Model) -> list[int]:
    """The matrices of every block, from below, in the order of a model's parts."""
    found = []
    for stack in spec.stacks:
        for block in stack.layers:
            cross = block.cross.count_weights(width=spec.width) if block.cross else 0
            own = block.attention.count_weights(width=spec.width) + block.feedforward.count_weights(width=spec.width)
            found.append(own + cross)
    return found
