"""Models as users of ONNX call them: over padded inputs, and decoders with past keys and values.

Our models take ragged batches; here a row of `input_ids` is a sequence, and `attention_mask` marks its tokens. Padding
may be on either side. Keys and values of a layer are `[B, K, P, D]`, those of the past first. Legend: B rows, T columns
or new tokens, P past tokens, S = P + T keys, K key-value heads or classes, H heads, D head width, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.heads.base import SequenceHead, TokenHead, find_start_token
from pretune.adaptation.heads.sequence import Choice
from pretune.adaptation.heads.token import Span
from pretune.core.types import Batch
from pretune.inference.pooling import TextEncoder
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.block import TransformerBlock
from pretune.nn.cache import Rotations
from pretune.nn.heads import PoolingMode
from pretune.nn.positions import rotate
from pretune.nn.stack import OutputFlags, TransformerStack

FLAGS = OutputFlags(backend="rows")
"""The attention backend that is one masked product per row."""


def make_batch(tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> Batch:
    """Return the batch of padded rows `[B, T]`: a row is a sequence, and its padding is filler."""
    rows, length = tokens.shape
    row = torch.arange(rows, device=tokens.device)
    return Batch(
        tokens=tokens.flatten(),
        offsets=(torch.arange(rows + 1, device=tokens.device) * length).to(torch.int32),
        sequence=torch.where(attention_mask > 0, row[:, None], -1).flatten(),
        positions=number_tokens(attention_mask).flatten(),
        rows=rows,
        segments=None if segments is None else segments.flatten(),
    )


def number_tokens(attention_mask: Tensor) -> Tensor:
    """Return the position of each token in its sequence `[B, T]`; 0 for padding before it."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def compute_states(model: LanguageModel, batch: Batch) -> Tensor:
    """Return the states `[B T, W]` of an encoder or decoder; of an encoder-decoder those of the encoder."""
    stack = model.encoder if model.encoder is not None else model.decoder
    assert stack is not None
    states: Tensor = stack(model.embed_tokens(batch.tokens), model.add_language(batch), flags=FLAGS).states
    return states


def pool_rows(states: Tensor, attention_mask: Tensor, mode: PoolingMode) -> Tensor:
    """Pool states `[B, T, W]` into one vector per row `[B, W]`, as `pretune.nn.heads.pool_states` does."""
    is_token, order = attention_mask > 0, attention_mask.long().cumsum(1)  # the n-th token is number n
    if mode == "max":
        return states.masked_fill(~is_token[..., None], torch.finfo(states.dtype).min).amax(1)
    count = order[:, -1:]
    if mode == "first":
        weights = (is_token & (order == 1)).to(states.dtype)
    elif mode == "last":
        weights = (is_token & (order == count)).to(states.dtype)
    else:
        size = count.clamp(min=1).to(states.dtype)
        weights = is_token.to(states.dtype) / (size.sqrt() if mode == "mean_sqrt" else size)
        if mode == "weighted":
            weights = weights * order.to(states.dtype) * 2 / (size + 1)
    return (weights[:, None] @ states).squeeze(1)


