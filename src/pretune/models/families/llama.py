"""LLaMA 1, 2 and 3 (Touvron et al., 2023; Dubey et al., 2024), and Mistral (Jiang et al., 2023).

RMSNorm, rotary positions, SwiGLU, no biases.
"""

from functools import partial

from pretune.core import config
from pretune.models.families.shared import (
    BIAS_KEY,
    HEAD_WIDTH_KEY,
    NO_CHANGES,
    RMS_NORM_KEY,
    Family,
    Size,
    build_decoder_training,
    build_llama_keys,
    build_llama_layout,
    define_llama_heads,
)
from pretune.models.hf.config import Key, SpecChanges, allow_null, check_size
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import FeedForward, Norm, RMSNorm
from pretune.nn.positions import BandedScaling, Rotary
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
    head_width: int | None = None,
    window: int | None = None,
    position: Rotary = ROTARY,
    norm: Norm = NORM,
    context: int = 2048,
    changes: SpecChanges = NO_CHANGES,
) -> Model:
    """Build a spec: pre-norm, rotary positions, SwiGLU; hidden width 8/3 of the width, rounded up to 256s.

    `changes` are the values at some paths that make it another family.
    """
    spec = Model(
        family="llama",
        vocab=vocab,
        width=width,
        decoder=Stack(
            depth=depth,
            causal=True,
            position=position,
            blocks=(
                Block(
                    attention=Attention(
                        heads=heads,
                        kv_heads=None if kv_heads == heads else kv_heads,
                        head_width=None if head_width == width / heads else head_width,
                        bias=False,
                        window=window,
                    ),
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
    return config.replace(spec, changes) if changes else spec


LAYOUT = build_llama_layout(
    "llama",
    "Llama",
    template=build_spec,
    entries=(
        *build_llama_keys(),
        HEAD_WIDTH_KEY,
        RMS_NORM_KEY,
        BIAS_KEY,
        Key("mlp_bias", ("decoder.blocks.*.feedforward.bias",), False),
    ),
)

_13B = {"width": 5120, "depth": 40, "heads": 40, "hidden": 13824}
llama = Family(
    build_spec=build_spec,
    shape="decoder",
    default="7b",
    training=build_decoder_training(
        length=2048,
        batch_tokens=4_194_304,
        tokens=1e12,
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 32_000),
    ),
    sizes={
        "7b": Size({}, 6_738_415_616),
        "13b": Size(_13B, 13_015_864_320),
        "30b": Size(
            {"width": 6656, "depth": 60, "heads": 52, "hidden": 17920}, 32_528_943_616, training={"tokens": 1.4e12}
        ),
        "65b": Size(
            {"width": 8192, "depth": 80, "heads": 64, "hidden": 22016}, 65_285_660_672, training={"tokens": 1.4e12}
        ),
    },
    layout=LAYOUT,
)
"""LLaMA: RMSNorm, rotary positions, SwiGLU (Touvron et al., 2023)."""

llama2 = Family(
    build_spec=partial(build_spec, norm=RMSNorm(eps=1e-5), context=4096, changes={"family": "llama2"}),
    shape="decoder",
    default="7b",
    training=build_decoder_training(
        length=4096,
        batch_tokens=4_194_304,
        tokens=2e12,
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 32_000),
    ),
    sizes={
        "7b": Size({}, 6_738_415_616),
        "13b": Size(_13B, 13_015_864_320),
        "70b": Size({"width": 8192, "depth": 80, "heads": 64, "kv_heads": 8, "hidden": 28672}, 68_976_648_192),
    },
    layout=LAYOUT,
)
"""Llama 2: longer context, grouped-query attention in the largest size (Touvron et al., 2023)."""

_LONG_CONTEXT_ROTARY = Rotary(theta=500000.0, scaling=BandedScaling(factor=32.0, low=1.0, high=4.0, original=8192))
_LLAMA_3_2 = {"hidden": 8192, "tied": True, "position": _LONG_CONTEXT_ROTARY, "context": 131072}
llama3 = Family(
    build_spec=partial(
        build_spec,
        vocab=128256,
        kv_heads=8,
        hidden=14336,
        norm=RMSNorm(eps=1e-5),
        context=8192,
        position=Rotary(theta=500000.0),
        changes={"family": "llama3"},
    ),
    shape="decoder",
    default="8b",
    training=build_decoder_training(
        length=8192,
        batch_tokens=4_194_304,
        tokens=15e12,
        lr=3e-4,
        width=4096,
        warmup=8_000,
        floor=0.01,
        tokenizer=("bpe", "endoftext", 128_256),
    ),
    sizes={
        # Llama 3.2 (text): tied heads and scaled rotary frequencies.
        "1b": Size({"width": 2048, "depth": 16, **_LLAMA_3_2}, 1_235_814_400, training={"tokens": 9e12}),
        "3b": Size({"width": 3072, "depth": 28, "heads": 24, **_LLAMA_3_2}, 3_212_749_824, training={"tokens": 9e12}),
        "8b": Size({}, 8_030_261_248),
        "70b": Size({"width": 8192, "depth": 80, "heads": 64, "hidden": 28672}, 70_553_706_496),
    },
    layout=LAYOUT,
)
"""Llama 3: larger vocabulary, grouped-query attention, rotary scaling by wavelength (Dubey et al., 2024)."""

_build_mistral_spec = partial(
    build_spec,
    kv_heads=8,
    hidden=14336,
    window=4096,
    norm=RMSNorm(eps=1e-5),
    context=32768,
    changes={"family": "mistral"},
)
mistral = Family(
    build_spec=_build_mistral_spec,
    shape="decoder",
    default="7b",
    training=build_decoder_training(
        length=8192,
        batch_tokens=4_194_304,
        tokens=8e12,  # not published: an estimate
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 32_000),
    ),
    sizes={"7b": Size({}, 7_241_732_096)},
    layout=build_llama_layout(
        "mistral",
        "Mistral",
        template=_build_mistral_spec,
        entries=(
            *build_llama_keys(hidden=14336, kv_heads=8, context=131072),
            HEAD_WIDTH_KEY,
            RMS_NORM_KEY,
            # NOTE: an explicit null means no window; a missing key means the default of the class.
            Key("sliding_window", ("decoder.blocks.*.attention.window",), 4096, check=allow_null(check_size)),
        ),
        task_heads=define_llama_heads("Mistral", spans=None),
    ),
)
"""Mistral: Llama with a sliding window and grouped-query attention (Jiang et al., 2023)."""
