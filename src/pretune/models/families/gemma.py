"""Gemma 3, text (Kamath et al., 2025): norms around each sublayer, five local layers for each global one."""

from dataclasses import replace

from pretune.core import config
from pretune.models.families.llama import build_spec as build_llama_spec
from pretune.models.families.shared import (
    BIAS_KEY,
    QK_NORM_NAMES,
    Family,
    Size,
    build_decoder_training,
    build_head_width_key,
    build_llama_keys,
    build_llama_layout,
)
from pretune.models.families.shared_rotary import FULL, SLIDING, read_layer_rotary, write_rotary
from pretune.models.hf.config import (
    CustomKey,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    check_size,
)
from pretune.models.hf.weights import define_score_head
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.layers import PerHead, RMSNorm
from pretune.nn.positions import Rotary
from pretune.nn.stack import MAX_LAYERS, Stack
from pretune.nn.two_stream import AnyBlock

NORM = RMSNorm(eps=1e-6, zero_centered=True)
GLOBAL_ROTARY, LOCAL_ROTARY = Rotary(theta=1_000_000.0), Rotary(theta=10_000.0)
PERIOD = 6
"""The last of so many layers is global."""
REFERENCE_WIDTHS = {"width": 2304, "heads": 8}


def build_blocks(block: AnyBlock, kinds: list[str], window: int, rotary: Rotary) -> tuple[Block, ...]:
    """Return the block of every layer: local ones have a window and their own rotary positions."""
    assert isinstance(block, Block)
    local = replace(block, attention=replace(block.attention, window=window, rotary=rotary))
    return tuple(local if kind == SLIDING else block for kind in kinds)


def _list_kinds(count: int, period: int) -> list[str]:
    return [SLIDING if i % period else FULL for i in range(1, count + 1)]


def build_spec(
    *,
    width: int = 1152,
    depth: int = 26,
    heads: int = 4,
    kv_heads: int = 1,
    head_width: int = 256,
    vocab: int = 262144,
    hidden: int = 6912,
    window: int = 512,
    context: int = 32768,
    period: int = PERIOD,
) -> Model:
    """Build a spec: tied and scaled embeddings, GeGLU; layers see `window` tokens, every sixth sees all."""
    spec = build_llama_spec(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        vocab=vocab,
        hidden=hidden,
        tied=True,
        position=GLOBAL_ROTARY,
        norm=NORM,
        context=context,
        changes={
            "family": "gemma3",
            "special": Special(pad=0, bos=2, eos=(1,)),
            "decoder.embed.scale": True,
            "decoder.blocks.0.norms": Norms(pre=NORM, out=NORM),
            "decoder.blocks.0.attention.norm": PerHead(norm=NORM),
            "decoder.blocks.0.feedforward.activation": "gelu_tanh",
        },
    )
    kinds = _list_kinds(depth, period)
    return config.replace(spec, {"decoder.blocks": build_blocks(spec.first_block, kinds, window, LOCAL_ROTARY)})


def _read_layers(hf_config: HfConfig) -> SpecChanges:
    depth = hf_config.read("num_hidden_layers", check=check_size, default=26)
    if depth > MAX_LAYERS:
        return {}  # the stack refuses it
    period = hf_config.read("sliding_window_pattern", "_sliding_window_pattern", check=check_size, default=PERIOD)
    kinds = hf_config.read_layer_types(_list_kinds(depth, period), (FULL, SLIDING))
    window = hf_config.read("sliding_window", check=check_size, default=4096)
    # In early releases, keys without a kind of layer are those of the global ones.
    local_keys = HfConfig({key: value for key, value in hf_config.items() if key not in ("rope_theta", "rope_scaling")})
    local_rotary = read_layer_rotary(local_keys, SLIDING, theta=LOCAL_ROTARY.theta, old_name="rope_local_base_freq")
    global_rotary = read_layer_rotary(hf_config, FULL, theta=GLOBAL_ROTARY.theta, old_name="rope_theta")
    block = build_spec(period=1).first_block
    return {"decoder.blocks": build_blocks(block, kinds, window, local_rotary), "decoder.position": global_rotary}


