"""Position encodings. A stack has one or none.

Each acts in one place, its `mechanism`: `input` (a vector added to the embedding), `rotation` of queries and keys, a
`bias` on attention scores, or `distance` vectors that the attention layers multiply with queries and keys. All modules
are stateless except for learned tables.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import Fraction, NonEmpty, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.nn.layers import Norm

Rotation = tuple[Tensor, Tensor]
"""Cosines and signed sines of the angles of each token, `[N, 1, rotary width]`."""


class PositionEncoding:
    """Base class of position encodings: without parameters and without a maximum length unless stated."""

    __slots__ = ()

    def params(self, *, width: int, heads: int) -> int:
        return 0

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length, if there is one."""
        return None


@spec(kind="learned")
class LearnedEmbedding(PositionEncoding):
    """Learned absolute positions (Gehring et al., 2017).

    Table of `rows` vectors; position p uses row p + `offset` (some releases leave the first rows unused).
    """

    rows: Positive[int]
    offset: NonNegative[int] = 0

    mechanism: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        if self.offset >= self.rows:
            raise UsageError(f"offset must be < rows {self.rows}, got {self.offset}")

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return LearnedPositions(self, width)

    def params(self, *, width: int, heads: int) -> int:
        return self.rows * width

    @property
    def max_length(self) -> int:
        """Maximum sequence length."""
        return self.rows - self.offset


class LearnedPositions(nn.Module):
    def __init__(self, spec: LearnedEmbedding, width: int) -> None:
        super().__init__()
        self.offset = spec.offset
        self.table = nn.Embedding(spec.rows, width)

    def forward(self, positions: Tensor) -> Tensor:
        out: Tensor = self.table(positions + self.offset)
        return out


@spec
class Sinusoidal(PositionEncoding):
    """Sinusoidal positions (Vaswani et al., 2017): sines in even channels, cosines in odd channels.

    Wavelengths grow geometrically from 2 pi to `base` x 2 pi. `halves`, as in tensor2tensor: sines in the first half of
    the channels, cosines in the second, and the last wavelength is exactly `base` x 2 pi.
    """

    base: Positive[float] = 10000.0
    offset: NonNegative[int] = 0  # added to the positions
    order: Literal["alternating", "halves"] = "alternating"

    mechanism: ClassVar[str] = "input"

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return SinusoidalPositions(self, width)


class SinusoidalPositions(nn.Module):
    def __init__(self, spec: Sinusoidal, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width

    def forward(self, positions: Tensor) -> Tensor:
        positions = positions + self.spec.offset if self.spec.offset else positions
        if self.spec.order == "halves":
            return self._compute_halves(positions)
        channels = torch.arange(0, self.width, 2, device=positions.device, dtype=torch.float32)
        angle = positions[:, None].float() * torch.exp(channels * (-math.log(self.spec.base) / self.width))
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, : self.width]

    def _compute_halves(self, positions: Tensor) -> Tensor:
        half = self.width // 2
        channels = torch.arange(half, device=positions.device, dtype=torch.float32)
        angle = positions[:, None].float() * torch.exp(channels * -(math.log(self.spec.base) / max(half - 1, 1)))
        return F.pad(torch.cat((angle.sin(), angle.cos()), dim=-1), (0, self.width - 2 * half))


