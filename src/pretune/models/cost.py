"""Cost estimates from a spec alone: FLOPs, memory, time, energy and price.

FLOPs are *model* FLOPs, so that they compare across implementations: matrix products only, two per weight and token
forward and four backward; nothing for recomputation, norms, softmax, optimizer or padding. Derived in docs/cost.md.

Legend: W width, H query heads, K key heads, D width of a head, S length in tokens, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pretune.core.errors import UsageError
from pretune.models.devices import Device
from pretune.models.spec import Model
from pretune.nn.attention import Attention
from pretune.nn.heads import Head
from pretune.nn.layers import FeedForward
from pretune.nn.loss import BLOCK_BYTES
from pretune.nn.recurrent_stack import AnyStack, Recurrent
from pretune.nn.relative_attention import RelativeAttention
from pretune.nn.stack import Stack
from pretune.nn.two_stream import AnyBlock, AttentionStack, TwoStream

Precision = Literal["fp32", "bf16"]

CO2_KG_PER_KWH = 0.475
"""kg of CO2e per kWh of electricity: about the world average. Countries range from 0.02 to 0.8."""

_FP32_BYTES = 4  # bytes of a number in fp32
_PRECISION_BYTES = {"fp32": 4, "bf16": 2}
# Hidden tensors saved for backward; other activations save 2.
_SAVED_TENSORS = {"relu": 1, "tanh": 1, "identity": 1, "quick_gelu": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory in bytes, by purpose."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    cache: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.cache


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Cost of training on a number of tokens with one device."""

    flops: float
    seconds: float
    kwh: float
    co2_kg: float
    dollars: float


def estimate_target_share(spec: Model) -> float:
    """Return the usual share of positions with a target.

    15 % for encoders (masked tokens), 1/6 for two-stream models, all positions otherwise.
    """
    if isinstance(spec.encoder, TwoStream):
        return 1 / 6
    return 1.0 if spec.decoder or spec.is_recurrent or spec.head is None else 0.15


def flops_per_token(
    spec: Model, *, length: int, targets: float = 1.0, target_length: int | None = None, training: bool = True
) -> float:
    """Return the model FLOPs per token in sequences of `length` tokens; the head runs on a share `targets` of them.

    For an encoder-decoder: the FLOPs of one example of `length` source and `target_length` (default: equal) target
    tokens, divided by the tokens of both; `targets` is then a share of the target tokens.

    Poolers and pair heads run once per sequence and are not counted.
    """
    source, target = _split_lengths(spec, length, target_length)
    _check_share(targets)
    width = spec.width
    total = 0.0
    if spec.encoder:
        total += source * _count_stack_flops(spec.encoder, width, source)
    if training and isinstance(spec.encoder, TwoStream):
        total += targets * source * _count_query_flops(spec.encoder, width, source)
    if spec.decoder:
        total += target * _count_stack_flops(spec.decoder, width, target)
    if spec.is_encoder_decoder and isinstance(spec.decoder, Stack):
        for block, times in _iterate_blocks(spec.decoder):
            total += times * _count_cross_flops(block, width, source, target)
    if spec.characters:
        total += (source + target) * 2 * spec.characters.count_weights(width=spec.table)
    if spec.head:
        total += targets * (target or source) * 2 * _count_head_weights(spec.head, spec, training=training)
        total += source * _count_decoder_flops(spec, source, targets)
    if spec.detector:
        total += (target or source) * 2 * spec.detector.count_weights(width=width)
    return (3 if training else 1) * total / (source + target)


