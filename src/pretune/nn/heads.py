"""Pre-training heads (vocabulary, pooler, pairs, replaced tokens, span boundaries), and pooling into one vector.

Legend: N tokens, C cells, W width. Pooled states have a row for every cell of the batch; rows of padding and spare
cells are undefined. Shapes are static, and nothing synchronizes with the device.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.core.config import Fraction, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.nn.batch_norm import BatchNorm, SequenceNorm
from pretune.nn.layers import ACTIVATIONS, ActivationName, LayerNorm, Norm
from pretune.nn.sampled_softmax import SampledSoftmax


@spec
class Transform:
    """Dense layer before the vocabulary matrix: with activation and norm in BERT, without in OPT."""

    activation: ActivationName = "identity"
    norm: Norm | None = None
    bias: bool = True

    def params(self, *, width: int, table: int) -> int:
        return width * table + self.bias * table + (self.norm.params(width=table) if self.norm else 0)


@spec
class Head:
    """Vocabulary head, with the token table as its matrix (`tied`) or its own."""

    tied: bool = True
    bias: Literal["learned", "fixed"] | None = None  # fixed: a buffer, not trained
    transform: Transform | None = None
    scale: float | None = None  # factor of the states
    sampling: SampledSoftmax | None = None  # in training, for large vocabularies

    def build(self, *, vocab: int, width: int, table: int) -> "VocabularyHead":
        return VocabularyHead(self, vocab, width, table)

    def params(self, *, vocab: int, width: int, table: int) -> int:
        count = (not self.tied) * vocab * table + (self.bias == "learned") * vocab
        return count + (self.transform.params(width=width, table=table) if self.transform else 0)


class TransformLayer(nn.Module):
    def __init__(self, spec: Transform, width: int, table: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, table, bias=spec.bias)
        self.activate = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(width=table) if spec.norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.activate(self.dense(x))
        return x if self.norm is None else self.norm(x)


class VocabularyHead(nn.Module):
    """Vocabulary head. `weight` is None if tied: the model passes the token table."""

    def __init__(self, spec: Head, vocab: int, width: int, table: int) -> None:
        super().__init__()
        self.scale, self.sampling = spec.scale, spec.sampling
        self.transform = TransformLayer(spec.transform, width, table) if spec.transform else None
        self.weight = None if spec.tied else Parameter(torch.empty(vocab, table))
        if spec.bias == "fixed":
            self.register_buffer("bias", torch.zeros(vocab))
        else:
            self.bias = Parameter(torch.zeros(vocab)) if spec.bias == "learned" else None

    def transform_states(self, x: Tensor) -> Tensor:
        """Return the scaled and transformed states, to be multiplied with the vocabulary matrix."""
        x = x if self.scale is None else x * self.scale
        return x if self.transform is None else self.transform(x)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.transform_states(x), table if self.weight is None else self.weight, self.bias)


@spec
class Pooler:
    """First token's state through a dense layer, as in BERT."""

    activation: ActivationName = "tanh"

    def build(self, *, width: int) -> "TransformLayer":
        return TransformLayer(Transform(activation=self.activation), width, width)

    def params(self, *, width: int) -> int:
        return width * width + width


@spec
class PairHead:
    """Classifier on the pooled vector, for next sentence prediction and sentence order prediction."""

    classes: Positive[int] = 2

    def build(self, *, width: int) -> nn.Module:
        return nn.Linear(width, self.classes)

    def params(self, *, width: int) -> int:
        return width * self.classes + self.classes


@spec
class Detector:
    """Replaced token detection: one logit per token (Clark et al., 2020).

    With `norm`, its input is the norm of each state plus that of the sequence's first token (He et al., 2023).
    """

    activation: ActivationName = "gelu"
    norm: Norm | None = None

    def build(self, *, width: int) -> "TokenDetector":
        return TokenDetector(self, width)

    def count_weights(self, *, width: int) -> int:
        """Return the number of weights that each token is multiplied with."""
        return width * width + width

    def params(self, *, width: int) -> int:
        return self.count_weights(width=width) + width + 1 + (self.norm.params(width=width) if self.norm else 0)