class PaddedLanguageModel(nn.Module):
    """An encoder with its vocabulary head (`logits`); the states of a model without one, or of an encoder-decoder."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.has_head = model, model.head is not None and model.decoder is None
        self.output_names = ("logits",) if self.has_head else ("last_hidden_state",)

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor]:
        model, batch = self.model, make_batch(tokens, attention_mask, segments)
        if not self.has_head:
            return (_unflatten(compute_states(model, batch), tokens),)
        assert model.encoder is not None
        output = model.encoder(model.embed_tokens(batch.tokens), model.add_language(batch), flags=FLAGS)
        logits = model.logits(model.decode_masks(output, batch))
        assert logits is not None
        return (_unflatten(logits, tokens),)


class PaddedTextEncoder(nn.Module):
    """A model that embeds texts: its token states, and the pooled vector after dense layers and normalization."""

    output_names = ("last_hidden_state", "sentence_embedding")

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        states = compute_states(self.encoder.model, make_batch(tokens, attention_mask, segments))
        rows = _unflatten(states, tokens)
        modes: list[PoolingMode] = ["first" if name == "cls" else name for name in self.encoder.config.pooling]  # type: ignore[misc]
        return rows, self.encoder.finish(torch.cat([pool_rows(rows, attention_mask, mode) for mode in modes], dim=-1))


class PaddedModelWithHead(nn.Module):
    """A model with a task head: `logits` `[B, K]` or `[B, T, K]`; of spans `start_logits` and `end_logits` `[B, T]`.

    The options of a multiple choice are a dimension of the inputs `[B, C, T]`, with a logit each `[B, C]`. An
    encoder-decoder has the text on both sides.
    """

    def __init__(self, model: ModelWithHead) -> None:
        super().__init__()
        self.model = model
        self.has_options = isinstance(model.spec, Choice)
        self.output_names = ("start_logits", "end_logits") if isinstance(model.spec, Span) else ("logits",)

    def forward(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, ...]:
        shape, head = tokens.shape, self.model.head
        if self.has_options:
            tokens, attention_mask = tokens.flatten(0, 1), attention_mask.flatten(0, 1)
            segments = None if segments is None else segments.flatten(0, 1)
        states = self._compute_states(tokens, attention_mask, segments)
        if isinstance(head, TokenHead):
            logits = _unflatten(head(states), tokens)
            return logits.unbind(-1) if isinstance(self.model.spec, Span) else (logits,)
        assert isinstance(head, SequenceHead)
        rows = _unflatten(states, tokens)
        logits = head.classify(torch.cat([pool_rows(rows, attention_mask, mode) for mode in head.places], dim=-1))
        return (logits.view(shape[0], shape[1]) if self.has_options else logits,)

    def _compute_states(self, tokens: Tensor, attention_mask: Tensor, segments: Tensor | None) -> Tensor:
        model = self.model.model
        batch = make_batch(tokens, attention_mask, segments)
        states = compute_states(model, batch)
        if not model.spec.is_encoder_decoder:
            return states
        assert model.decoder is not None
        is_first = (attention_mask > 0) & (attention_mask.long().cumsum(1) == 1)
        target_tokens = torch.where(is_first, find_start_token(model.spec), tokens.roll(1, 1))
        target = replace(batch, tokens=target_tokens.flatten(), segments=None, source=batch)
        out: Tensor = model.decoder(model.embed_tokens(target.tokens), target, states, flags=FLAGS).states
        return out


def _unflatten(values: Tensor, tokens: Tensor) -> Tensor:
    """Return values `[B T, …]` as `[B, T, …]`."""
    return values.view(tokens.shape[0], tokens.shape[1], -1)


KeysAndValues = tuple[Tensor, Tensor]


class CachedDecoder(nn.Module):
    """A decoder: `input_ids` `[B, T]`, `attention_mask` `[B, S]`, `position_ids` `[B, T]` if it has positions, past.

    The past may be empty (P = 0), so that one graph reads the prompt and generates.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, stack = model, _get_decoder(model)
        mechanism = getattr(stack.spec.position, "mechanism", None)
        self.has_positions = bool(stack.rotaries) or mechanism in ("input", "rotation")

    def forward(self, tokens: Tensor, attention_mask: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits `[B, T, vocab]`, and the keys and values of every layer."""
        past = pair_up(inputs[1:] if self.has_positions else inputs)
        is_key = attention_mask > 0  # [B, S]
        is_query = is_key[:, past[0][0].shape[2] :]
        positions = inputs[0] if self.has_positions else torch.zeros_like(tokens)
        # NOTE: padding attends to all earlier columns, so that every query has a key.
        mask = is_key[:, None, None] | ~is_query[:, None, :, None]
        logits, presents = _run_decoder(self.model, tokens, positions, past, [None] * len(past), mask)
        return logits, *(values for present in presents for values in present)


class CachedEncoderDecoder(nn.Module):
    """The decoder of an encoder-decoder: the first step (`with_past` false), and later steps.

    The first takes `input_ids` `[B, T]`, `encoder_attention_mask` and `encoder_hidden_states`, and returns the keys
    and values of both attentions; later steps take these, and return those of the self-attention.
    """

    def __init__(self, model: LanguageModel, *, with_past: bool) -> None:
        super().__init__()
        self.model, self.with_past = model, with_past

    def forward(self, tokens: Tensor, source_mask: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits `[B, T, vocab]`, and keys and values: those of self-attention, then of cross-attention."""
        stack = _get_decoder(self.model)
        if self.with_past:
            pairs = pair_up(inputs)  # self-attention and cross-attention of each layer in turn
            past, cross = pairs[::2], pairs[1::2]
        else:
            past = [_make_empty(layer.attention, tokens) for layer in stack]
            cross = [_project_source(layer, inputs[0]) for layer in stack]
        positions = (torch.arange(tokens.shape[1]) + past[0][0].shape[2]).expand(tokens.shape[0], -1)
        is_source = (source_mask > 0)[:, None, None]
        sources = [(keys, values, is_source) for keys, values in cross]
        logits, presents = _run_decoder(self.model, tokens, positions, past, sources)
        if self.with_past:
            return logits, *(values for present in presents for values in present)
        return logits, *(values for pairs in zip(presents, cross, strict=True) for pair in pairs for values in pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepContext:
    """Masks and rotations of a step, for all of its layers."""

    rows: int
    masks: dict[int | None, Tensor]  # by window: bool, or float with the bias in it; [B or 1, H or 1, T, S]
    rotations: Rotations


def pair_up(tensors: Sequence[Tensor]) -> list[KeysAndValues]:
    """Return keys and values in pairs."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _get_decoder(model: LanguageModel) -> TransformerStack:
    assert isinstance(model.decoder, TransformerStack)
    return model.decoder


def _build_context(stack: TransformerStack, positions: Tensor, past: int, mask: Tensor | None) -> _StepContext:
    """Return masks, biases and rotations for new tokens after `past` ones; `mask` marks padding among the keys."""
    columns = torch.arange(positions.shape[1])
    distance = torch.arange(positions.shape[1] + past) - (columns + past)[:, None]  # [T, S]
    bias = None
    if stack.spec.position is not None and stack.spec.position.mechanism == "bias":
        assert stack.position is not None
        bias = stack.position(distance)[None]
    masks = {}
    for window in dict.fromkeys(block.attention.window for block in stack.spec.blocks):
        is_visible = distance <= 0
        if window is not None:
            is_visible = is_visible & (distance > -window)
        visible = is_visible[None, None] if mask is None else is_visible & mask
        masks[window] = visible if bias is None else bias.masked_fill(~visible, float("-inf"))
    rotations = stack.compute_rotations(positions.flatten(), torch.float32)
    return _StepContext(rows=positions.shape[0], masks=masks, rotations=rotations)


def _run_decoder(
    model: LanguageModel,
    tokens: Tensor,
    positions: Tensor,
    past: Sequence[KeysAndValues],
    sources: Sequence[tuple[Tensor, Tensor, Tensor] | None],
    mask: Tensor | None = None,
) -> tuple[Tensor, list[KeysAndValues]]:
    """Return the logits `[B, T, vocab]`, and keys and values of every layer, those of the past first."""
    stack = _get_decoder(model)
    context = _build_context(stack, positions, past[0][0].shape[2], mask)
    x = stack.embed_inputs(model.embed_tokens(tokens.flatten()), positions.flatten(), None)
    presents: list[KeysAndValues] = []
    for layer, pair, source in zip(stack, past, sources, strict=True):
        x, present = _run_layer(layer, x, context, pair, source)
        presents.append(present)
    logits = model.logits(stack.apply_final_norm(x))
    assert logits is not None
    return _unflatten(logits, tokens), presents


def _run_layer(
    layer: TransformerBlock,
    x: Tensor,
    context: _StepContext,
    past: KeysAndValues,
    cross: tuple[Tensor, Tensor, Tensor] | None,
) -> tuple[Tensor, KeysAndValues]:
    """Return a layer's output `[B T, W]`, and its keys and values with the past."""
    attention, rotation = layer.attention, context.rotations[layer.attention.rotary]
    q, k, v = attention.project(layer.attention_norm.pre(x), None)
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    keys = torch.cat((past[0], _split_rows(k, context.rows)), dim=2)
    values = torch.cat((past[1], _split_rows(v, context.rows)), dim=2)
    output = _attend(attention, q, keys, values, context.masks[attention.window], context.rows)
    if layer.cross is None or cross is None or layer.cross_norm is None:
        return layer.finish(x, output), (keys, values)
    x = layer.attention_norm.add(x, layer.attention_norm.out(output))
    queries = layer.cross.project_queries(layer.cross_norm.pre(x))
    output = _attend(layer.cross, queries, *cross, context.rows)
    x = layer.cross_norm.add(x, layer.cross_norm.out(output))
    hidden = layer.feedforward_norm.out(layer.feedforward(layer.feedforward_norm.pre(x)))
    return layer.feedforward_norm.add(x, hidden), (keys, values)


def _attend(attention: MultiHeadAttention, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: int) -> Tensor:
    """Return the output `[B T, W]` of queries `[B T, H, D]` for keys and values `[B, K, S, D]`."""
    group = attention.heads // attention.kv_heads
    if group > 1:
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    output = F.scaled_dot_product_attention(_split_rows(q, rows), keys, values, attn_mask=mask, scale=attention.scale)
    out: Tensor = attention.out(output.transpose(1, 2).flatten(0, 1).flatten(1))
    return out


def _split_rows(x: Tensor, rows: int) -> Tensor:
    """Return heads `[B T, H, D]` as `[B, H, T, D]`."""
    return x.view(rows, -1, x.shape[1], x.shape[2]).transpose(1, 2)


def _make_empty(attention: MultiHeadAttention, tokens: Tensor) -> KeysAndValues:
    empty = attention.k.weight.new_zeros(tokens.shape[0], attention.kv_heads, 0, attention.head)
    return empty, empty


def _project_source(layer: TransformerBlock, states: Tensor) -> KeysAndValues:
    """Return keys and values of the encoder's states `[B, S, W]`."""
    assert layer.cross is not None
    keys, values = layer.cross.project_keys(states.flatten(0, 1))
    return _split_rows(keys, states.shape[0]), _split_rows(values, states.shape[0])