def estimate_memory(
    spec: Model,
    *,
    tokens: int,
    length: int,
    training: bool,
    precision: Precision,
    targets: float = 1.0,
    target_length: int | None = None,
) -> MemoryEstimate:
    """Return an ESTIMATE of the memory for a batch of `tokens` tokens, in sequences of `length`, on one device.

    Training: fp32 weights (in bf16 also a half-precision copy), fp32 gradients, AdamW's two moments, and the
    activations saved for the backward pass (formula in `docs/cost.md`): eager mode, attention without score matrices,
    no activation checkpointing. Inference: weights at `precision`, the tensors of one layer, and for a decoder the
    keys and values of `tokens // length` sequences. Memory of driver, allocator and other libraries is not included.

    For an encoder-decoder, `tokens` counts source and target together, as in `flops_per_token`.
    """
    _check_share(targets)
    if tokens < 1:
        raise UsageError(f"tokens must be at least 1, got {tokens}")
    source, target = _split_lengths(spec, length, target_length)
    sequences = max(1, tokens // (source + target))
    share = tokens / (source + target)
    sides = (source * share, target * share)
    params, item = spec.params().total, _PRECISION_BYTES[precision]
    if not training:
        cache = round(sequences * item * _count_cached_values(spec, source, target))
        return MemoryEstimate(
            weights=params * item, activations=round(_count_working_bytes(spec, sides, item)), cache=cache
        )
    copies = _FP32_BYTES + (item if item < _FP32_BYTES else 0)
    activations = sum(_count_stack_bytes(spec, stack, sides, item) for stack in spec.stacks)
    if spec.characters:
        activations += sum(sides) * item * spec.characters.count_values(width=spec.table)
    activations += _count_head_bytes(spec, targets * (sides[1] or sides[0]), item)
    if isinstance(spec.encoder, TwoStream):
        activations += sides[0] * _count_stream_bytes(spec.encoder, spec.width, source, targets, item)
    if spec.detector:  # its input, and the tensors around the activation
        activations += (
            (sides[1] or sides[0]) * item * spec.width * (1 + _SAVED_TENSORS.get(spec.detector.activation, 2))
        )
    return MemoryEstimate(
        weights=params * copies,
        gradients=params * _FP32_BYTES,
        optimizer=2 * params * _FP32_BYTES,
        activations=round(activations),
    )


def estimate_recomputed_bytes(spec: Model, *, tokens: int, length: int, precision: Precision) -> int:
    """Return the activation bytes that activation checkpointing saves: those of all blocks but one.

    The input of every block stays. 0 for recurrent layers, which are not recomputed.
    """
    source, target = _split_lengths(spec, length, None)
    share, item = tokens / (source + target), _PRECISION_BYTES[precision]
    total, largest = 0.0, 0.0
    for stack, side in ((spec.encoder, source * share), (spec.decoder, target * share)):
        if stack is None or isinstance(stack, Recurrent):
            continue
        is_rotary = stack.position is not None and stack.position.mechanism == "rotation"
        for block, times in _iterate_blocks(stack):
            has_rotation = is_rotary or block.attention.rotary is not None
            size = side * _count_block_bytes(block, spec.width, item, is_rotary=has_rotation)
            total += times * (size - side * item * spec.width)
            largest = max(largest, size)
    return max(round(total - largest), 0)


def estimate_cost(spec: Model, tokens: float, device: Device, length: int, targets: float) -> CostEstimate:
    """Return time, energy, CO2e and price of training on `tokens` tokens.

    Does not check that the model fits into memory; see `estimate_memory`.
    """
    flops = tokens * flops_per_token(spec, length=length, targets=targets)
    seconds = flops / device.rate
    kwh = seconds * device.watts / 3.6e6
    dollars = seconds / 3600 * device.dollars_per_hour
    return CostEstimate(flops=flops, seconds=seconds, kwh=kwh, co2_kg=kwh * CO2_KG_PER_KWH, dollars=dollars)


def count_params_by_part(spec: Model) -> dict[str, int]:
    """Return the parameter counts of every part; their sum is `spec.params().total`."""
    width = spec.width
    characters = spec.characters.params(width=spec.table) if spec.characters else 0
    counts = Counter({"characters": characters, "token table": 0 if characters else spec.vocab * spec.table})
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is None:
            continue
        name = f"{side} " if spec.is_encoder_decoder else ""
        counts[f"{name}embedding"] += stack.embed.params(width=width) + stack.position_params(width=width)
        if isinstance(stack, Recurrent):
            counts["recurrent layers"] += stack.params(width=width) - stack.embed.params(width=width)
            continue
        has_weights = not (spec.shared and side == "decoder")  # else shared with the encoder, except cross-attention
        for block in stack.layers:
            cross = block.cross.params(width=width) if block.cross else 0
            counts[f"{name}attention"] += has_weights * block.attention.params(width=width)
            counts[f"{name}cross-attention"] += cross
            counts[f"{name}feed-forward"] += has_weights * block.feedforward.params(width=width)
            norms = block.list_norms() if has_weights else [block.norms] * (block.cross is not None)
            counts[f"{name}norms"] += sum(slots.params(width=width) for slots in norms)
        counts[f"{name}norms"] += stack.norm.params(width=width) if stack.norm else 0
        counts["convolution"] += stack.conv.params(width=width) if stack.conv else 0
    counts["mask decoder"] += spec.mask_decoder.params(width=width) if spec.mask_decoder else 0
    counts["pooler"] += spec.pooler.params(width=width) if spec.pooler else 0
    counts["pair head"] += spec.pair.params(width=width) if spec.pair else 0
    counts["span head"] += spec.span.params(vocab=spec.vocab, width=width, table=spec.table) if spec.span else 0
    counts["detector"] += spec.detector.params(width=width) if spec.detector else 0
    if spec.head:
        counts["vocabulary head"] += spec.head.params(vocab=spec.vocab, width=spec.head_width, table=spec.table)
    return {name: count for name, count in counts.items() if count}


def count_visible_keys(length: int, window: int | None, *, causal: bool) -> float:
    """Return the mean number of keys per query: the area of the band around the diagonal, divided by the length.

    Without a window: S, or S / 2 if causal. The diagonal counts half on each side, so the result is within one key of
    the exact number.
    """
    reach = length if window is None else min(window, length)
    return reach * (2 - reach / length) / (2 if causal else 1)


def _split_lengths(spec: Model, length: int, target_length: int | None) -> tuple[int, int]:
    """Return the tokens of one example in the encoder and in the decoder; 0 if the model lacks it."""
    target = length if target_length is None else target_length
    if min(length, target) < 1:
        raise UsageError(f"length must be at least 1, got {min(length, target)}")
    if spec.is_encoder_decoder:
        return length, target
    return (0, length) if spec.decoder else (length, 0)


def _check_share(targets: float) -> None:
    if not 0 <= targets <= 1:
        raise UsageError(f"targets must be a share between 0 and 1, got {targets}")


def _iterate_blocks(stack: AttentionStack) -> Iterator[tuple[AnyBlock, int]]:
    """Yield every block of the pattern with the number of layers that compute it, shared weights included."""
    if stack.share is None:
        blocks: Sequence[AnyBlock] = stack.blocks
        for i, block in enumerate(blocks):
            yield block, len(range(i, stack.depth, len(stack.blocks)))
        return
    times = Counter(stack.layer_indices)
    for i, block in enumerate(stack.layers):
        yield block, times[i]


def _count_stack_flops(stack: AnyStack, width: int, length: int) -> float:
    """Return forward FLOPs per token, without cross-attention."""
    total = 2.0 * stack.embed.factor.width * width if stack.embed.factor else 0.0
    if isinstance(stack, Recurrent):
        return total + 2 * sum(stack.count_weights(width=width))
    total += 2.0 * stack.conv.count_weights(width=width) if stack.conv else 0.0
    for block, times in _iterate_blocks(stack):
        heads, _, head = block.attention.resolve_shape(width=width)
        weights = block.attention.count_weights(width=width) + block.feedforward.count_weights(width=width)
        scores = 2 * block.attention.products * heads * head
        total += times * (
            2 * weights + scores * count_visible_keys(length, block.attention.window, causal=stack.causal)
        )
    return total


def _count_decoder_flops(spec: Model, length: int, targets: float) -> float:
    """Return forward FLOPs per token of a mask decoder: keys and values of all tokens, queries of the targets."""
    if spec.mask_decoder is None or not isinstance(spec.encoder, Stack):
        return 0.0
    block, width = spec.encoder.blocks[-1], spec.width
    weights = 2 * width * width + block.feedforward.count_weights(width=width)
    per_target = 2 * weights + 2 * block.attention.products * width * length
    return 4 * width * width + targets * spec.mask_decoder.steps * per_target


def _count_query_flops(stack: TwoStream, width: int, length: int) -> float:
    """Return forward FLOPs per target of the query stream, which uses the content's keys and values."""
    total = 0.0
    for block, times in _iterate_blocks(stack):
        weights = 2 * width * width + block.feedforward.count_weights(width=width)
        total += times * (2 * weights + 2 * block.attention.products * width * length)
    return total


def _count_cross_flops(block: AnyBlock, width: int, source: int, target: int) -> float:
    """Return forward FLOPs per example: queries and outputs of target tokens, keys and values of source tokens."""
    assert block.cross is not None
    heads, kv_heads, head = block.cross.resolve_shape(width=width)
    return 4 * width * head * (heads * target + kv_heads * source) + 4 * heads * head * source * target


def _count_head_weights(head: Head, spec: Model, *, training: bool) -> int:
    """Return the weights multiplied per target, in each direction that the model predicts."""
    tokens = min(spec.vocab, head.sampling.samples + 1) if head.sampling and training else spec.vocab
    weights = tokens * spec.table + (spec.head_width * spec.table if head.transform else 0)
    return weights * (spec.width // spec.head_width)


def _count_stack_bytes(spec: Model, stack: AnyStack, sides: tuple[float, float], item: int) -> float:
    """Return the bytes saved for the backward pass by one stack."""
    width, (source, target) = spec.width, sides
    inner = stack.embed.get_norm_width(width=width)
    per_token = _FP32_BYTES * inner if stack.embed.norm else 0
    per_token += bool(stack.embed.dropout) * inner
    per_token += item * stack.embed.factor.width if stack.embed.factor else 0
    if isinstance(stack, Recurrent):
        per_token += stack.embed.get_inner_width(width=width) * item * bool(stack.input_dropout)
        return (source + target) * (per_token + sum(_count_lstm_bytes(stack, width, item)))
    per_token += (_FP32_BYTES * width if stack.norm else 0) + bool(stack.dropout) * width
    per_source = 0
    is_rotary = stack.position is not None and stack.position.mechanism == "rotation"
    for block, times in _iterate_blocks(stack):
        has_rotation = is_rotary or block.attention.rotary is not None
        per_token += times * _count_block_bytes(block, width, item, is_rotary=has_rotation)
        per_source += times * _count_source_bytes(block, width, item)
    if spec.is_encoder_decoder and stack is spec.encoder:
        per_token += item * width  # its states, the input of every decoder layer
    return (source if stack is spec.encoder else target) * per_token + source * per_source


def _count_lstm_bytes(stack: Recurrent, width: int, item: int) -> list[int]:
    """Return the bytes that each layer saves per token: its input, gates, cell, hidden state and output, dropout."""
    sizes = []
    for block, inputs in zip(stack.blocks, stack.list_widths(width=width), strict=False):
        outputs = block.width * (1 + bool(block.projection) + bool(block.dropout))
        sizes.append(item * (inputs + stack.directions * (6 * block.hidden + outputs)))
    return sizes


def _count_block_bytes(block: AnyBlock, width: int, item: int, *, is_rotary: bool) -> int:
    """Return the bytes that a block saves per token.

    Each sublayer saves its input; each norm saves its input in fp32, the precision of the residual stream; dropout
    saves one byte per element.
    """
    sublayers = block.list_norms()
    norms = sum(norm is not None for slots in sublayers for norm in (slots.pre, slots.out, slots.post))
    size = width * (len(sublayers) * (item + bool(block.dropout)) + _FP32_BYTES * norms)
    if block.parallel and block.norms.pre and sublayers[0].pre:
        size -= _FP32_BYTES * width  # both norms have the same input
    size += item * _count_attention_values(block.attention, width, is_rotary=is_rotary)
    size += _count_source_bytes(block, width, item)  # as much for its queries and output
    return size + bool(block.attention.out_dropout) * width + _count_hidden_bytes(block.feedforward, item)


def _count_attention_values(attention: Attention | RelativeAttention, width: int, *, is_rotary: bool) -> int:
    """Return the values saved per token: queries, keys, values and output; with a rotation or norm also its input."""
    heads, kv_heads, head = attention.resolve_shape(width=width)
    has_inputs = is_rotary or attention.norm is not None or attention.clip is not None
    return head * (4 * heads + has_inputs * (heads + kv_heads))


def _count_stream_bytes(stack: TwoStream, width: int, length: int, targets: float, item: int) -> float:
    """Return the bytes per token that two streams save in addition to an ordinary stack.

    Content stream: queries for distances, and the bias of every score. Query stream: as much as the content at the
    targets, except keys and values; and its products, laid out over all tokens.
    """
    total = 0.0
    for block, times in _iterate_blocks(stack):
        scores = block.attention.heads * length
        at_target = _count_block_bytes(block, width, item, is_rotary=False) - item * 4 * width
        total += times * (item * (width + scores) + targets * at_target + item * (3 * width + scores))
    return total


def _count_source_bytes(block: AnyBlock, width: int, item: int) -> int:
    """Return the bytes per source token: its keys and values in a decoder block."""
    if block.cross is None:
        return 0
    heads, _, head = block.cross.resolve_shape(width=width)
    return item * 2 * heads * head


def _count_hidden_bytes(layer: FeedForward, item: int) -> int:
    """Return the bytes per token around the activation; a gated product has two more factors."""
    tensors = _SAVED_TENSORS.get(layer.activation, 2) + (2 if layer.gated else 0)
    return layer.hidden * (item * tensors + bool(layer.dropout))


def _count_head_bytes(spec: Model, targets: float, item: int) -> float:
    """Return the bytes of the head: per target its state, transformed state and gradient; the gradient of the table.

    The loss computes a block of logits and their gradient at a time, so only one block of logits is in memory.
    """
    if spec.head is None or not targets:
        return 0
    per_target = item * (spec.width + spec.table)
    if spec.head.transform:
        per_target += spec.table * (2 * item + (_FP32_BYTES if spec.head.transform.norm else 0))
    logits = min(BLOCK_BYTES["cuda"], targets * spec.vocab * item)
    return targets * per_target + _FP32_BYTES * spec.vocab * spec.table + logits


def _count_working_bytes(spec: Model, sides: tuple[float, float], item: int) -> float:
    """Return the working memory of one layer without gradients: about as much as it would save for backward."""
    sizes = [0.0]
    for stack, tokens in zip((spec.encoder, spec.decoder), sides, strict=True):
        if isinstance(stack, Recurrent):
            sizes += [tokens * size for size in _count_lstm_bytes(stack, spec.width, item)]
        elif stack is not None:
            sizes += [tokens * _count_block_bytes(block, spec.width, item, is_rotary=False) for block in stack.blocks]
    return max(sizes)


def _count_cached_values(spec: Model, source: int, target: int) -> int:
    """Return the values in the cache of one sequence: keys and values of every layer and of the source, or states."""
    if isinstance(spec.decoder, Recurrent):
        return sum(block.width + block.hidden for block in spec.decoder.blocks)
    count = 0
    for block, times in _iterate_blocks(spec.decoder) if spec.decoder else ():
        _, kv_heads, head = block.attention.resolve_shape(width=spec.width)
        count += times * 2 * kv_heads * head * target
        if block.cross:
            _, kv_heads, head = block.cross.resolve_shape(width=spec.width)
            count += times * 2 * kv_heads * head * source
    return count
