"""Prefix-tuning (Li and Liang, 2021): in every block, learned keys and values stand before each sequence.

They stand there as so many tokens would: positions of the text begin after them, and distances and windows reach back
to them. Rotated keys are learned as they are after the rotation. Every sequence of a row sees the same ones, both ways
in an encoder, and both sides of an encoder-decoder have their own; attention from one side to the other has none. They
start as the keys and values of real tokens, so that a decoder at first reads as if those tokens came before the text.
Relations: a `Prompt` has such vectors at the input alone, and takes room in the layout; this does not.

    keys   p0 p1 the cat | p0 p1 it sat        p: trained, of each block its own
    text         the cat |       it sat

With `hidden` they are made by a small network while they are trained (the paper's section 4.3): rows of real tokens,
through a layer that all blocks share and one of each block. What it makes is added to the start, and saved as such.
"""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import MAX_SIZE, freeze_base, init_uniform, train_only
from pretune.adaptation.peft.token_init import choose_tokens
from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.layout import batch
from pretune.models.model import LanguageModel
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.cache import KVCache
from pretune.nn.relative_attention import RelativeAttentionLayer
from pretune.nn.stack import TransformerStack
from pretune.nn.two_stream import TwoStreamStack

Side = Literal["encoder", "decoder"]
SelfAttention = MultiHeadAttention | RelativeAttentionLayer
KeysAndValues = tuple[Tensor, Tensor]
PREFIX_PATH = ".attention.prefix."


