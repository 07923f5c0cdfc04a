"""Mistral (Jiang et al., 2023): Llama with grouped-query attention and a sliding window."""

from pretune.core import config
from pretune.models.families.llama import build_spec as build_llama_spec
from pretune.models.families.shared import (
    HEAD_WIDTH_KEY,
    RMS_NORM_KEY,
    Family,
    Size,
    build_decoder_training,
    build_llama_keys,
    build_llama_layout,
    define_llama_heads,
)
from pretune.models.hf.config import Key, allow_null, check_size
from pretune.models.spec import Model
from pretune.nn.layers import RMSNorm


def build_spec(
    *,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    kv_heads: int | None = 8,
    vocab: int = 32000,
    hidden: int | None = 14336,
    window: int | None = 4096,
) -> Model:
    """Build a spec: Llama in which every layer attends to the last `window` tokens."""
    base = build_llama_spec(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        hidden=hidden,
        family="mistral",
        norm=RMSNorm(eps=1e-5),
        context=32768,
    )
    return config.replace(base, {"decoder.blocks.0.attention.window": window})


mistral = Family(
    build_spec=build_spec,
    shape="decoder",
    default="7b",
    training=build_decoder_training(
        length=8192, batch_tokens=4_194_304, lr=3e-4, width=4096, warmup=2_000, tokenizer=("bpe", "endoftext", 32_000)
    ),
    sizes={"7b": Size({}, 7_241_732_096)},
    layout=build_llama_layout(
        "mistral",
        "Mistral",
        template=build_spec,
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
