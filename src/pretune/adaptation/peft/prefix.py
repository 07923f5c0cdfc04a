"""Prefix tuning and prompt tuning: learned vectors before the text, in every block or at the input only.

Prefix tuning (Li and Liang, 2021) has learned keys and values in every block, before each sequence. They act like
tokens before the text: the text's positions start after them, and relative distances and windows include them. Rotary
keys are learned after rotation. All sequences of a row share them; an encoder attends to them from both sides, and both
stacks of an encoder-decoder have their own; cross-attention has none. They are initialized with the keys and values of
real tokens, so that a decoder first behaves as if those tokens preceded the text.

    keys   p0 p1 the cat | p0 p1 it sat        p: trained, separate in each block
    text         the cat |       it sat

With `hidden` they are reparameterized during training (section 4.3): embeddings of real tokens, through one layer
shared by all blocks and one per block. The result is added to the initial values, and the sum is saved.

Prompt tuning (Lester et al., 2021) has learned vectors in the place of token embeddings. The data layout reserves slots
(`data.sequences.reserve`, with the same count): the first positions of each sequence, which the model fills from its
table. In an encoder-decoder the encoder reads them.

    layout   .  .  the cat        input   p0 p1 the cat        p: trained
"""

import math
from typing import Annotated, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import MAX_SIZE, PeftMethod, choose_tokens, init_uniform, refuse_recurrent
from pretune.core.config import Ge, Le, NonEmpty, spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.layout import batch
from pretune.inference.text_model import eval_mode
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.cache import KVCache
from pretune.nn.recurrent_stack import RecurrentStack
from pretune.nn.relative_attention import RelativeAttentionLayer
from pretune.nn.stack import TransformerStack
from pretune.nn.two_stream import TwoStreamStack

Side = Literal["encoder", "decoder"]
SelfAttention = MultiHeadAttention | RelativeAttentionLayer
KeysAndValues = tuple[Tensor, Tensor]


@spec(kind="prefix")
class PrefixTuning(PeftMethod):
    """Prefix tuning: learned keys and values before the text, in every block (Li and Liang, 2021)."""

    count: Annotated[int, Ge(0), Le(MAX_SIZE)] = 20
    tokens: Annotated[tuple[int, ...], NonEmpty()] | None = None  # initial ids, repeated; None: sampled ones
    # Units of the reparameterization; None: no reparameterization.
    hidden: Annotated[int, Ge(1), Le(MAX_SIZE)] | None = None
    sides: tuple[Side, ...] = ("encoder", "decoder")  # stacks that get a prefix, if the model has them

    rate: ClassVar[float] = 1e-2

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add a prefix to the keys of every block."""
        refuse_recurrent(model, "prefix tuning adds keys and values to attention, which a recurrent model lacks")
        stacks = [(side, stack) for side, stack in list_stacks(model) if side in self.sides]
        if not stacks:
            raise UsageError(f"this model has no stack for a prefix on {', '.join(self.sides) or 'no side'}")
        max_length = model.spec.max_length
        if max_length is not None and self.count >= max_length:
            raise UsageError(
                f"count must be below {max_length} (positions of this model), so that text fits, got {self.count}"
            )
        tokens = choose_tokens(model, self.count, self.tokens, seed)
        start = compute_keys_values(model, tokens)
        trunk = None if self.hidden is None else PrefixProjection(model.tokens.weight, tokens, self.hidden, seed)
        for _, stack in stacks:
            for layer in stack:
                initial = start[layer.attention]
                prefix = KeyValuePrefix(*initial) if trunk is None else ReparameterizedPrefix(*initial, trunk)
                layer.attention.prefix = prefix

    def fold(self, model: LanguageModel) -> "tuple[PrefixTuning, dict[str, Tensor]]":
        """Return the prefix without its reparameterization, and its keys and values by name."""
        method = PrefixTuning(count=self.count, tokens=self.tokens, sides=self.sides)
        out: dict[str, Tensor] = {}
        for path, module in model.named_modules():
            if isinstance(module, KeyValuePrefix | ReparameterizedPrefix):
                keys, values = module()
                out |= {f"{path}.keys": keys.detach(), f"{path}.values": values.detach()}
        return method, out


class KeyValuePrefix(nn.Module):
    """`keys` and `values` `[P, K, D]`."""

    is_adapter: ClassVar[bool] = True

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.count = keys.shape[0]
        self.keys, self.values = Parameter(keys.clone()), Parameter(values.clone())

    def forward(self) -> KeysAndValues:
        return self.keys, self.values


class PrefixProjection(nn.Module):
    """Shared part of the reparameterization: a token embedding per virtual token, and the first layer `[P, hidden]`."""

    def __init__(self, table: Tensor, tokens: Tensor, hidden: int, seed: int) -> None:
        super().__init__()
        rows = table.detach().index_select(0, tokens)
        self.rows = Parameter(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        self.weight = init_uniform((hidden, rows.shape[1]), 1 / math.sqrt(rows.shape[1]), table.device, seed)
        self.bias = Parameter(torch.zeros(hidden, device=table.device))

    def forward(self) -> Tensor:
        return torch.tanh(F.linear(self.rows, self.weight, self.bias))


class ReparameterizedPrefix(nn.Module):
    """Initial keys and values, plus the output of a layer `up` on the shared projection."""

    is_adapter: ClassVar[bool] = True
    first: Tensor

    def __init__(self, keys: Tensor, values: Tensor, trunk: PrefixProjection) -> None:
        super().__init__()
        self.count, self.trunk = keys.shape[0], trunk
        self.register_buffer("first", torch.stack((keys, values), dim=1))  # [P, 2, K, D]
        outputs = math.prod(self.first.shape[1:])
        self.up = Parameter(torch.zeros(outputs, len(trunk.bias), device=keys.device))
        self.up_bias = Parameter(torch.zeros(outputs, device=keys.device))

    def forward(self) -> KeysAndValues:
        keys_values = F.linear(self.trunk(), self.up, self.up_bias).view(self.first.shape) + self.first
        return keys_values[:, 0], keys_values[:, 1]


def list_stacks(model: LanguageModel) -> "list[tuple[Side, TransformerStack | TwoStreamStack]]":
    """Return a model's stacks in the order of computation."""
    assert not isinstance(model.encoder, RecurrentStack) and not isinstance(model.decoder, RecurrentStack)
    return [(side, stack) for side in get_args(Side) if (stack := getattr(model, side)) is not None]