@spec(kind="prefix")
class PrefixTuning:
    """Prefix-tuning: learned keys and values before the text, in every block (Li and Liang, 2021)."""

    count: int = 20
    tokens: tuple[int, ...] | None = None  # whose keys and values they start as, in turn; None: some that are drawn
    hidden: int | None = None  # of the network that makes them while they are trained; None: they are trained as such
    sides: tuple[Side, ...] = ("encoder", "decoder")  # of those that a model has

    is_mergeable: ClassVar[bool] = False
    rate: ClassVar[float] = 1e-2

    def __post_init__(self) -> None:
        hidden = 1 if self.hidden is None else self.hidden
        if not 0 <= self.count <= MAX_SIZE or self.tokens == () or not 1 <= hidden <= MAX_SIZE:
            raise UsageError(
                f"a prefix of {self.count} columns made by {self.hidden} hidden units; it needs 0 to {MAX_SIZE:,}, "
                f"tokens to start from or null, and 1 to {MAX_SIZE:,} hidden units or null"
            )

    def apply(self, model: LanguageModel, *, seed: int = 0) -> tuple[str, ...]:
        """Put columns before the keys of every block: the names of what makes them."""
        freeze_base(model)
        stacks = [(side, stack) for side, stack in list_stacks(model) if side in self.sides]
        if not stacks:
            raise UsageError(f"a prefix for {', '.join(self.sides) or 'no side'}; this model has none of these")
        longest = model.spec.max_length
        if longest is not None and self.count >= longest:
            raise UsageError(
                f"a prefix of {self.count}: this model's positions end at {longest}, and the text needs some"
            )
        tokens = choose_tokens(model, self.count, self.tokens, seed)
        start = compute_keys_values(model, tokens)
        trunk = None if self.hidden is None else PrefixProjection(model.tokens.weight, tokens, self.hidden, seed)
        for _, stack in stacks:
            for layer in stack:
                first = start[layer.attention]
                layer.attention.prefix = (
                    KeyValuePrefix(*first) if trunk is None else ReparameterizedPrefix(*first, trunk)
                )
        return train_only(model, self.list_trainable_names(model))

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Keys and values of every block, or the network's parameters."""
        return tuple(name for name, _ in model.named_parameters() if PREFIX_PATH in name)

    def merge(self, model: LanguageModel) -> None:
        """Refuse: keys and values are not weights."""
        raise UsageError("a prefix cannot be merged into the weights: it is read with every text")

    def fold(self, model: LanguageModel) -> "tuple[PrefixTuning, dict[str, Tensor]]":
        """The same prefix without the network that made it, and its keys and values by name."""
        made = PrefixTuning(count=self.count, tokens=self.tokens, sides=self.sides)
        out: dict[str, Tensor] = {}
        for path, module in model.named_modules():
            if isinstance(module, KeyValuePrefix | ReparameterizedPrefix):
                keys, values = module()
                out |= {f"{path}.keys": keys.detach(), f"{path}.values": values.detach()}
        return made, out


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
    """What all blocks share: a row of the token table for each column, and the first layer `[P, hidden]`."""

    def __init__(self, table: Tensor, tokens: Tensor, hidden: int, seed: int) -> None:
        super().__init__()
        rows = table.detach().index_select(0, tokens)
        self.rows = Parameter(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        self.weight = init_uniform((hidden, rows.shape[1]), 1 / math.sqrt(rows.shape[1]), table, seed)
        self.bias = Parameter(torch.zeros(hidden, device=table.device))

    def forward(self) -> Tensor:
        return torch.tanh(F.linear(self.rows, self.weight, self.bias))


class ReparameterizedPrefix(nn.Module):
    """Columns that start where they start, and a layer `up` that adds to them what it makes of the trunk."""

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
        made = F.linear(self.trunk(), self.up, self.up_bias).view(self.first.shape) + self.first
        return made[:, 0], made[:, 1]


def list_stacks(model: LanguageModel) -> "list[tuple[Side, TransformerStack | TwoStreamStack]]":
    """A model's stacks, in the order they read."""
    named: list[tuple[Side, TransformerStack | TwoStreamStack | None]] = [
        ("encoder", model.encoder), ("decoder", model.decoder)
    ]  # fmt: skip
    return [(side, stack) for side, stack in named if stack is not None]


@torch.no_grad()
def compute_keys_values(model: LanguageModel, tokens: Tensor) -> dict[nn.Module, KeysAndValues]:
    """Keys (rotated where they are) and values `[P, K, D]` in every self-attention when a model reads some tokens."""
    count = len(tokens)
    if tokens.is_meta or not count:
        return {
            layer.attention: _allocate(layer.attention, count) for _, stack in list_stacks(model) for layer in stack
        }
    ids = [tokens.tolist()]
    read = batch(source=ids, target=ids) if model.spec.is_encoder_decoder else batch(ids)
    found: dict[nn.Module, KeysAndValues] = {}
    encoded, mode = None, model.training
    model.eval()
    for side, stack in list_stacks(model):
        seen = (read.source or read if side == "encoder" else read).to(tokens.device)
        rows = F.embedding(seen.tokens, model.tokens.weight)
        if isinstance(stack, TransformerStack):
            encoded = _run_stack(stack, rows, seen, encoded, found)
        else:
            _run_two_stream(stack, rows, seen, found)
    model.train(mode)
    return found


def _run_stack(
    stack: TransformerStack,
    rows: Tensor,
    inputs: Batch,
    source: Tensor | None,
    keys_values: dict[nn.Module, KeysAndValues],
) -> Tensor:
    """States of a stack, whose keys and values are taken from a cache."""
    count = inputs.tokens.shape[0]
    lengths = torch.zeros(1, dtype=torch.long, device=rows.device)
    cache = KVCache(lengths=lengths, layers=stack.new_caches(1, count, cross=False, like=rows))
    cache.assign_slots(inputs)
    states: Tensor = stack(rows, inputs, source, cache=cache).states
    for layer, kept in zip(stack, cache.layers, strict=True):
        keys_values[layer.attention] = _to_float32(kept.keys[0].transpose(0, 1), kept.values[0].transpose(0, 1))
    return states


def _run_two_stream(
    stack: TwoStreamStack, rows: Tensor, inputs: Batch, keys_values: dict[nn.Module, KeysAndValues]
) -> None:
    """The same where there is no cache: what the layers that make keys and values give."""
    made: dict[nn.Module, Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda module, _, out: made.__setitem__(module, out))
        for layer in stack
        for part in (layer.attention.k, layer.attention.v)
    ]
    stack(rows, inputs)
    for hook in hooks:
        hook.remove()
    for layer in stack:
        attention = layer.attention
        shape = (-1, attention.heads, attention.head)
        keys_values[attention] = _to_float32(made[attention.k].view(shape), made[attention.v].view(shape))


def _to_float32(keys: Tensor, values: Tensor) -> KeysAndValues:
    """In fp32 where the model is halved."""
    dtype = torch.promote_types(keys.dtype, torch.float32)
    return keys.to(dtype).contiguous(), values.to(dtype).contiguous()


def _allocate(attention: SelfAttention, count: int) -> KeysAndValues:
    heads = attention.kv_heads if isinstance(attention, MultiHeadAttention) else attention.heads
    like = attention.k.weight
    return like.new_empty(count, heads, attention.head), like.new_empty(count, heads, attention.head)
