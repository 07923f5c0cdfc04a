"""OLMo (Groeneveld et al., 2024) and OLMo 2 (Walsh et al., 2025): Llama-like decoders with different norms."""

from dataclasses import replace
from functools import partial

from pretune.models.families.llama import build_spec as build_llama_spec
from pretune.models.families.shared import (
    ADAM_LARGE,
    BIAS_KEY,
    QK_NORM_NAMES,
    Family,
    Size,
    build_decoder_training,
    build_llama_keys,
    build_llama_layout,
)
from pretune.models.hf.config import Key, allow_null, check_positive
from pretune.models.hf.weights import define_score_head
from pretune.models.spec import Special
from pretune.nn.block import Norms
from pretune.nn.layers import LayerNorm, RMSNorm
from pretune.nn.positions import Rotary

build_spec = partial(
    build_llama_spec,
    vocab=50304,
    hidden=11008,
    norm=LayerNorm(eps=1e-5, scale=False, bias=False),
    changes={"family": "olmo", "special": Special(pad=1, eos=(50279,))},
)
"""OLMo: layer norms without parameters."""

NORM = RMSNorm(eps=1e-6)
build_olmo2_spec = partial(
    build_llama_spec,
    vocab=100352,
    hidden=11008,
    norm=NORM,
    position=Rotary(theta=500000.0),
    context=4096,
    changes={
        "family": "olmo2",
        "decoder.blocks.0.norms": Norms(out=NORM),
        "decoder.blocks.0.attention.norm": NORM,
        "special": Special(pad=100277, eos=(100257,)),
    },
)
"""OLMo 2: norms on sublayer outputs and on queries and keys."""

olmo = Family(
    build_spec=build_spec,
    shape="decoder",
    default="1b",
    training=build_decoder_training(
        length=2048,
        batch_tokens=4_194_304,
        tokens=2e12,
        lr=4e-4,
        width=2048,
        optimizer={**ADAM_LARGE, "eps": 1e-5},
        schedule="linear",
        warmup=2_000,  # 7b: 5,000 steps
        tokenizer=("bpe", "endoftext", 50_280),
    ),
    sizes={
        "1b": Size({"width": 2048, "depth": 16, "heads": 16, "hidden": 8192, "tied": True}, 1_176_764_416),
        "7b": Size({}, 6_888_095_744, training={"tokens": 2.46e12}),
    },
    layout=build_llama_layout(
        "olmo",
        "Olmo",
        template=build_spec,
        entries=(
            *build_llama_keys(vocab=50304),
            BIAS_KEY,
            Key("clip_qkv", ("decoder.blocks.*.attention.clip",), None, check=allow_null(check_positive)),
        ),
        norms={},
        task_heads=define_score_head("Olmo"),
    ),
)
"""OLMo: layer norms without parameters (Groeneveld et al., 2024)."""

_EPS = ("blocks.*.norms.out.eps", "blocks.*.attention.norm.eps", "norm.eps")
olmo2 = Family(
    build_spec=build_olmo2_spec,
    shape="decoder",
    default="7b",
    training=build_decoder_training(
        length=4096,
        batch_tokens=4_194_304,
        tokens=4e12,
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 100_278),
    ),
    sizes={
        "1b": Size({"width": 2048, "depth": 16, "heads": 16, "hidden": 8192}, 1_484_916_736),
        "7b": Size({}, 7_298_617_344),
        "13b": Size(
            {"width": 5120, "depth": 40, "heads": 40, "hidden": 13824}, 13_716_198_400, training={"tokens": 5e12}
        ),
    },
    layout=build_llama_layout(
        "olmo2",
        "Olmo2",
        template=lambda: replace(build_olmo2_spec(), special=build_spec().special),
        entries=(
            *build_llama_keys(vocab=50304),
            BIAS_KEY,
            Key("rms_norm_eps", tuple(f"decoder.{path}" for path in _EPS), 1e-5),
        ),
        norms={
            **QK_NORM_NAMES,
            "decoder.{i}.attention_norm.out.{p}": "model.layers.{i}.post_attention_layernorm.{p}",
            "decoder.{i}.feedforward_norm.out.{p}": "model.layers.{i}.post_feedforward_layernorm.{p}",
        },
        task_heads=define_score_head("Olmo2"),
    ),
)
"""OLMo 2: norms after each sublayer and on queries and keys (Walsh et al., 2025)."""
