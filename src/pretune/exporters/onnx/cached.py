"""Decoders with past keys and values as inputs and outputs, as users of ONNX call them.

Keys and values of a layer are `[B, K, P, D]`, those of the past first. Legend: B rows, T new tokens, P past tokens,
S = P + T keys, K key-value heads, H heads, D head width, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.block import TransformerBlock
from pretune.nn.cache import Rotations
from pretune.nn.positions import rotate
from pretune.nn.stack import TransformerStack

KeysAndValues = tuple[Tensor, Tensor]


class CachedDecoder(nn.Module):
    """A decoder: `input_ids` `[B, T]`, `attention_mask` `[B, S]`, `position_ids` `[B, T]` if it has positions, past.

    The past may be empty (P = 0), so that one graph reads the prompt and generates.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.stack = model, _get_decoder(model)
        position = self.stack.spec.position
        self.has_positions = bool(self.stack.rotaries) or (
            position is not None and position.mechanism in ("input", "rotation")
        )

    def forward(self, tokens: Tensor, attention_mask: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits `[B, T, vocab]`, and the keys and values of every layer."""
        past = pair_up(inputs[1:] if self.has_positions else inputs)
        is_key = attention_mask > 0  # [B, S]
        is_query = is_key[:, past[0][0].shape[2] :]
        positions = inputs[0] if self.has_positions else torch.zeros_like(tokens)
        # NOTE: padding attends to all earlier columns, so that every query has a key.
        mask = is_key[:, None, None] | ~is_query[:, None, :, None]
        context = _build_context(self.stack, positions, past[0][0].shape[2], mask)
        x = self.stack.embed_inputs(self.model.embed_tokens(tokens.flatten()), positions.flatten(), None)
        presents: list[Tensor] = []
        for layer, keys in zip(self.stack, past, strict=True):
            x, present = _run_layer(layer, x, context, keys, None)
            presents += present
        return _compute_logits(self.model, self.stack, x, tokens), *presents


class CachedEncoderDecoder(nn.Module):
    """The decoder of an encoder-decoder: the first step (`with_past` false), and later steps.

    The first takes `input_ids` `[B, T]`, `encoder_attention_mask` and `encoder_hidden_states`, and returns the keys
    and values of both attentions; later steps take these, and return those of the self-attention.
    """

    def __init__(self, model: LanguageModel, *, with_past: bool) -> None:
        super().__init__()
        self.model, self.stack, self.with_past = model, _get_decoder(model), with_past

    def forward(self, tokens: Tensor, source_mask: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits `[B, T, vocab]`, and keys and values: those of self-attention, then of cross-attention."""
        stack, depth = self.stack, self.stack.spec.depth
        if self.with_past:
            pairs = pair_up(inputs)  # self-attention and cross-attention of each layer in turn
            past, cross = pairs[::2], pairs[1::2]
        else:
            past = [_make_empty(layer.attention, tokens) for layer in stack]
            cross = [_project_source(layer, inputs[0]) for layer in stack]
        length = past[0][0].shape[2]
        positions = (torch.arange(tokens.shape[1]) + length).expand(tokens.shape[0], -1)
        context = _build_context(stack, positions, length, None)
        is_source = (source_mask > 0)[:, None, None]
        x = stack.embed_inputs(self.model.embed_tokens(tokens.flatten()), positions.flatten(), None)
        presents: list[Tensor] = []
        for i, layer in zip(range(depth), stack, strict=True):
            x, present = _run_layer(layer, x, context, past[i], (*cross[i], is_source))
            presents += [*present, *(() if self.with_past else cross[i])]
        return _compute_logits(self.model, stack, x, tokens), *presents


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


def _compute_logits(model: LanguageModel, stack: TransformerStack, x: Tensor, tokens: Tensor) -> Tensor:
    logits = model.logits(stack.apply_final_norm(x))
    assert logits is not None
    return logits.view(tokens.shape[0], tokens.shape[1], -1)