@spec(kind="linear")
class LinearScaling:
    """Position interpolation: all frequencies divided by `factor` (Chen et al., 2023)."""

    factor: Positive[float]

    def scale_frequencies(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@spec(kind="banded")
class BandedScaling:
    """Frequency scaling by wavelength, as in Llama 3.1 (Dubey et al., 2024).

    Frequencies with wavelengths above `original / low` tokens are divided by `factor`, those below `original / high`
    are kept, those between are interpolated.
    """

    factor: Positive[float]
    low: float
    high: float
    original: Positive[int]

    def scale_frequencies(self, frequencies: Tensor) -> Tensor:
        waves = 2 * math.pi / frequencies
        blend = (self.original / waves - self.low) / (self.high - self.low)
        blend = blend.clamp(0, 1)
        return (1 - blend) * frequencies / self.factor + blend * frequencies


@spec
class Rotary(PositionEncoding):
    """Rotary positions (Su et al., 2021): queries and keys are rotated by angles proportional to position.

    Rotates the first `fraction` of each head, in pairs (i, i + half).
    """

    theta: Positive[float] = 10000.0
    fraction: Fraction = 1.0
    scaling: LinearScaling | BandedScaling | None = None

    mechanism: ClassVar[str] = "rotation"

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return RotaryPositions(self, head_width)


class RotaryPositions(nn.Module):
    def __init__(self, spec: Rotary, head_width: int) -> None:
        super().__init__()
        self.spec, self.rotary_width = spec, int(head_width * spec.fraction)

    def forward(self, positions: Tensor) -> Rotation:
        """Return cosine and signed sine of the angles, `[N, 1, rotary width]` each, in fp32.

        The sine is negative in the first half: there `rotate` subtracts.
        """
        steps = torch.arange(0, self.rotary_width, 2, device=positions.device, dtype=torch.float32) / self.rotary_width
        frequencies = 1.0 / (self.spec.theta**steps)
        if self.spec.scaling is not None:
            frequencies = self.spec.scaling.scale_frequencies(frequencies)
        angle = positions[:, None, None].float() * frequencies
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate heads `[N, H, D]`; channels beyond the rotary width are unchanged."""
    cos, sin = rotation[0].to(x.dtype), rotation[1].to(x.dtype)
    width = cos.shape[-1]
    head = x if width == x.shape[-1] else x[..., :width]
    head = torch.addcmul(head * cos, head.roll(width // 2, dims=-1), sin)
    return head if width == x.shape[-1] else torch.cat((head, x[..., width:]), dim=-1)


@spec
class Alibi(PositionEncoding):
    """ALiBi (Press et al., 2022): a linear bias by distance, with one slope per head.

    Slopes are powers of two from 2^(-`steepest` / heads) down to 2^-`steepest`.
    """

    steepest: float = 8.0

    mechanism: ClassVar[str] = "bias"

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return AlibiPositions(self, heads)


class AlibiPositions(nn.Module):
    def __init__(self, spec: Alibi, heads: int) -> None:
        super().__init__()
        self.steepest, self.heads = spec.steepest, heads

    def forward(self, distance: Tensor) -> Tensor:
        """Return the bias `[H, …]` of distances `[…]` (key minus query position)."""
        count = 2 ** math.ceil(math.log2(self.heads))
        slopes = 2.0 ** (-self.steepest / count * torch.arange(1, count + 1, device=distance.device))
        if count != self.heads:  # NOTE: as in the released code: every second slope first, then the others
            slopes = torch.cat((slopes[1::2], slopes[::2]))[: self.heads]
        bias: Tensor = slopes.view(-1, *[1] * distance.dim()) * -distance.abs()
        return bias


@spec
class RelativeBias(PositionEncoding):
    """Relative position buckets (Raffel et al., 2020): a learned bias per head and distance bucket.

    Short distances have a bucket each; longer ones share logarithmic buckets up to `max_distance`.
    """

    buckets: Positive[int] = 32
    max_distance: Positive[int] = 128
    both_ways: bool = True  # half of the buckets for later keys; otherwise these have distance 0

    mechanism: ClassVar[str] = "bias"

    def __post_init__(self) -> None:
        min_buckets = 4 if self.both_ways else 2
        if self.buckets < min_buckets or self.max_distance <= self.max_exact:
            raise UsageError(
                f"buckets must be at least {min_buckets} and max_distance above {self.max_exact}, "
                f"got buckets {self.buckets} and max_distance {self.max_distance}"
            )

    @property
    def max_exact(self) -> int:
        """Distance below which each distance has its own bucket."""
        return (self.buckets // 2 if self.both_ways else self.buckets) // 2

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return RelativePositions(self, width, heads)

    def params(self, *, width: int, heads: int) -> int:
        return self.buckets * heads


class RelativePositions(nn.Module):
    def __init__(self, spec: RelativeBias, width: int, heads: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        self.table = nn.Embedding(spec.buckets, heads)

    def forward(self, distance: Tensor) -> Tensor:
        """Return the bias `[H, …]` of distances `[…]` (key minus query position)."""
        out: Tensor = self.table(self.compute_bucket(distance)).movedim(distance.dim(), 0)
        return out

    def compute_bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance."""
        buckets, first = self.spec.buckets, torch.zeros_like(distance)
        if self.spec.both_ways:
            buckets //= 2
            first = (distance > 0) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        max_exact = self.spec.max_exact
        share = torch.log(distance.clamp(min=1).float() / max_exact) / math.log(self.spec.max_distance / max_exact)
        bucket = (max_exact + (share * (buckets - max_exact)).to(torch.long)).clamp(max=buckets - 1)
        return first + torch.where(distance < max_exact, distance, bucket)


@spec(kind="disentangled")
class DistanceEmbedding(PositionEncoding):
    """Distance vectors of disentangled attention (He et al., 2021): a learned table, shared by all layers.

    Distances up to `buckets` / 2 have a vector each, longer ones share logarithmic buckets up to `max_distance`;
    without `buckets` every distance below `max_distance` has one. `input` are absolute positions, added to the
    embedding.
    """

    buckets: Positive[int] | None = 256
    max_distance: Positive[int] = 512
    norm: Norm | None = None  # of the vectors
    input: LearnedEmbedding | None = None
    dropout: Fraction = 0.0  # of the vectors, in every layer

    mechanism: ClassVar[str] = "distance"

    def __post_init__(self) -> None:
        if self.buckets is not None and (self.buckets < 2 or self.max_distance <= self.buckets // 2 + 1):
            raise UsageError(
                f"buckets must be at least 2 and max_distance above buckets / 2 + 1, got buckets {self.buckets} and "
                f"max_distance {self.max_distance}"
            )

    @property
    def span(self) -> int:
        """Number of vectors for keys before the query; there are as many for keys after it."""
        return self.buckets or self.max_distance

    def build(self, *, width: int, heads: int, head_width: int) -> nn.Module:
        return DistanceVectors(self, width, heads, head_width)

    def params(self, *, width: int, heads: int) -> int:
        count = 2 * self.span * width + (self.norm.params(width=width) if self.norm else 0)
        return count + (self.input.params(width=width, heads=heads) if self.input else 0)

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length: that of the absolute positions, if there are any."""
        return self.input.max_length if self.input else None


@spec
class DistanceTerms:
    """Scores of distances in disentangled attention (He et al., 2021): content to position (`c2p`) and the reverse.

    With `shared`, q and k also project the distances; otherwise these have their own projections.
    """

    terms: Annotated[tuple[Literal["c2p", "p2c"], ...], NonEmpty()] = ("c2p", "p2c")
    shared: bool = True

    def __post_init__(self) -> None:
        if len({*self.terms}) < len(self.terms):
            raise UsageError(f"terms must differ, got {', '.join(self.terms)}")

    @property
    def projections(self) -> tuple[Literal["k", "q"], ...]:
        """The projections that distances do not share with the content."""
        return () if self.shared else tuple("k" if term == "c2p" else "q" for term in self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceTable:
    """Vectors of distances, for the attention layers; computed once per forward pass."""

    vectors: Tensor  # [2 * span, W]
    index: Tensor  # [2R] row of `vectors` for each distance from R - 1 down to -R
    dropout: float


class DistanceVectors(nn.Module):
    def __init__(self, spec: DistanceEmbedding, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.spec = spec
        self.table = nn.Embedding(2 * spec.span, width)
        self.norm = spec.norm.build(width=width) if spec.norm else None
        self.input = spec.input.build(width=width, heads=heads, head_width=head_width) if spec.input else None

    def forward(self, length: int) -> DistanceTable:
        """Return the vectors and their index for rows of `length` tokens."""
        weight = self.table.weight
        distance = torch.arange(length - 1, -length - 1, -1, device=weight.device)
        vectors = weight if self.norm is None else self.norm(weight)
        return DistanceTable(vectors=vectors, index=self.compute_index(distance), dropout=self.spec.dropout)

    def compute_index(self, distance: Tensor) -> Tensor:
        """Return the row of each distance (query minus key position)."""
        span = self.spec.span
        bucket = distance if self.spec.buckets is None else self._compute_bucket(distance)
        return (bucket + span).clamp(0, 2 * span - 1)

    def _compute_bucket(self, distance: Tensor) -> Tensor:
        assert self.spec.buckets is not None
        middle = self.spec.buckets // 2
        far = distance.abs().clamp(min=max(middle, 1))
        # NOTE: in fp32 and in this order, as the released models were trained: a bucket may end elsewhere in fp64.
        steps = torch.log(far / middle) / torch.log(torch.tensor((self.spec.max_distance - 1) / middle))
        bucket = (torch.ceil(steps * (middle - 1)) + middle).long() * distance.sign()
        return torch.where(distance.abs() <= middle, distance, bucket)


Position = LearnedEmbedding | Sinusoidal | Rotary | Alibi | RelativeBias | DistanceEmbedding
