"""LLaMA 1, 2 and 3 (Touvron et al., 2023; Dubey et al., 2024): RMSNorm, rotary positions, SwiGLU, no biases."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pretune.core.config import to_dict
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.families.bert import ACTIVATIONS
from pretune.models.family import ADAM_LARGE, Family, PaperDefaults, Size
from pretune.models.hf.checks import (
    Check,
    allow_null,
    check_choice,
    check_positive,
    check_rate,
    check_size,
    read_key,
    read_object,
)
from pretune.models.hf.config import CustomKey, FixedKey, Key, Layout
from pretune.models.hf.heads import define_head, define_score_head, define_token_heads
from pretune.models.hf.weights import make_rules
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.feedforward import FeedForward
from pretune.nn.heads import Head
from pretune.nn.norm import Norm, RMSNorm
from pretune.nn.positions import Banded, LinearScaling, Rotary
from pretune.nn.stack import Stack

NORM = RMSNorm(eps=1e-6)
ROTARY = Rotary()


def build_spec(
    *,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    vocab: int = 32000,
    hidden: int | None = None,
    tied: bool = False,
    family: str = "llama",
    position: Rotary = ROTARY,
    norm: Norm = NORM,
    context: int = 2048,
) -> Model:
    """Pre-norm, rotary, gated; the hidden width is 8/3 of the width, rounded up to a multiple of 256."""
    return Model(
        family=family,
        vocab=vocab,
        width=width,
        decoder=Stack(
            depth=depth,
            causal=True,
            position=position,
            blocks=(
                Block(
                    attention=Attention(heads=heads, kv_heads=None if kv_heads == heads else kv_heads, bias=False),
                    feedforward=FeedForward(
                        hidden=hidden or -(-(8 * width // 3) // 256) * 256, activation="silu", gated=True, bias=False
                    ),
                    norms=Norms(pre=norm),
                ),
            ),
            norm=norm,
        ),
        head=Head(tied=tied),
        context=context,
        special=Special(bos=1, eos=(2,)),
    )


ROPE_SCALINGS = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
"""The kinds of scaling, and the numbers each must give; the last may also state the original length."""


def build_rope_key(theta: float = 10000.0, fraction: float = 1.0, old_names: tuple[str, ...] = ()) -> CustomKey:
    """Rotary positions in old and new spelling: rope_theta and rope_scaling, or both inside rope_parameters.

    `old` are a family's own first names for the base and for the turned fraction of a head.
    """

    def read(found: Mapping[str, Any]) -> dict[str, Any]:
        inner = read_object(found, "rope_parameters") | read_object(found, "rope_scaling")
        every = {**found, **inner}

        def get(name: str, check: Check, *others: str) -> Any:
            names = (f"rope_parameters.{name}", f"rope_scaling.{name}", *others)
            return read_key(every, *names, check=allow_null(check), default=None)

        kind = get("rope_type", _check_rope_type, "rope_parameters.type", "rope_scaling.type") or "default"
        known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *ROPE_SCALINGS[kind]}
        known |= {"original_max_position_embeddings"} if kind == "llama3" else set()
        for name, value in inner.items():
            if name.partition(".")[2] not in known and value is not None:
                raise CheckpointError(f"key {format_value(name)} is not known for rope_type '{kind}'")
        base = get("rope_theta", check_positive, "rope_theta", *old_names[:1])
        part = get("partial_rotary_factor", check_rate, "partial_rotary_factor", *old_names[1:])
        if not old_names:  # the reference then turns whole heads, whatever the file says
            FixedKey("partial_rotary_factor", (1.0,)).read({"partial_rotary_factor": part})
        rotary = Rotary(
            theta=theta if base is None else base,
            fraction=fraction if part is None else part,
            scaling=_read_scaling(
                kind, get, read_key(found, "max_position_embeddings", check=check_size, default=2048)
            ),
        )
        return {"decoder.position": to_dict(rotary)}

    def write(spec: Model) -> dict[str, Any]:
        assert spec.decoder is not None and isinstance(spec.decoder.position, Rotary)
        rotary = spec.decoder.position
        out: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.theta}
        if fraction != 1.0 or rotary.fraction != 1.0:
            out["partial_rotary_factor"] = rotary.fraction
        if isinstance(rotary.scaling, LinearScaling):
            out |= {"rope_type": "linear", "factor": rotary.scaling.factor}
        elif isinstance(rotary.scaling, Banded):
            out |= {
                "rope_type": "llama3",
                "factor": rotary.scaling.factor,
                "low_freq_factor": rotary.scaling.low,
                "high_freq_factor": rotary.scaling.high,
                "original_max_position_embeddings": rotary.scaling.original,
            }
        return {"rope_parameters": out}

    names = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", *old_names)
    return CustomKey(names, read, write)


def _check_rope_type(key: str, value: Any) -> str:
    return str(check_choice(key, value, {name: name for name in ROPE_SCALINGS}))


def _read_scaling(kind: str, get: Callable[[str, Check], Any], context: int) -> LinearScaling | Banded | None:
    numbers = {name: get(name, check_positive) for name in ROPE_SCALINGS[kind]}
    for name, value in numbers.items():
        if value is None:
            raise CheckpointError(f"key 'rope_parameters.{name}' is missing, which rope_type '{kind}' needs")
    if kind == "linear":
        return LinearScaling(factor=numbers["factor"])
    if kind == "default":
        return None
    return Banded(
        factor=numbers["factor"],
        low=numbers["low_freq_factor"],
        high=numbers["high_freq_factor"],
        original=get("original_max_position_embeddings", check_size) or context,
    )


def build_keys(
    vocab: int = 32000, hidden: int = 11008, kv_heads: int | None = None, context: int = 2048
) -> tuple[Key | CustomKey, ...]:
    """The keys that all the rotary decoders share."""
    return (
        Key("vocab_size", ("vocab",), vocab),
        Key("hidden_size", ("width",), 4096),
        Key("intermediate_size", ("decoder.blocks.*.feedforward.hidden",), hidden),
        Key("num_hidden_layers", ("decoder.depth",), 32),
        Key("num_attention_heads", ("decoder.blocks.*.attention.heads",), 32),
        CustomKey(("num_key_value_heads",), partial(_read_groups, kv_heads), _write_groups),
        Key("hidden_act", ("decoder.blocks.*.feedforward.activation",), "silu", {"silu": "silu", **ACTIVATIONS}),
        Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.0),
        Key("initializer_range", ("init.std",), 0.02),
        Key("max_position_embeddings", ("context",), context),
    )


def _read_groups(default: int | None, hf_config: Mapping[str, Any]) -> dict[str, Any]:
    heads = read_key(hf_config, "num_attention_heads", check=check_size, default=32)
    groups = read_key(hf_config, "num_key_value_heads", check=allow_null(check_size), default=default)
    return {"decoder.blocks.*.attention.kv_heads": None if groups in (None, heads) else groups}


def _write_groups(spec: Model) -> dict[str, Any]:
    attention = spec.last_stack.blocks[0].attention
    return {"num_key_value_heads": attention.kv_heads or attention.heads}


def _read_head(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    width = read_key(hf_config, "hidden_size", check=check_size, default=4096)
    heads = read_key(hf_config, "num_attention_heads", check=check_size, default=32)
    head = read_key(hf_config, "head_dim", check=allow_null(check_size), default=None)
    return {"decoder.blocks.*.attention.head_width": None if head is None or heads * head == width else head}


def _write_head(spec: Model) -> dict[str, Any]:
    return {"head_dim": spec.last_stack.blocks[0].attention.resolve_shape(width=spec.width)[2]}


HEAD_WIDTH = CustomKey(("head_dim",), _read_head, _write_head)
NORM_EPS = Key("rms_norm_eps", ("decoder.blocks.*.norms.pre.eps", "decoder.norm.eps"), 1e-6)
LAYER = {
    **{f"decoder.{{i}}.attention.{part}.{{p}}": f"model.layers.{{i}}.self_attn.{part}_proj.{{p}}" for part in "qkv"},
    "decoder.{i}.attention.out.{p}": "model.layers.{i}.self_attn.o_proj.{p}",
    "decoder.{i}.feedforward.up.{p}": "model.layers.{i}.mlp.up_proj.{p}",
    "decoder.{i}.feedforward.gate.{p}": "model.layers.{i}.mlp.gate_proj.{p}",
    "decoder.{i}.feedforward.down.{p}": "model.layers.{i}.mlp.down_proj.{p}",
    "tokens.weight": "model.embed_tokens.weight",
    "decoder.norm.{p}": "model.norm.{p}",
    "head.weight": "lm_head.weight",
}
PRE_NORM = {
    "decoder.{i}.attention_norm.pre.{p}": "model.layers.{i}.input_layernorm.{p}",
    "decoder.{i}.feedforward_norm.pre.{p}": "model.layers.{i}.post_attention_layernorm.{p}",
}

LAYOUT = Layout(
    model_type="llama",
    template=build_spec,
    entries=(
        *build_keys(),
        build_rope_key(),
        HEAD_WIDTH,
        NORM_EPS,
        Key("attention_bias", ("decoder.blocks.*.attention.bias",), False),
        Key("mlp_bias", ("decoder.blocks.*.feedforward.bias",), False),
    ),
    prefix="model.",
    classes={"LlamaForCausalLM": frozenset({"head"}), "LlamaModel": frozenset()},
    task_heads={
        **define_score_head("Llama"),
        **define_token_heads("Llama", tags="score", spans=None),
        "LlamaForQuestionAnswering": define_head("span", {"out": "qa_outputs"}, prefix="transformer."),
    },
    head="lm_head.weight",
    skipped_tensors=(r".*rotary_emb\.inv_freq",),
    rules=make_rules({**LAYER, **PRE_NORM}),
)

_13B = {"width": 5120, "depth": 40, "heads": 40, "hidden": 13824}
llama = Family(
    build_spec=build_spec,
    shape="decoder",
    default="7b",
    training=PaperDefaults(
        objective={"kind": "causal"},
        samples="blocks",
        lengths=(2048,),
        batch_tokens=4_194_304,
        lr=3e-4,
        width=4096,
        optimizer=ADAM_LARGE,
        schedule={"kind": "cosine", "warmup": 2_000, "floor": 0.1},
        tokenizer=("bpe", "endoftext", 32_000),
    ),
    sizes={
        "7b": Size({}, 6_738_415_616),
        "13b": Size(_13B, 13_015_864_320),
        "30b": Size({"width": 6656, "depth": 60, "heads": 52, "hidden": 17920}, 32_528_943_616),
        "65b": Size({"width": 8192, "depth": 80, "heads": 64, "hidden": 22016}, 65_285_660_672),
    },
    layout=LAYOUT,
)
"""LLaMA: RMSNorm, rotary positions, SwiGLU (Touvron et al., 2023)."""

llama2 = Family(
    build_spec=partial(build_spec, family="llama2", norm=RMSNorm(eps=1e-5), context=4096),
    shape="decoder",
    default="7b",
    training=PaperDefaults(
        objective={"kind": "causal"},
        samples="blocks",
        lengths=(4096,),
        batch_tokens=4_194_304,
        lr=3e-4,
        width=4096,
        optimizer=ADAM_LARGE,
        schedule={"kind": "cosine", "warmup": 2_000, "floor": 0.1},
        tokenizer=("bpe", "endoftext", 32_000),
    ),
    sizes={
        "7b": Size({}, 6_738_415_616),
        "13b": Size(_13B, 13_015_864_320),
        "70b": Size({"width": 8192, "depth": 80, "heads": 64, "kv_heads": 8, "hidden": 28672}, 68_976_648_192),
    },
    layout=LAYOUT,
)
"""Llama 2: longer context, grouped-query attention in the largest (Touvron et al., 2023)."""

_LONG_CONTEXT_ROTARY = Rotary(theta=500000.0, scaling=Banded(factor=32.0, low=1.0, high=4.0, original=8192))
llama3 = Family(
    build_spec=partial(
        build_spec,
        family="llama3",
        vocab=128256,
        kv_heads=8,
        hidden=14336,
        norm=RMSNorm(eps=1e-5),
        context=8192,
        position=Rotary(theta=500000.0),
    ),
    shape="decoder",
    default="8b",
    training=PaperDefaults(
        objective={"kind": "causal"},
        samples="blocks",
        lengths=(8192,),
        batch_tokens=4_194_304,
        lr=3e-4,
        width=4096,
        optimizer=ADAM_LARGE,
        schedule={"kind": "cosine", "warmup": 8_000, "floor": 0.01},
        tokenizer=("bpe", "endoftext", 128_256),
    ),
    sizes={
        # 3.2 (text): tied heads and stretched positions.
        "1b": Size(
            {
                "width": 2048,
                "depth": 16,
                "hidden": 8192,
                "tied": True,
                "position": _LONG_CONTEXT_ROTARY,
                "context": 131072,
            },
            1_235_814_400,
        ),
        "3b": Size(
            {
                "width": 3072,
                "depth": 28,
                "heads": 24,
                "hidden": 8192,
                "tied": True,
                "position": _LONG_CONTEXT_ROTARY,
                "context": 131072,
            },
            3_212_749_824,
        ),
        "8b": Size({}, 8_030_261_248),
        "70b": Size({"width": 8192, "depth": 80, "heads": 64, "hidden": 28672}, 70_553_706_496),
    },
    layout=LAYOUT,
)
"""Llama 3: a larger vocabulary, grouped-query attention, positions stretched by wavelength (Dubey et al., 2024)."""
