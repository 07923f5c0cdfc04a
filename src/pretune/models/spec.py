"""The model spec, of which every published model is a value, and the initialization of its weights.

`initialise` sets every parameter; none keeps the value of its module's constructor.
"""

import math
import os
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from pretune.core.config import Positive, spec
from pretune.core.errors import ResourceError, UsageError
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.batch_norm import SequenceNorm
from pretune.nn.bidirectional_stack import BidirectionalRecurrent
from pretune.nn.block import Block
from pretune.nn.characters import CharacterCNN, HighwayLayer
from pretune.nn.heads import Detector, Head, PairHead, Pooler, SpanBoundary, SpanHead, VocabularyHead
from pretune.nn.layers import FeedForwardLayer, OffsetEmbedding, ZeroCenteredRMSNorm
from pretune.nn.lstm import LSTMLayer
from pretune.nn.mask_decoder import MaskDecoder
from pretune.nn.positions import DistanceEmbedding, RelativePositions, Rotary
from pretune.nn.recurrent_stack import AnyStack, Recurrent
from pretune.nn.relative_attention import RelativeAttentionLayer
from pretune.nn.stack import ConvolutionLayer, Stack
from pretune.nn.two_stream import AnyBlock, TwoStream, TwoStreamStack


@spec
class Normal:
    """Normal weights of one standard deviation, zero biases (Devlin et al., 2019).

    With `residual`, layers that write to the residual stream start smaller by sqrt(2 depth) (Radford et al., 2019).
    """

    std: Positive[float] = 0.02
    residual: bool = False

    def compute_std(self, owner: nn.Module, name: str, weight: Tensor, depth: int) -> float:
        writes = isinstance(owner, MultiHeadAttention | FeedForwardLayer) and name in ("out", "down")
        return self.std / math.sqrt(2 * depth) if self.residual and writes else self.std


@spec
class FanIn:
    """Standard deviations by fan-in, with the attention scale folded into the queries (Raffel et al., 2020).

    The token table has standard deviation `factor`.
    """

    factor: Positive[float] = 1.0

    def compute_std(self, owner: nn.Module, name: str, weight: Tensor, depth: int) -> float:
        if name == "tokens":
            return self.factor
        fan_in = float(weight[0].numel())
        if isinstance(owner, RelativePositions):
            fan_in = owner.width
        if isinstance(owner, MultiHeadAttention) and name == "q":
            fan_in *= owner.head
        return self.factor / math.sqrt(fan_in)


@spec
class Uniform:
    """Uniform weights in [-bound, bound], zero biases (Merity et al., 2018)."""

    bound: Positive[float] = 0.1


Init = Normal | FanIn | Uniform


GATE_BIAS = -2.0
"""Initial bias of highway gates: the layer starts near the identity (Srivastava et al., 2015)."""

_MATRIX_OWNERS = nn.Linear | nn.Embedding | nn.Conv1d | VocabularyHead | OffsetEmbedding | ConvolutionLayer
_PARAMETER_OWNERS = (
    _MATRIX_OWNERS | RelativeAttentionLayer | TwoStreamStack | SpanBoundary | nn.LayerNorm | nn.RMSNorm | SequenceNorm
)
"""Modules that own parameters directly."""


def initialise(model: nn.Module, init: Init, depth: int, seed: int) -> None:
    """Initialize every parameter of a model in place, in the order of its names, from one seed.

    Weights and biases of LSTM layers are uniform in 1 / sqrt(units), as torch has them, whatever the rest is.
    """
    generator = torch.Generator().manual_seed(seed)
    parameter_ids: set[int] = set()
    owners = {
        f"{path}.{name}" if path else name: owner
        for path, owner in model.named_modules()
        for name in dict(owner.named_children())
    }
    for path, module in model.named_modules():
        owner, name = owners.get(path, model), path.rpartition(".")[2]
        for kind, parameter in module.named_parameters(recurse=False):
            assert isinstance(module, _PARAMETER_OWNERS)
            if id(parameter) in parameter_ids:
                continue
            parameter_ids.add(id(parameter))
            with torch.no_grad():
                if isinstance(module, nn.LayerNorm | nn.RMSNorm | SequenceNorm):
                    is_factor = kind == "weight" and not isinstance(module, ZeroCenteredRMSNorm)
                    parameter.fill_(1.0 if is_factor else 0.0)
                elif isinstance(owner, LSTMLayer):
                    bound = 1 / math.sqrt(owner.hidden)
                    parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
                elif isinstance(module, OffsetEmbedding):
                    parameter.zero_()
                elif parameter.dim() < 2:
                    parameter.fill_(GATE_BIAS if isinstance(owner, HighwayLayer) and name == "gate" else 0.0)
                elif isinstance(init, Uniform):
                    parameter.copy_(torch.empty(parameter.shape).uniform_(-init.bound, init.bound, generator=generator))
                else:
                    std = init.compute_std(owner, name, parameter, depth)
                    parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
        for kind, buffer in module.named_buffers(recurse=False):
            buffer.fill_(1.0 if isinstance(module, SequenceNorm) and kind == "running_var" else 0.0)