class TokenDetector(nn.Module):
    def __init__(self, spec: Detector, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activate = ACTIVATIONS[spec.activation]
        self.out = nn.Linear(width, 1)
        self.norm = spec.norm.build(width=width) if spec.norm else None

    def forward(self, states: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the logits `[N]` of states `[N, W]`; with a norm it needs the batch, for the first tokens."""
        if self.norm is not None:
            if batch is None:
                raise UsageError("a detector with a norm needs the batch, for the first token of each sequence")
            # NOTE: the first token of padding is of no sequence; its logits are not used.
            first = torch.arange(states.shape[0], device=states.device) - batch.positions
            states = self.norm(states + states.index_select(0, first)).to(states.dtype)
        out: Tensor = self.out(self.activate(self.dense(states)))
        return out.squeeze(-1)


@spec
class SpanHead:
    """Span boundary objective of SpanBERT (Joshi et al., 2020): tokens of a span from its boundary states.

    Two layers, each with an activation and a norm, and the token table as the vocabulary matrix. Positions in the span
    from `rows` on share the last row.
    """

    rows: Positive[int] = 32
    place_width: Positive[int] = 200
    activation: ActivationName = "gelu"
    norm: Norm = LayerNorm()
    bias: bool = True  # one per vocabulary entry

    def build(self, *, vocab: int, width: int, table: int) -> "SpanBoundary":
        return SpanBoundary(self, vocab, width, table)

    def params(self, *, vocab: int, width: int, table: int) -> int:
        read = 2 * width + self.place_width
        layers = self.layer.params(width=read, table=width) + self.layer.params(width=width, table=table)
        return self.rows * self.place_width + layers + self.bias * vocab

    @property
    def layer(self) -> Transform:
        """Spec of each of the two layers."""
        return Transform(activation=self.activation, norm=self.norm)


class SpanBoundary(nn.Module):
    def __init__(self, spec: SpanHead, vocab: int, width: int, table: int) -> None:
        super().__init__()
        self.place = nn.Embedding(spec.rows, spec.place_width)
        self.first = TransformLayer(spec.layer, 2 * width + spec.place_width, width)
        self.second = TransformLayer(spec.layer, width, table)
        self.bias = Parameter(torch.zeros(vocab)) if spec.bias else None

    def forward(self, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """Return the vectors `[M, table]` to be multiplied with the token table."""
        place_states = self.place(place.clamp(max=self.place.num_embeddings - 1))
        out: Tensor = self.second(self.first(torch.cat((left, right, place_states.to(left.dtype)), dim=-1)))
        return out


PoolingMode = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted"]
"""First or last state, mean, maximum, sum / sqrt(length), or mean weighted by position (n-th state n times)."""


@spec(kind="pooling")
class PoolingConfig:
    """Pooling of a task head: mode, and an optional dense layer before the classifier.

    `layer`: `own` is a new dense layer with dropout before it, `pooler` the pre-trained one, a `transform` that of the
    vocabulary head, None no layer.
    """

    mode: PoolingMode = "first"
    layer: Literal["own", "pooler"] | Transform | None = None
    activation: ActivationName = "tanh"  # after the layer; a transform has its own
    bias: bool = True  # of the classifier
    concat: tuple[PoolingMode, ...] = ()  # further modes, concatenated as in sentence-transformers
    hidden: Positive[int] | None = None  # units of the new layer; None: as many as it has inputs
    norm: BatchNorm | None = None  # of the inputs of the new layer and of the classifier
    input_dropout: Fraction | None = None  # before the new layer; None: as before the classifier

    def __post_init__(self) -> None:
        if self.concat and (self.layer == "pooler" or isinstance(self.layer, Transform)):
            raise UsageError("a pre-trained layer takes one state; remove 'concat', or set layer to 'own'")
        if self.hidden is not None and self.layer != "own":
            raise UsageError(f"hidden {self.hidden} are units of a new layer; set layer to 'own', or remove 'hidden'")
        if self.input_dropout is not None and self.layer != "own":
            raise UsageError("input_dropout is that of a new layer; set layer to 'own', or remove 'input_dropout'")
        if self.norm is not None and self.layer not in ("own", None):
            raise UsageError("a pre-trained layer takes states without a norm; remove 'norm', or set layer to 'own'")

    @property
    def modes(self) -> tuple[PoolingMode, ...]:
        """All pooling modes."""
        return (self.mode, *self.concat)


def pool_states(states: Tensor, batch: Batch, mode: PoolingMode) -> Tensor:
    """Pool states `[N, W]` into one vector per cell `[C, W]`; means and weighted sums are at least fp32.

    NOTE: means of texts differ far less than states do, often by less than half precision can represent.
    """
    if mode == "mean":
        return _compute_means(states, batch)
    sizes = batch.offsets[1:] - batch.offsets[:-1]
    if mode == "max":
        lowest = float(torch.finfo(states.dtype).min)
        largest = torch.segment_reduce(states, "max", offsets=batch.offsets.long(), axis=0, initial=lowest)
        # NOTE: logits of an empty cell must be finite, or gradients are not.
        return largest.where(sizes[:, None] > 0, 0.0)
    if mode in ("mean_sqrt", "weighted"):
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        counts = sizes.clamp(min=1)[:, None].to(states.dtype)
        if mode == "mean_sqrt":
            return _compute_means(states, batch) * counts.sqrt()
        return _compute_means(states * (batch.positions + 1)[:, None].to(states.dtype), batch) * 2 / (counts + 1)
    edge = batch.offsets[:-1] if mode == "first" else batch.offsets[1:] - 1
    return states.index_select(0, edge.long().clamp(0, states.shape[0] - 1))


def _compute_means(states: Tensor, batch: Batch) -> Tensor:
    owner = torch.where(batch.sequence < 0, batch.cells, batch.sequence)  # padding goes to an extra cell
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    sums = states.new_zeros(batch.cells + 1, states.shape[1]).index_add(0, owner, states)
    sizes = (batch.offsets[1:] - batch.offsets[:-1]).clamp(min=1)
    return sums[:-1] / sizes[:, None]


def get_running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that training changes, by name."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        if isinstance(module, SequenceNorm)
        for name, buffer in module.named_buffers(recurse=False)
    }