def _write_layers(spec: Model) -> dict[str, object]:
    assert isinstance(spec.decoder, Stack) and isinstance(spec.decoder.position, Rotary)
    attentions = [block.attention for block in spec.decoder.layers]
    local = next((attention for attention in attentions if attention.window), attentions[0])
    return {
        "layer_types": [SLIDING if attention.window else FULL for attention in attentions],
        "sliding_window": local.window or 4096,
        "rope_parameters": {
            FULL: write_rotary(spec.decoder.position),
            SLIDING: write_rotary(local.rotary or LOCAL_ROTARY),
        },
    }


LAYER_KEYS = CustomKey(
    (
        *("layer_types", "sliding_window", "sliding_window_pattern", "_sliding_window_pattern"),
        *("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq"),
    ),
    _read_layers,
    _write_layers,
)


def _read_scale(hf_config: HfConfig) -> SpecChanges:
    divisor = hf_config.read("query_pre_attn_scalar", check=check_size, default=256)
    head_width = hf_config.read("head_dim", check=check_size, default=256)
    return {"decoder.blocks.*.attention.scale": None if divisor == head_width else divisor**-0.5}


def _write_scale(spec: Model) -> dict[str, object]:
    attention = spec.first_block.attention
    assert isinstance(attention, Attention)
    _, _, head_width = attention.resolve_shape(width=spec.width)
    return {"query_pre_attn_scalar": head_width if attention.scale is None else round(attention.scale**-2)}


_EPS = ("blocks.*.norms.pre.eps", "blocks.*.norms.out.eps", "blocks.*.attention.norm.norm.eps", "norm.eps")

gemma3 = Family(
    build_spec=build_spec,
    shape="decoder",
    default="1b",
    # The report states tokens and the context; the rest is that of Llama.
    training=build_decoder_training(
        length=4096,
        batch_tokens=4_194_304,
        tokens=2e12,
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 262_144),
    ),
    sizes={
        "270m": Size({"width": 640, "depth": 18, "hidden": 2048}, 268_098_176, training={"tokens": 6e12}),
        "1b": Size({}, 999_885_952),
    },
    layout=replace(
        build_llama_layout(
            "gemma3_text",
            "Gemma3",
            template=build_spec,
            ignored_keys=frozenset({"cache_implementation"}),
            entries=(
                *build_llama_keys(
                    262208,
                    9216,
                    4,
                    131072,
                    depth=26,
                    activation="hidden_activation",
                    layers=LAYER_KEYS,
                    **REFERENCE_WIDTHS,
                ),
                build_head_width_key(256, **REFERENCE_WIDTHS),
                BIAS_KEY,
                CustomKey(("query_pre_attn_scalar",), _read_scale, _write_scale),
                Key("rms_norm_eps", tuple(f"decoder.{path}" for path in _EPS), 1e-6),
                FixedKey("attn_logit_softcapping", (None,)),
                FixedKey("final_logit_softcapping", (None,)),
                FixedKey("use_bidirectional_attention", (False,)),
            ),
            norms={
                **QK_NORM_NAMES,
                "decoder.{i}.attention_norm.pre.{p}": "model.layers.{i}.input_layernorm.{p}",
                "decoder.{i}.attention_norm.out.{p}": "model.layers.{i}.post_attention_layernorm.{p}",
                "decoder.{i}.feedforward_norm.pre.{p}": "model.layers.{i}.pre_feedforward_layernorm.{p}",
                "decoder.{i}.feedforward_norm.out.{p}": "model.layers.{i}.post_feedforward_layernorm.{p}",
            },
            task_heads=define_score_head("Gemma3Text"),
        ),
        classes={"Gemma3ForCausalLM": frozenset({"head"}), "Gemma3TextModel": frozenset()},
    ),
)
"""Gemma 3 (text): norms before and after sublayers, local and global attention in turn (Kamath et al., 2025)."""