def compute_keys_values(model: LanguageModel, tokens: Tensor) -> dict[nn.Module, KeysAndValues]:
    """Return the keys (rotated, if rotary) and values `[P, K, D]` of every self-attention for some tokens."""
    if tokens.is_meta or not len(tokens):
        attentions = [layer.attention for _, stack in list_stacks(model) for layer in stack]
        return {attention: _allocate(attention, len(tokens)) for attention in attentions}
    ids = [tokens.tolist()]
    inputs = batch(source=ids, target=ids) if model.spec.is_encoder_decoder else batch(ids)
    keys_values: dict[nn.Module, KeysAndValues] = {}
    encoder_states = None
    with eval_mode(model):
        for side, stack in list_stacks(model):
            side_inputs = (inputs.source or inputs if side == "encoder" else inputs).to(tokens.device)
            rows = F.embedding(side_inputs.tokens, model.tokens.weight)
            if isinstance(stack, TransformerStack):
                encoder_states = _run_stack(stack, rows, side_inputs, encoder_states, keys_values)
            else:
                _run_two_stream(stack, rows, side_inputs, keys_values)
    return keys_values


def _run_stack(
    stack: TransformerStack,
    rows: Tensor,
    inputs: Batch,
    source: Tensor | None,
    keys_values: dict[nn.Module, KeysAndValues],
) -> Tensor:
    """Run a stack, collect its keys and values from a cache, and return its states."""
    count = inputs.tokens.shape[0]
    lengths = torch.zeros(1, dtype=torch.long, device=rows.device)
    cache = KVCache(lengths=lengths, layers=stack.new_caches(1, count, cross=False, like=rows))
    cache.assign_slots(inputs)
    states: Tensor = stack(rows, inputs, source, cache=cache).states
    for layer, layer_cache in zip(stack, cache.layers, strict=True):
        keys, values = (part[0].transpose(0, 1) for part in (layer_cache.keys, layer_cache.values))
        keys_values[layer.attention] = _to_float32(keys, values)
    return states


def _run_two_stream(
    stack: TwoStreamStack, rows: Tensor, inputs: Batch, keys_values: dict[nn.Module, KeysAndValues]
) -> None:
    """Collect the keys and values of a stack without a cache, from the outputs of its key and value layers."""
    outputs: dict[nn.Module, Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda module, _, out: outputs.__setitem__(module, out))
        for layer in stack
        for part in (layer.attention.k, layer.attention.v)
    ]
    stack(rows, inputs)
    for hook in hooks:
        hook.remove()
    for layer in stack:
        attention = layer.attention
        shape = (-1, attention.heads, attention.head)
        keys_values[attention] = _to_float32(outputs[attention.k].view(shape), outputs[attention.v].view(shape))


def _to_float32(keys: Tensor, values: Tensor) -> KeysAndValues:
    """Convert to fp32 or better."""
    dtype = torch.promote_types(keys.dtype, torch.float32)
    return keys.to(dtype).contiguous(), values.to(dtype).contiguous()


def _allocate(attention: SelfAttention, count: int) -> KeysAndValues:
    heads = attention.kv_heads if isinstance(attention, MultiHeadAttention) else attention.heads
    like = attention.k.weight
    return like.new_empty(count, heads, attention.head), like.new_empty(count, heads, attention.head)


@spec(kind="prompt")
class PromptTuning(PeftMethod):
    """Prompt tuning: learned vectors before the text, at the input only (Lester et al., 2021)."""

    count: Annotated[int, Ge(0), Le(MAX_SIZE)] = 20
    tokens: Annotated[tuple[int, ...], NonEmpty()] | None = None  # initial ids, repeated; None: sampled ones

    rate: ClassVar[float] = 0.03

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add a table for the slots to the model."""
        refuse_recurrent(model, "prompt tuning needs attention to its virtual tokens, which a recurrent model lacks")
        tokens = choose_tokens(model, self.count, self.tokens, seed)
        model.prompt = PromptTable(model.tokens.weight.detach().index_select(0, tokens).clone())


class PromptTable(nn.Module):
    """`table` [P, width of the token table]: a row per slot."""

    is_adapter: ClassVar[bool] = True

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.table = Parameter(start)

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """Replace the token rows `[N, …]` of the slots, the first positions of every sequence, by the table's."""
        count = self.table.shape[0]
        if not count:
            return rows
        is_slot = (batch.positions < count) & (batch.sequence >= 0)
        prompt_rows = self.table.index_select(0, batch.positions.clamp(max=count - 1))
        return torch.where(is_slot[:, None], prompt_rows.to(rows.dtype), rows)
