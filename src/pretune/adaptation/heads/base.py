"""Protocol of task heads (`TaskHead`) and the two modules they use: one for sequences, one for tokens.

Legend: N tokens, C cells (sequences, filler, spare ones), W width, K classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from pretune.core import config
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.sequences import Sequences
from pretune.inference.sentence_modules import read_pooling
from pretune.models.families import FAMILIES
from pretune.models.hf.weights import LAST_TOKEN
from pretune.models.model import LanguageModel
from pretune.models.spec import Init, Model, initialise
from pretune.nn.heads import PoolingConfig, PoolingMode, Transform, TransformLayer, pool_states
from pretune.nn.layers import ACTIVATIONS

Head = TypeVar("Head")

DEFAULT_POOLING = {
    "encoder": PoolingConfig(mode="first", layer="own"),
    "decoder": LAST_TOKEN,
    "encoder-decoder": PoolingConfig(mode="last", layer="own"),
    "two-stream": PoolingConfig(mode="last", layer="own"),
}
"""Pooling of a model whose family does not define one."""


class HeadedModel(Protocol):
    """A model with a task head."""

    model: LanguageModel
    head: Any

    def states(self, batch: Batch) -> Tensor: ...


class TaskHead(Protocol):
    """A task head as a value; `pretune.adaptation.adapted` puts it on a model."""

    def resolve(self, spec: Model) -> "TaskHead":
        """Return the head with the family's settings filled in; reject a model that cannot have it."""

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module | None:
        """Build the module with new weights. None: the model's vocabulary head is used."""

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the number of targets of the loss."""

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Return the summed loss of a batch."""


class SequenceHead(nn.Module):
    """Classifier over sequences, one row per cell: pooling, dense layer, output layer, with dropout.

    Computed in the precision of its own weights, even if the body computes in a lower one: it is cheap, and pooled
    vectors may differ by little. With `norm`, both layers have one, before their dropout. The dropout before the output
    layer replaces dropped values by `center`: zero, or the mean input of a head with fitted weights, whose bias is
    relative to that mean.
    """

    def __init__(self, pooling: PoolingConfig, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.places = pooling.modes
        width *= len(self.places)
        hidden = pooling.hidden or width
        self.dense = nn.Linear(width, hidden) if isinstance(pooling.layer, str) else None
        self.transform = TransformLayer(pooling.layer, width, width) if isinstance(pooling.layer, Transform) else None
        self.activate = ACTIVATIONS[pooling.activation]
        input_dropout = dropout if pooling.input_dropout is None else pooling.input_dropout
        self.input_norm = pooling.norm.build(width=width) if pooling.norm else None
        self.input_dropout = nn.Dropout(input_dropout if pooling.layer == "own" else 0.0)
        self.hidden_norm = pooling.norm.build(width=hidden) if pooling.norm and self.dense else None
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, classes, bias=pooling.bias)
        self.center: Tensor | None = None  # [W]; for training only, never saved

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """Pool states `[N, W]` to one vector per cell; several poolings are concatenated."""
        return torch.cat([pool_states(states, batch, place) for place in self.places], dim=-1)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Compute logits `[C, K]` from states `[N, W]`; features of a batch are pooled already."""
        with torch.autocast(states.device.type, enabled=False):
            vectors = states if batch.features is not None else self.pool(states, batch)
            return self.classify(vectors, batch.mark_sequences() if self.input_norm else None)

    def classify(self, vectors: Tensor, is_sequence: Tensor | None = None) -> Tensor:
        """Compute logits `[C, K]` from pooled states; `is_sequence` `[C]` tells a norm which of them to use."""
        x = vectors if self.input_norm is None else self.input_norm(vectors, is_sequence)
        x = x.to(self.out.weight.dtype)
        if self.dense is not None:
            x = self.activate(self.dense(self.input_dropout(x)))
        if self.hidden_norm is not None:
            x = self.hidden_norm(x, is_sequence)
        if self.transform is not None:
            x = self.transform(x)
        x = self.dropout(x) if self.center is None else self.dropout(x - self.center) + self.center
        out: Tensor = self.out(x)
        return out


class TokenHead(nn.Module):
    """Classifier over tokens, one row per token."""

    def __init__(self, width: int, classes: int, dropout: float, transform: Transform | None = None) -> None:
        super().__init__()
        self.transform = TransformLayer(transform, width, width) if transform else None
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, classes)

    def forward(self, states: Tensor, batch: Batch | None = None) -> Tensor:
        """Compute logits `[N, K]` from states `[N, W]`."""
        out: Tensor = self.out(self.dropout(states if self.transform is None else self.transform(states)))
        return out


def resolve_pooling(spec: Model, *, is_choice: bool = False) -> PoolingConfig:
    """Return the pooling of the model's family, or the default pooling of its shape."""
    family = FAMILIES.get(spec.family) if spec.family in FAMILIES else None
    pooling = family and ((family.choice_pooling if is_choice else None) or family.pooling)
    if pooling:
        pooling = replace(pooling, layer=resolve_transform(spec) or pooling.layer)
        return _turn_pooling(pooling) if spec.reads_backward else pooling
    if spec.shape not in DEFAULT_POOLING:
        raise UsageError(
            f"a model of the shape '{spec.shape}' cannot have this head; allowed: {', '.join(DEFAULT_POOLING)}"
        )
    return DEFAULT_POOLING[spec.shape]


