"""Features of a frozen model, computed once instead of in every epoch and evaluation; and linear probes on them.

    if adapted_model.can_cache(tuning, task_data):
        data = encode_features(model, encoder, items, examples, precision)     # the model then skips its body

The body of a frozen model has no dropout, so that its states depend on the text only. Heads of sequences store a pooled
vector per sequence, heads of tokens the states of all tokens. Features of the training examples are computed in the
batches of prediction, those without a cache in the batches of training: they are equal up to rounding, and so are the
trained weights. Predictions from given weights are the same to the bit.

A linear probe is a baseline, and the initial head of full fine-tuning (LP-FT). As a baseline, its score shows what
pre-training alone provides; the difference is what fine-tuning adds. LP-FT is of Kumar et al. (2022), "Fine-tuning can
distort pretrained features". A random head sends noise into the body in its first steps; a fitted one does not. The
benefit is largest with few labels.

    pretune finetune runs/small --train train.csv --set tune.head=probe --set 'tune.pooling={"mode": "mean"}'

The probe is that of `pretune.evaluation.logistic_regression`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import FLOPS_PER_WEIGHT, ModelWithHead, adapt, count_matrix_weights
from pretune.adaptation.freeze import Full
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.sequence import Classification
from pretune.core import config, log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.core.types import Batch
from pretune.evaluation.logistic_regression import fit_probe
from pretune.nn.heads import pool_states
from pretune.runs.finetune.adapted_model import build_encoder, build_task_head, load_base_model
from pretune.runs.finetune.config import AdaptationConfig, FinetuneConfig
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Floats, Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import BATCH_TOKENS, compute_logits
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import build_flops_counter

BASELINE_PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Values of C, the inverse of the penalty, for the baseline."""
HEAD_PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Values of C for a head."""
PROBE_TOKENS = 16_384
"""Tokens of a batch of a probe's features."""
MAX_FEATURE_BYTES = 2**30
"""Maximum size of the features of a split; the text of larger ones is encoded in every epoch."""

EncodingKey = tuple[int | None, str | None]
"""Number of training examples, None for all, and with features a hash of the frozen weights."""


class EncodedData(NamedTuple):
    """Items of the training examples of each task, and with features those for model selection."""

    train: tuple[Items, ...]
    selection: Items | None = None


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
        self._head = FLOPS_PER_WEIGHT * count_matrix_weights(model.head)
        self._is_pooled = sequences.token_features is None

    def __call__(self, stats: BatchStats) -> float:
        """Return the FLOPs of a run after steps with these counts."""
        return self.body * bool(stats.tokens) + self.count_head(stats)

    def count_head(self, stats: BatchStats) -> float:
        """Return the FLOPs of the head alone."""
        return self._head * (stats.sequences if self._is_pooled else stats.tokens)


class PooledFeatures(nn.Module):
    """Pooled hidden states of a model; `pool` maps states and batch to a row per cell."""

    def __init__(self, model: ModelWithHead, pool: Callable[[Tensor, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self.pool = model, pool

    def forward(self, batch: Batch) -> Tensor:
        """Return features `[C, W]`, a row per cell."""
        states = self.model.states(batch)
        return states if batch.features is not None else self.pool(states, batch)


def predict_with_probe(
    tuning: FinetuneConfig, task: Task, train: Sequence[Example], test: Sequence[Example], device: torch.device
) -> list[Prediction]:
    """Fit a linear model on the base's mean-extractor features of `train` and predict `test`."""
    body = load_base_model(tuning.base, seed=tuning.train.seed)
    head = build_task_head(task, body, body.tokenizer, AdaptationConfig(text_to_text=False))
    model = adapt(body, head).eval().to(device)
    encoder = build_encoder(replace(tuning, method=Full()), task, model, [*train])  # without prompt slots
    x, z = (_compute_features(model, encoder, subset) for subset in (train, test))
    if get_type(task).scoring.gold == "score":
        from sklearn.linear_model import RidgeCV

        mean, std = x.mean(0), x.std(0) + 1e-6
        values = [float(example.label or 0) for example in train]
        ridge = RidgeCV(alphas=[10 / choice for choice in BASELINE_PENALTIES]).fit((x - mean) / std, values)
        return [Prediction(value=float(value)) for value in ridge.predict((z - mean) / std)]
    y = np.array([int(example.label or 0) for example in train])
    classifier = fit_probe(x, y, BASELINE_PENALTIES, seed=tuning.train.seed, device=device)
    return [Prediction(label=int(label)) for label in classifier.predict(z)]


def _compute_features(model: ModelWithHead, encoder: TaskEncoder, examples: Sequence[Example]) -> Floats:
    extractor = PooledFeatures(model, partial(pool_states, mode="mean"))
    return compute_logits(extractor, encoder.encode(examples, training=False), per_token=False, tokens=PROBE_TOKENS)


def fit_head(model: ModelWithHead, items: Items, *, seed: int, precision: torch.dtype | None = None) -> Floats | None:
    """Fit the head in place by logistic regression on its features of the training examples.

    The penalty is selected by cross-validation. Classes without examples keep their weights. Returns the mean of the
    features, for `center_dropout`; None if there is only one class.
    """
    head, y = model.head, items.sequences.labels
    is_linear = (
        isinstance(head, SequenceHead)
        and not (head.dense or head.transform or head.input_norm)
        and head.out.bias is not None
    )
    if not isinstance(head, SequenceHead) or not is_linear or not isinstance(model.spec, Classification) or y is None:
        raise UsageError(
            f"tune.head 'probe' needs a linear classification head with a bias, got the head "
            f'\'{config.get_kind(model.spec)}\'; set tune.pooling={{"mode": "mean"}}, or tune.head=random'
        )
    if len(np.unique(y)) < 2:
        return None
    device = head.out.weight.device
    extractor = PooledFeatures(model, head.pool)
    x = compute_logits(extractor, items, per_token=False, tokens=PROBE_TOKENS, precision=precision)
    probe = fit_probe(x, y, HEAD_PENALTIES, seed=seed, device=device)
    weight: Any = probe.weight
    bias: Any = probe.bias
    if len(weight) == 1:  # binary: the difference of two classes
        weight, bias = np.stack([-weight[0], weight[0]]) / 2, np.stack([-bias[0], bias[0]]) / 2
    with torch.no_grad():
        rows = torch.from_numpy(probe.classes).to(device)
        head.out.weight[rows] = torch.from_numpy(weight).to(head.out.weight)
        head.out.bias[rows] = torch.from_numpy(bias).to(head.out.bias)
    mean: Floats = x.mean(0)
    return mean


def center_dropout(model: ModelWithHead, mean: Floats | None) -> None:
    """Make dropout insert the mean for dropped values, as the bias of a fitted head expects."""
    if mean is not None and model.head is not None:
        weight = model.head.get_parameter("out.weight")
        model.head.center = torch.from_numpy(mean).to(weight)
