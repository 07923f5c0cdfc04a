"""Features of a frozen model, computed once instead of in every epoch and evaluation.

    if can_cache(adapted_model, tuning, task_data):
        items, flops = add_features(model, items, precision)     # the model then skips its body

The body of a frozen model has no dropout, so that its states depend on the text only. Heads of sequences store a pooled
vector per sequence, heads of tokens the states of all tokens. Features of the training examples are computed in the
batches of prediction, those without a cache in the batches of training: they are equal up to rounding, and so are the
trained weights. Predictions from given weights are the same to the bit.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from pretune.adaptation.adapted import FLOPS_PER_WEIGHT, ModelWithHead, count_matrix_weights
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core import log
from pretune.core.log import format_count
from pretune.runs.finetune.adapted_model import AdaptedModel
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.linear_probe import PooledFeatures
from pretune.runs.finetune.task_data import TaskData
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Items
from pretune.tasks.example import Example
from pretune.tasks.predict import BATCH_TOKENS, compute_logits
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import build_flops_counter

MAX_FEATURE_BYTES = 2**30
"""Maximum size of the features of a split; the text of larger ones is encoded in every epoch."""

EncodingKey = tuple[int | None, str | None]
"""Number of training examples, None for all, and with features a hash of the frozen weights."""


class EncodedData(NamedTuple):
    """Items of the training examples of each task, and with features those for model selection."""

    train: tuple[Items, ...]
    selection: Items | None = None


def can_cache(adapted_model: AdaptedModel, tuning: FinetuneConfig, task_data: TaskData) -> bool:
    """Return whether the features of a run do not change, and the head needs nothing else."""
    model = adapted_model.model
    return (
        tuning.tune.cache_features
        and model.has_frozen_body
        and model.head is not None
        and not task_data.members
        and not getattr(model.head, "reads_all_layers", False)
        and not (isinstance(model.spec, Classification) and model.spec.lm_loss_weight)
        and tuning.tune.distill is None
    )


def fits(model: ModelWithHead, items: Items, factor: float = 1.0) -> bool:
    """Return whether the features of `factor` times these items are small enough to be cached."""
    head, sequences = model.head, items.sequences
    is_pooled = isinstance(head, SequenceHead)
    rows = round(factor * (len(sequences) if is_pooled else len(sequences.tokens)))
    columns = model.model.spec.width * (len(head.places) if isinstance(head, SequenceHead) else 1)
    size = rows * columns * np.dtype(np.float32).itemsize
    if size > MAX_FEATURE_BYTES:
        log.info(
            f"features of {format_count(rows, 'sequences' if is_pooled else 'tokens')} would take {size / 2**30:.1f} "
            f"GiB, more than {MAX_FEATURE_BYTES / 2**30:g}: the text is encoded in every epoch"
        )
    return size <= MAX_FEATURE_BYTES


def add_features(model: ModelWithHead, items: Items, precision: torch.dtype | None) -> Items:
    """Return the items with their features, or unchanged if these are too large."""
    if not fits(model, items):
        return items
    per_token = not isinstance(model.head, SequenceHead)
    pool = model.head.pool if isinstance(model.head, SequenceHead) else lambda states, batch: states
    features = compute_logits(
        PooledFeatures(model, pool), items, per_token=per_token, tokens=BATCH_TOKENS, precision=precision
    )
    name = "token_features" if per_token else "sequence_features"
    return replace(items, sequences=replace(items.sequences, **{name: features}))  # type: ignore[arg-type]


def encode_features(
    model: ModelWithHead,
    encoder: TaskEncoder,
    items: Items,
    selection_examples: Sequence[Example],
    precision: torch.dtype | None,
) -> EncodedData:
    """Return training items with their features, and those of the examples for model selection."""
    selection = None
    if selection_examples:
        selection = add_features(model, encoder.encode(selection_examples, training=False), precision)
    return EncodedData((add_features(model, items, precision),), selection)


def has_features(items: Items) -> bool:
    """Return whether items have features."""
    return items.sequences.sequence_features is not None or items.sequences.token_features is not None


class FeatureFlops:
    """Counter of the FLOPs of a run on features: of the body once for all `items`, if this run computed them, and of
    the head.
    """

    def __init__(self, model: ModelWithHead, items: Items, *, counts_body: bool) -> None:
        sequences = items.sequences
        source = None if sequences.source is None else sequences.source.lengths
        stats = BatchStats(
            sequences=len(sequences),
            tokens=int(sequences.lengths.sum()),
            squares=int((sequences.lengths**2).sum()),
            source=0 if source is None else int(source.sum()),
            source_squares=0 if source is None else int((source**2).sum()),
            products=0 if source is None else int((source * sequences.lengths).sum()),
        )
        self.body = build_flops_counter(model.model.spec)(stats) / 3 if counts_body else 0.0
        assert model.head is not None
        self._head, self._is_pooled = (
            FLOPS_PER_WEIGHT * count_matrix_weights(model.head),
            sequences.token_features is None,
        )

    def __call__(self, stats: BatchStats) -> float:
        """Return the FLOPs of a run after steps with these counts."""
        return self.body * bool(stats.tokens) + self.count_head(stats)

    def count_head(self, stats: BatchStats) -> float:
        """Return the FLOPs of the head alone."""
        return self._head * (stats.sequences if self._is_pooled else stats.tokens)