def tie(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a child of `owner` by `module`; their values must be equal, unless one is on the meta device."""
    for (path, ours), theirs in zip(owner.get_submodule(name).named_parameters(), module.parameters(), strict=True):
        if not (ours.is_meta or theirs.is_meta) and not torch.equal(ours, theirs):
            raise UsageError(f"'{name}.{path}' is tied and must be equal in both models, but it differs")
    setattr(owner, name, module)


MAX_PARAMETERS = 10**14
"""Limit beyond which a spec is certainly a mistake."""

ModelShape = Literal["encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream"]
"""Shape of a model; objectives list the shapes they can train."""

PARTS = ("head", "pooler", "pair", "detector", "mask_decoder")
"""Optional parts of a model besides its body."""


@spec
class Special:
    """Ids of special tokens, for generation and padding."""

    pad: int | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()
    start: int | None = None  # the decoder's first input


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameter counts: of the body, of the body with its pooler, and of everything."""

    body: int
    body_with_pooler: int
    total: int


@spec
class Model:
    """An encoder, a decoder or both over one token table, with the heads it was pre-trained with.

    `family` names the Hugging Face layout of its weights. With `shared` the decoder uses the encoder's weights, except
    for its cross-attention.
    """

    family: str
    vocab: Positive[int]
    width: Positive[int]
    encoder: Stack | TwoStream | BidirectionalRecurrent | None = None
    decoder: Stack | Recurrent | None = None
    shared: bool = False
    characters: CharacterCNN | None = None  # instead of a token table
    context: Positive[int] | None = None  # training length, if the positions have no maximum
    head: Head | None = None
    pooler: Pooler | None = None
    pair: PairHead | None = None
    span: SpanHead | None = None
    detector: Detector | None = None
    mask_decoder: MaskDecoder | None = None  # between encoder and vocabulary head
    init: Init = Normal()
    special: Special = Special()

    def __post_init__(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise UsageError("a model needs an encoder, a decoder or both")
        if self.pair is not None and self.pooler is None:
            raise UsageError("a pair head needs a pooler")
        if self.mask_decoder is not None:
            _check_mask_decoder(self.encoder, self.decoder)
        if self.shared and not _can_share(self.encoder, self.decoder):
            raise UsageError("shared weights need an encoder and a decoder with equal depth, sharing and blocks")
        if len({stack.embed.get_table_width(width=self.width) for stack in self.stacks}) > 1:
            raise UsageError("encoder and decoder share the token table: their factors must have the same width")
        if self.characters is not None and (self.span is not None or (self.head is not None and self.head.tied)):
            raise UsageError("a model that reads characters has no token table: its head needs tied=False")
        if self.head is not None and self.table != self.head_width and self.head.transform is None:
            raise UsageError(
                f"a head on a token table of width {self.table} needs a transform from width {self.head_width}"
            )
        if self.is_recurrent and self.is_encoder_decoder:
            raise UsageError("a recurrent stack has no cross-attention: it cannot be part of an encoder-decoder")
        for stack in self.stacks:
            if isinstance(stack, Recurrent):
                stack.check_width(width=self.width)
                continue
            _, _, head = stack.blocks[0].attention.resolve_shape(width=self.width)
            for position in (stack.position, *(block.attention.rotary for block in stack.blocks)):
                if isinstance(position, Rotary) and int(head * position.fraction) % 2:
                    raise UsageError(f"rotary positions rotate pairs: head_width {head} x fraction must be even")
            for block in stack.blocks:
                block.attention.resolve_shape(width=self.width)
                if (block.cross is None) != (not self.is_encoder_decoder or stack is self.encoder):
                    raise UsageError("cross-attention is required in the decoder of an encoder-decoder, and only there")
        if self.params().total > MAX_PARAMETERS:
            raise UsageError(f"a model has at most {MAX_PARAMETERS:,} parameters, got {self.params().total:,}")

    @property
    def shape(self) -> ModelShape:
        """Shape name, as objectives list it."""
        if isinstance(self.encoder, TwoStream) and not self.is_encoder_decoder:
            return "two-stream"
        if isinstance(self.encoder, BidirectionalRecurrent):
            return "two-way"
        return "encoder-decoder" if self.is_encoder_decoder else "encoder" if self.decoder is None else "decoder"

    @property
    def parts(self) -> frozenset[str]:
        """The `PARTS` that this model has."""
        return frozenset(part for part in PARTS if getattr(self, part) is not None)

    @property
    def stacks(self) -> list[AnyStack]:
        return [stack for stack in (self.encoder, self.decoder) if stack is not None]

    @property
    def last_stack(self) -> AnyStack:
        """The stack whose states the heads take."""
        return self.stacks[-1]

    @property
    def first_block(self) -> AnyBlock:
        """First block of the last stack, of a model with attention."""
        stack = self.last_stack
        assert not isinstance(stack, Recurrent), "a recurrent stack has no attention"
        return stack.blocks[0]

    @property
    def reads_backward(self) -> bool:
        """True if the decoder reads texts from their end, and predicts the previous token instead of the next."""
        return isinstance(self.decoder, Recurrent) and self.decoder.backward

    @property
    def carries_state(self) -> bool:
        """True if it reads a text in windows, with the state or a memory of earlier ones: `model.new_memory`."""
        is_recurrent = isinstance(self.decoder, Recurrent) and not self.decoder.backward
        return is_recurrent or isinstance(self.encoder, TwoStream)

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder is not None and self.decoder is not None

    @property
    def is_recurrent(self) -> bool:
        return any(isinstance(stack, Recurrent) for stack in self.stacks)

    @property
    def is_post_norm(self) -> bool:
        """True if a block normalizes the sum of its input and its output, as BERT's do."""
        blocks = [block for stack in self.stacks for block in getattr(stack, "blocks", ())]
        return any(getattr(getattr(block, "norms", None), "post", None) is not None for block in blocks)

    @property
    def depth(self) -> int:
        return max(stack.depth for stack in self.stacks)

    @property
    def table(self) -> int:
        """Width of the token table; half of the width if the states are those of two directions."""
        return self.last_stack.embed.get_table_width(width=self.head_width)

    @property
    def head_width(self) -> int:
        """Width of the states that the vocabulary head takes: those of one direction, if there are two."""
        return self.width // 2 if isinstance(self.encoder, BidirectionalRecurrent) else self.width

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length of the positions; None: no limit."""
        limits = [stack.position.max_length for stack in self.stacks if stack.position]
        limits += [self.mask_decoder.rows] if self.mask_decoder else []
        return min((limit for limit in limits if limit is not None), default=None)

    def params(self) -> Params:
        """Return exact parameter counts, without building the model."""
        tokens = self.characters.params(width=self.table) if self.characters else self.vocab * self.table
        body = tokens + sum(stack.params(width=self.width) for stack in self.stacks)
        if self.shared and isinstance(self.decoder, Stack):
            body -= sum(_count_without_cross(block, self.width) for block in self.decoder.layers)
        body_with_pooler = body + (self.pooler.params(width=self.width) if self.pooler else 0)
        parts = (self.pair, self.detector, self.mask_decoder)
        total = body_with_pooler + sum(part.params(width=self.width) for part in parts if part)
        if self.head:
            total += self.head.params(vocab=self.vocab, width=self.head_width, table=self.table)
        if self.span:
            total += self.span.params(vocab=self.vocab, width=self.width, table=self.table)
        return Params(body=body, body_with_pooler=body_with_pooler, total=total)


def _check_mask_decoder(encoder: AnyStack | None, decoder: AnyStack | None) -> None:
    """Raise `UsageError` unless the model is an encoder whose layers can be applied to other queries."""
    position = encoder.position if isinstance(encoder, Stack) and decoder is None else None
    if not isinstance(position, DistanceEmbedding) or position.input is not None:
        raise UsageError("a mask decoder needs an encoder with disentangled attention and no positions in its input")


def _can_share(encoder: AnyStack | None, decoder: AnyStack | None) -> bool:
    """Return True if both have the same blocks, except for the cross-attention."""
    if encoder is None or not isinstance(decoder, Stack):
        return False
    if encoder.layer_indices != decoder.layer_indices:
        return False
    return encoder.blocks == tuple(replace(block, cross=None) for block in decoder.blocks)


def _count_without_cross(block: Block, width: int) -> int:
    return block.params(width=width) - (
        block.cross.params(width=width) + block.norms.params(width=width) if block.cross else 0
    )


class HasParams(Protocol):
    """A spec of any shape."""

    def params(self) -> Params: ...


def check_memory(spec: HasParams, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
    """Raise `ResourceError` if the weights alone exceed the total memory of the device."""
    count = spec.params().total
    need, have = count * dtype.itemsize, _get_capacity(torch.device(device))
    if have is not None and need > have:
        raise ResourceError(
            f"{count:,} parameters need {need / 1e9:,.1f} GB of memory, but {device} has {have / 1e9:,.1f} GB; "
            "choose a smaller model or another device"
        )


def _get_capacity(device: torch.device) -> int | None:
    """Return the total memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