def _turn_pooling(pooling: PoolingConfig) -> PoolingConfig:
    """Return the pooling of a model that reads texts from their end: the state after all of the text comes first."""
    opposites: dict[PoolingMode, PoolingMode] = {"last": "first", "first": "last"}
    modes = [opposites.get(mode, mode) for mode in pooling.modes]
    return replace(pooling, mode=modes[0], concat=tuple(modes[1:]))


def resolve_transform(spec: Model) -> Transform | None:
    """Return the layer before the classifier of every head, for a family that starts from its vocabulary head's."""
    family = FAMILIES.get(spec.family) if spec.family in FAMILIES else None
    if family is None or not family.heads_have_transform:
        return None
    head = spec.head or family.build_spec().head
    return head.transform if head else None


def use_stored_pooling(head: Head, model: LanguageModel) -> Head:
    """Return a head that pools as stored in the model's directory (`1_Pooling/config.json`), unless it has a pooling.

    A normalization and dense layers that may follow there are ignored: a linear layer learns its own scale.
    """
    has_own_pooling = getattr(head, "pooling", False) is not None
    if has_own_pooling or model.spec.is_encoder_decoder or not model.assets.modules:
        return head
    places = [("first" if name == "cls" else name) for name in read_pooling(model) or ()]
    if not places:
        return head
    pooling = config.from_dict(PoolingConfig, {"mode": places[0], "concat": places[1:]}, location="pooling")
    return replace(head, pooling=pooling)  # type: ignore[type-var]


def init_head(model: LanguageModel, head: nn.Module, seed: int, *, init: Init | None = None) -> nn.Module:
    """Initialize a head that was built on the meta device, like the body, and move it to the body's device."""
    like = model.tokens.weight
    head = head.to_empty(device="cpu")
    initialise(head, init or model.spec.init, model.spec.depth, seed)
    return head.to(like.device, like.dtype)


def build_sequence_head(model: LanguageModel, spec: Any, classes: int, seed: int) -> nn.Module:
    """Build a head for sequences; a pooler or transform in it starts from the model's."""
    if spec.scalar_mix is not None:
        return cast(nn.Module, spec.scalar_mix.build(model, classes, tagging=False, seed=seed))
    pooling: PoolingConfig = spec.resolve(model.spec).pooling
    with torch.device("meta"):
        head = SequenceHead(pooling, model.spec.width, classes, spec.dropout)
    new_head = init_head(model, head, seed)
    if pooling.layer == "pooler" and model.pooler is not None:
        new_head.get_submodule("dense").load_state_dict(model.pooler.dense.state_dict())
    _copy_transform(model, new_head, pooling.layer)
    return new_head


