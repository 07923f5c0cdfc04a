"""A prefix in the reference's layout: one row for each column, with the keys and values of all layers in turn.

In the reference an encoder-decoder has a prefix before the decoder's own keys alone. It lays its layers out twice and
reads every other pair of them, so that of an even number of layers the upper half has the prefix of the lower half.
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
    """Config and table `[P, layers 2 width]`; None where the reference has no place for such a prefix."""
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
    """A prefix of the reference's in our names."""
    shape = _get_head_shape(spec)
    if shape is None:
        raise CheckpointError("a prefix of the reference's has no place in this model, whose layers differ from its")
    heads, head = shape
    places = _map_layers(spec)
    wanted = [count, len(places) * 2 * heads * head]
    if table is None or list(table.shape) != wanted:
        found = "missing" if table is None else f"of the shape {list(table.shape)}"
        raise CheckpointError(f"tensor '{TABLE_KEY}' is {found}; this model asks for {wanted}")
    side = "decoder" if spec.decoder is not None else "encoder"
    parts = table.view(count, len(places), 2, heads, head)
    out = {
        f"{side}.{layer}.attention.prefix.{part}": parts[:, place, i].contiguous()
        for layer, place in enumerate(places)
        for i, part in enumerate(("keys", "values"))
    }
    return PrefixTuning(count=count, sides=("decoder",) if spec.is_encoder_decoder else PrefixTuning().sides), out


def _get_head_shape(spec: Model) -> tuple[int, int] | None:
    """Key heads and their width, where all layers of the side that has the prefix agree and are the reference's."""
    stack, family = spec.last_stack, FAMILIES.get(spec.family) if spec.family in FAMILIES else None
    if family is not None and family.layout is not None and not family.layout.supports_cache:
        return None  # the reference would pass over the prefix without a word
    if (
        not isinstance(stack, Stack)
        or stack.share is not None
        or describe_checkpoint(spec)[0]["model_type"] == NATIVE_TYPE
    ):
        return None
    shapes = {block.attention.resolve_shape(width=spec.width)[1:] for block in stack.blocks}
    return shapes.pop() if len(shapes) == 1 else None


def _map_layers(spec: Model) -> list[int]:
    """Where the pair of each layer stands in the table."""
    depth = spec.last_stack.depth
    return [2 * layer % depth if spec.is_encoder_decoder else layer for layer in range(depth)]
