"""SmolLM3 (Bakouch et al., 2025): Llama without rotary positions in every fourth layer (Yang et al., 2025)."""

from dataclasses import replace

from pretune.core import config
from pretune.models.families.llama import build_spec as build_llama_spec
from pretune.models.families.shared import (
    ADAM_LARGE,
    BIAS_KEY,
    RMS_NORM_KEY,
    Family,
    Size,
    build_decoder_training,
    build_llama_keys,
    build_llama_layout,
)
from pretune.models.families.shared_rotary import FULL, SLIDING, read_rotary, write_rotary
from pretune.models.hf.config import (
    CustomKey,
    HfConfig,
    Key,
    SpecChanges,
    allow_null,
    check_flag,
    check_size,
    make_unsupported_error,
)
from pretune.models.spec import Model, Special
from pretune.nn.block import Block
from pretune.nn.positions import Rotary
from pretune.nn.stack import MAX_LAYERS, Stack
from pretune.nn.two_stream import AnyBlock

ROTARY = Rotary(theta=5_000_000.0)
REFERENCE_THETA = 2_000_000.0
PERIOD = 4
"""The last of so many layers has no positions; the mask alone orders its keys."""


def build_blocks(
    block: AnyBlock, has_rotary: list[bool], rotary: Rotary, windows: list[int | None]
) -> tuple[Block, ...]:
    """Return the block of every layer, with its own rotary positions or none: the stack has none."""
    assert isinstance(block, Block)
    return tuple(
        replace(block, attention=replace(block.attention, rotary=rotary if rotates else None, window=window))
        for rotates, window in zip(has_rotary, windows, strict=True)
    )


def build_spec(
    *,
    width: int = 2048,
    depth: int = 36,
    heads: int = 16,
    kv_heads: int = 4,
    vocab: int = 128256,
    hidden: int = 11008,
    tied: bool = True,
    context: int = 65536,
    period: int = PERIOD,
) -> Model:
    """Build a spec; every layer whose number is a multiple of `period` has no rotary positions."""
    spec = build_llama_spec(
        width=width, depth=depth, heads=heads, kv_heads=kv_heads, vocab=vocab, hidden=hidden, tied=tied, context=context
    )
    has_rotary = [i % period > 0 for i in range(1, depth + 1)]
    return config.replace(
        spec,
        {
            "family": "smollm3",
            "special": Special(pad=128004, eos=(128001,)),
            "decoder.position": None,
            "decoder.blocks": build_blocks(spec.first_block, has_rotary, ROTARY, [None] * depth),
        },
    )


def _build_template() -> Model:
    return replace(build_spec(), special=Special(pad=128004, bos=128000, eos=(128001,)))


def _read_layers(hf_config: HfConfig) -> SpecChanges:
    depth = hf_config.read("num_hidden_layers", check=check_size, default=36)
    if depth > MAX_LAYERS:
        return {}  # the stack refuses it
    period = hf_config.read("no_rope_layer_interval", check=check_size, default=PERIOD)
    flags = hf_config.get("no_rope_layers")
    if flags is None:
        flags = [int(i % period > 0) for i in range(1, depth + 1)]
    if not isinstance(flags, list) or len(flags) != depth or any(flag not in (0, 1) for flag in flags):
        raise make_unsupported_error("no_rope_layers", flags, [f"{depth} times 0 or 1"])
    window = hf_config.read("sliding_window", check=allow_null(check_size), default=None)
    if not hf_config.read("use_sliding_window", check=check_flag, default=False):
        window = None
    kinds = [FULL if window is None or flag else SLIDING for flag in flags]
    kinds = hf_config.read_layer_types(kinds, (FULL, SLIDING))
    windows = [window if kind == SLIDING else None for kind in kinds]
    rotary = read_rotary(hf_config, theta=REFERENCE_THETA)
    blocks = build_blocks(build_spec().first_block, [bool(flag) for flag in flags], rotary, windows)
    return {"decoder.position": None, "decoder.blocks": blocks}


def _write_layers(spec: Model) -> dict[str, object]:
    assert isinstance(spec.decoder, Stack)
    attentions = [block.attention for block in spec.decoder.layers]
    windows = [attention.window for attention in attentions]
    return {
        "no_rope_layers": [int(attention.rotary is not None) for attention in attentions],
        "use_sliding_window": any(windows),
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": [SLIDING if window else FULL for window in windows],
        "rope_parameters": write_rotary(next((layer.rotary for layer in attentions if layer.rotary), ROTARY)),
    }


LAYER_KEYS = CustomKey(
    (
        *("no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "sliding_window", "layer_types"),
        *("rope_parameters", "rope_scaling", "rope_theta"),
    ),
    _read_layers,
    _write_layers,
)

smollm3 = Family(
    build_spec=build_spec,
    shape="decoder",
    default="3b",
    # The first of three stages, which has 4,096 tokens; the rate falls linearly in the last tenth.
    training=build_decoder_training(
        length=4096,
        batch_tokens=2_359_296,
        tokens=11.2e12,
        lr=2e-4,
        width=2048,
        warmup=2_000,
        schedule="stable",
        floor=0.0,
        optimizer=ADAM_LARGE,
        tokenizer=("bpe", "endoftext", 128_256),
    ),
    sizes={"3b": Size({}, 3_075_098_624)},
    layout=build_llama_layout(
        "smollm3",
        "SmolLM3",
        template=_build_template,
        ignored_keys=frozenset({"max_window_layers"}),
        entries=(
            *build_llama_keys(128256, 11008, 4, 32768, width=2048, depth=36, heads=16, layers=LAYER_KEYS),
            RMS_NORM_KEY,
            BIAS_KEY,
            Key("mlp_bias", ("decoder.blocks.*.feedforward.bias",), False),
        ),
    ),
)
"""SmolLM3: grouped-query attention, no positions in every fourth layer (Bakouch et al., 2025)."""