def build_token_head(model: LanguageModel, spec: Any, classes: int, seed: int) -> nn.Module:
    """Build a head for tokens; a transform in it starts from the model's vocabulary head."""
    if spec.scalar_mix is not None:
        return cast(nn.Module, spec.scalar_mix.build(model, classes, tagging=True, seed=seed))
    with torch.device("meta"):
        head = TokenHead(model.spec.width, classes, spec.dropout, spec.transform)
    new_head = init_head(model, head, seed)
    _copy_transform(model, new_head, spec.transform)
    return new_head


def _copy_transform(model: LanguageModel, head: nn.Module, transform: object) -> None:
    """Copy the weights of the vocabulary head's transform, if the model has one of the same settings."""
    source = model.spec.head and model.spec.head.transform
    if source is not None and source == transform and model.head is not None and model.spec.table == model.spec.width:
        assert model.head.transform is not None
        head.get_submodule("transform").load_state_dict(model.head.transform.state_dict())


def get_labels(batch: Batch) -> Tensor:
    """Return the label of every cell `[C]`."""
    if batch.labels is None:
        raise UsageError("this head needs one label per sequence, but the batch has no labels")
    return batch.labels


def count_labels(labels: Tensor) -> Tensor:
    """Return the number of labels that are not ignored."""
    return (labels != IGNORE_INDEX).sum()


def check_classes(classes: int, labels: tuple[str, ...]) -> None:
    """Reject a number of classes that does not match the labels."""
    if labels and len(labels) != classes:
        raise UsageError(f"classes must be equal to the number of labels ({len(labels)}), got {classes}")


def build_encoder_decoder_inputs(sequences: Sequences, spec: Model) -> Sequences:
    """Return inputs of both sides: the text for the encoder, and shifted right behind the start token for the decoder.

    The decoder's state at a position then belongs to the token that the encoder has there, and the last state to the
    whole text. For other models the sequences are returned unchanged.

    >>> from pretune.models.catalog import resolve
    >>> sequences = Sequences(tokens=np.array([0, 7, 8, 2]), offsets=np.array([0, 4]))
    >>> build_encoder_decoder_inputs(sequences, resolve("bart-base")).tokens.tolist()
    [2, 0, 7, 8]
    """
    if not spec.is_encoder_decoder:
        return sequences
    start = find_start_token(spec)
    decoder_tokens = np.roll(sequences.tokens, 1)
    decoder_tokens[sequences.offsets[:-1][sequences.lengths > 0]] = start
    source = Sequences(tokens=sequences.tokens, offsets=sequences.offsets)
    return replace(sequences, tokens=decoder_tokens, source=source)


def find_start_token(spec: Model) -> int:
    """Return the decoder's first input in an encoder-decoder; UsageError if there is none."""
    start = spec.special.start
    if start is None:
        start = next(iter(spec.special.eos), spec.special.bos)
    if start is None:
        raise UsageError("the decoder has no start token; set special.start, special.eos or special.bos of the model")
    return start


def segment_logsumexp(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the log-sum-exp of the rows `[R, D]` of each group `[groups, D]`; 0 for an empty group."""
    index = group[:, None].expand_as(values)
    tops = values.new_full((groups, values.shape[1]), -torch.inf).scatter_reduce(0, index, values.detach(), "amax")
    tops = tops.where(tops.isfinite(), 0.0)
    sums = torch.zeros_like(tops).index_add(0, group, (values - tops[group]).exp())
    return sums.where(sums > 0, 1.0).log() + tops


def segment_log_softmax(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the log-softmax of the rows `[R, D]` over the rows of their group."""
    return values - segment_logsumexp(values, group, groups)[group]
