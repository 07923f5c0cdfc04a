"""Prefix in peft's format: a table with a row per virtual token, holding the keys and values of all layers.

In peft an encoder-decoder has a prefix in the decoder's self-attention only. It lays its layers out twice and reads
every other pair of them, so that of an even number of layers the upper half has the prefix of the lower half.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretune.adaptation.peft.prefix import PrefixTuning
from pretune.core.errors import CheckpointError
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import NATIVE_TYPE, describe_checkpoint
from pretune.models.spec import Model
from pretune.nn.stack import Stack

TABLE_KEY = "prompt_embeddings"


def pack_prefix(
    method: PrefixTuning, tensors: Mapping[str, Tensor], spec: Model
) -> tuple[dict[str, Any], Tensor] | None:
    """Return config and table `[P, layers 2 width]`; None if peft cannot represent such a prefix."""
    shape = _get_head_shape(spec)
    if shape is None or not method.count or (spec.is_encoder_decoder and method.sides != ("decoder",)):
        return None
    heads, head = shape
    places = _map_layers(spec)
    if len(set(places)) < len(places):
        return None
    side = "decoder" if spec.decoder is not None else "encoder"
    table = torch.empty(method.count, len(places), 2, heads * head)
    for layer, place in enumerate(places):
        for i, part in enumerate(("keys", "values")):
            table[:, place, i] = tensors[f"{side}.{layer}.attention.prefix.{part}"].reshape(method.count, -1)
    config = {
        "peft_type": "PREFIX_TUNING",
        "task_type": {"encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}.get(spec.shape, "FEATURE_EXTRACTION"),
        "num_virtual_tokens": method.count,
        "token_dim": heads * head,
        "num_transformer_submodules": 2 if spec.is_encoder_decoder else 1,
        "num_attention_heads": heads,
        "num_layers": len(places),
        "encoder_hidden_size": heads * head,
        "prefix_projection": False,
    }
    return config, table.flatten(1)


def unpack_prefix(count: int, table: Tensor | None, spec: Model) -> tuple[PrefixTuning, dict[str, Tensor]]:
    """Read a prefix of peft's; return the method and its tensors under our names."""
    shape = _get_head_shape(spec)
    if shape is None:
        raise CheckpointError("this model cannot have a prefix of peft's: its layers differ in shape")
    heads, head = shape
    places = _map_layers(spec)
    expected_shape = [count, len(places) * 2 * heads * head]
    if table is None or list(table.shape) != expected_shape:
        problem = "missing" if table is None else f"of shape {list(table.shape)}"
        raise CheckpointError(f"tensor '{TABLE_KEY}' is {problem}; this model expects {expected_shape}")
    side = "decoder" if spec.decoder is not None else "encoder"
    parts = table.view(count, len(places), 2, heads, head)
    out = {
        f"{side}.{layer}.attention.prefix.{part}": parts[:, place, i].contiguous()
        for layer, place in enumerate(places)
        for i, part in enumerate(("keys", "values"))
    }
    return PrefixTuning(count=count, sides=("decoder",) if spec.is_encoder_decoder else PrefixTuning().sides), out


def _get_head_shape(spec: Model) -> tuple[int, int] | None:
    """Return the number and width of key heads, if all layers of the side with the prefix agree and peft has them."""
    stack, family = spec.last_stack, FAMILIES.get(spec.family) if spec.family in FAMILIES else None
    if family is not None and family.layout is not None and not family.layout.supports_cache:
        return None  # the reference would silently ignore the prefix
    if (
        not isinstance(stack, Stack)
        or stack.share is not None
        or describe_checkpoint(spec)[0]["model_type"] == NATIVE_TYPE
    ):
        return None
    shapes = {block.attention.resolve_shape(width=spec.width)[1:] for block in stack.blocks}
    return shapes.pop() if len(shapes) == 1 else None


def _map_layers(spec: Model) -> list[int]:
    """Return the position of each layer's pair in the table."""
    depth = spec.last_stack.depth
    return [2 * layer % depth if spec.is_encoder_decoder else layer for layer in range(depth)]
