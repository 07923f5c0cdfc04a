"""Qwen3 (Yang et al., 2025), the dense models: Qwen2 with norms of queries and keys in each head instead of biases."""

from pretune.core import config
from pretune.models.families.llama import build_spec as build_llama_spec
from pretune.models.families.qwen2 import build_window_key
from pretune.models.families.shared import (
    BIAS_KEY,
    LLAMA_NAMES,
    PRE_NORM_NAMES,
    QK_NORM_NAMES,
    Family,
    Size,
    build_decoder_training,
    build_head_width_key,
    build_llama_keys,
    build_llama_layout,
    build_rope_key,
    define_llama_heads,
)
from pretune.models.hf.config import Key
from pretune.models.spec import Model, Special
from pretune.nn.layers import PerHead, RMSNorm
from pretune.nn.positions import Rotary

NORM = RMSNorm(eps=1e-6)


def build_spec(
    *,
    width: int = 4096,
    depth: int = 36,
    heads: int = 32,
    kv_heads: int | None = 8,
    head_width: int | None = 128,
    vocab: int = 151936,
    hidden: int = 12288,
    tied: bool = False,
) -> Model:
    """Build a spec: Llama with norms of queries and keys, and heads whose width does not follow from the model's."""
    base = build_llama_spec(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        hidden=hidden,
        tied=tied,
        family="qwen3",
        norm=NORM,
        position=Rotary(theta=1_000_000.0),
        context=32768,
    )
    attention = {"norm": PerHead(norm=NORM), "head_width": None if head_width == width / heads else head_width}
    changes = {f"decoder.blocks.0.attention.{name}": value for name, value in attention.items()}
    return config.replace(base, {**changes, "special": Special(bos=151643, eos=(151643,))})


def build_template() -> Model:
    """Build a spec with the special tokens of the reference: none."""
    return config.replace(build_spec(), {"special": Special()})


_EPS = ("blocks.*.norms.pre.eps", "blocks.*.attention.norm.norm.eps", "norm.eps")

qwen3 = Family(
    build_spec=build_spec,
    shape="decoder",
    default="8b",
    # The report states lengths only; the rest is that of the first Qwen (Bai et al., 2023).
    training=build_decoder_training(
        length=4096, batch_tokens=4_194_304, lr=3e-4, width=4096, warmup=2_000, tokenizer=("bpe", "endoftext", 151_669)
    ),
    sizes={
        "0.6b": Size({"width": 1024, "depth": 28, "heads": 16, "hidden": 3072, "tied": True}, 596_049_920),
        "1.7b": Size({"width": 2048, "depth": 28, "heads": 16, "hidden": 6144, "tied": True}, 1_720_574_976),
        "4b": Size({"width": 2560, "hidden": 9728, "tied": True}, 4_022_468_096),
        "8b": Size({}, 8_190_735_360),
        "14b": Size({"width": 5120, "depth": 40, "heads": 40, "hidden": 17408}, 14_768_307_200),
        "32b": Size({"width": 5120, "depth": 64, "heads": 64, "hidden": 25600}, 32_762_123_264),
    },
    layout=build_llama_layout(
        "qwen3",
        "Qwen3",
        template=build_template,
        entries=(
            build_window_key(build_template),
            *build_llama_keys(vocab=151936, hidden=22016, kv_heads=32, context=32768),
            build_rope_key(),
            build_head_width_key(128),
            BIAS_KEY,
            Key("rms_norm_eps", tuple(f"decoder.{path}" for path in _EPS), 1e-6),
        ),
        names={**LLAMA_NAMES, **PRE_NORM_NAMES, **QK_NORM_NAMES},
        task_heads=define_llama_heads("Qwen3"),
    ),
)
"""Qwen3: norms of queries and keys within each head, grouped-query attention (Yang et al., 2025)."""
