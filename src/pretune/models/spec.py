"""The one spec tree: every published model is a value of this type."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pretune.core.config import spec, to_dict
from pretune.core.errors import UsageError
from pretune.models.init import Init, Normal
from pretune.nn.block import Block
from pretune.nn.heads import Detector, Head, PairHead, Pooler, SpanHead
from pretune.nn.positions import Rotary
from pretune.nn.stack import Stack
from pretune.nn.two_stream import AnyStack, TwoStream

MAX_PARAMETERS = 10**14
MAX_LAYERS = 10**4
"""Beyond these a shape is a mistake, not a model."""

ModelShape = Literal["encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream"]
"""What a model is made of: the words by which objectives say what they train."""

PARTS = ("head", "pooler", "pair", "detector")
"""What a model may have beyond its body."""

_SIZES = frozenset(
    {"vocab", "width", "depth", "share", "hidden", "heads", "kv_heads", "head_width", "window", "segments", "classes"}
    | {"rows", "buckets", "far", "original", "context", "place_width"}
)
_POSITIVE = frozenset({"theta", "base", "clip", "factor", "eps", "std"})
_RATES = frozenset({"dropout", "fraction"})


@spec
class Special:
    """Token ids with a meaning to whoever generates or pads."""

    pad: int | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()
    start: int | None = None  # what a decoder reads first


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How many parameters: the body alone, with its pooler, and with every head."""

    body: int
    body_with_pooler: int
    total: int


@spec
class Model:
    """An encoder, a decoder or both over one token table, with the heads it was pre-trained with.

    `family` names the layout its weights have on disk. With `shared` the decoder uses the encoder's weights (its
    attention to the source is its own).
    """

    family: str
    vocab: int
    width: int
    encoder: Stack | TwoStream | None = None
    decoder: Stack | None = None
    shared: bool = False
    context: int | None = None  # the length it is made for, where its positions set no limit
    head: Head | None = None
    pooler: Pooler | None = None
    pair: PairHead | None = None
    span: SpanHead | None = None
    detector: Detector | None = None
    init: Init = Normal()
    special: Special = Special()

    def __post_init__(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise UsageError("a model needs an encoder, a decoder or both")
        if self.pair is not None and self.pooler is None:
            raise UsageError("a pair head reads the pooled vector: it needs a pooler")
        if self.shared and not _can_share(self.encoder, self.decoder):
            raise UsageError("shared weights need an encoder and a decoder with equal depth, sharing and blocks")
        if len({stack.embed.get_table_width(width=self.width) for stack in self.stacks}) > 1:
            raise UsageError("encoder and decoder read one token table: their factors must be equally wide")
        if self.head is not None and self.table != self.width and self.head.transform is None:
            raise UsageError(f"a head on a token table of {self.table} needs a transform from width {self.width}")
        _check_ranges(to_dict(self))
        for stack in self.stacks:
            if stack.depth > MAX_LAYERS:
                raise UsageError(f"depth {stack.depth} must be at most {MAX_LAYERS}")
            _, _, head = stack.blocks[0].attention.resolve_shape(width=self.width)
            if isinstance(stack.position, Rotary) and int(head * stack.position.fraction) % 2:
                raise UsageError(f"rotary positions turn pairs, so head_width {head} x fraction must be even")
            for block in stack.blocks:
                block.attention.resolve_shape(width=self.width)
                if (block.cross is None) != (not self.is_encoder_decoder or stack is self.encoder):
                    raise UsageError("cross attention belongs in the decoder of an encoder-decoder, and only there")
        if self.params().total > MAX_PARAMETERS:
            raise UsageError(f"{self.params().total:,} parameters; a model has at most {MAX_PARAMETERS:,}")

    @property
    def shape(self) -> ModelShape:
        """What it is made of, in the word that objectives have for it."""
        if isinstance(self.encoder, TwoStream) and not self.is_encoder_decoder:
            return "two-stream"
        return "encoder-decoder" if self.is_encoder_decoder else "encoder" if self.decoder is None else "decoder"

    @property
    def parts(self) -> frozenset[str]:
        """Which of `PARTS` it has."""
        return frozenset(part for part in PARTS if getattr(self, part) is not None)

    @property
    def stacks(self) -> list[AnyStack]:
        return [stack for stack in (self.encoder, self.decoder) if stack is not None]

    @property
    def last_stack(self) -> AnyStack:
        """The stack whose states the heads read."""
        return self.stacks[-1]

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder is not None and self.decoder is not None

    @property
    def depth(self) -> int:
        return max(stack.depth for stack in self.stacks)

    @property
    def table(self) -> int:
        """The width of the token table."""
        return self.last_stack.embed.get_table_width(width=self.width)

    @property
    def max_length(self) -> int | None:
        """The longest sequence its positions allow; None: no limit."""
        limits = [stack.position.max_length for stack in self.stacks if stack.position]
        return min((limit for limit in limits if limit is not None), default=None)

    def params(self) -> Params:
        """Exact parameter counts, without building anything."""
        body = self.vocab * self.table + sum(stack.params(width=self.width) for stack in self.stacks)
        if self.shared and self.decoder:
            body -= sum(_count_without_cross(block, self.width) for block in self.decoder.layers)
        pooled = body + (self.pooler.params(width=self.width) if self.pooler else 0)
        total = pooled + sum(part.params(width=self.width) for part in (self.pair, self.detector) if part)
        if self.head:
            total += self.head.params(vocab=self.vocab, width=self.width, table=self.table)
        if self.span:
            total += self.span.params(vocab=self.vocab, width=self.width, table=self.table)
        return Params(body=body, body_with_pooler=pooled, total=total)


def _check_ranges(tree: Mapping[str, Any]) -> None:
    """Every number of a spec lies where it can mean something."""
    for name, value in tree.items():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                _check_ranges(part)
        if not isinstance(value, int | float):
            continue
        if name in _SIZES and value < 1:
            raise UsageError(f"{name} {value} must be at least 1")
        if name in _POSITIVE and value <= 0:
            raise UsageError(f"{name} {value} must be greater than 0")
        if name in _RATES and not 0 <= value <= 1:
            raise UsageError(f"{name} {value} must lie between 0 and 1")


def _can_share(encoder: AnyStack | None, decoder: Stack | None) -> bool:
    """Whether a decoder can use the weights of an encoder: the same blocks, but for the attention to the source."""
    if encoder is None or decoder is None or (encoder.depth, encoder.share) != (decoder.depth, decoder.share):
        return False
    return encoder.blocks == tuple(replace(block, cross=None) for block in decoder.blocks)


def _count_without_cross(block: Block, width: int) -> int:
    return block.params(width=width) - (
        block.cross.params(width=width) + block.norms.params(width=width) if block.cross else 0
    )
