"""Qwen2 (Yang et al., 2024) and dense Qwen3 (Yang et al., 2025): Llama with other biases and norms of attention."""

from collections.abc import Callable
from functools import partial

from pretune.core import config
from pretune.models.families.llama import build_spec as build_llama_spec
from pretune.models.families.shared import (
    BIAS_KEY,
    HEAD_WIDTH_KEY,
    PRE_NORM_NAMES,
    QK_NORM_NAMES,
    RMS_NORM_KEY,
    Family,
    Size,
    build_decoder_training,
    build_head_width_key,
    build_llama_keys,
    build_llama_layout,
)
from pretune.models.families.shared_rotary import FULL, SLIDING
from pretune.models.hf.config import CustomKey, HfConfig, Key, SpecChanges, allow_null, check_flag, check_size
from pretune.models.spec import Model, Special
from pretune.nn.layers import PerHead, RMSNorm
from pretune.nn.positions import Rotary
from pretune.nn.stack import MAX_LAYERS, Stack

ROTARY = Rotary(theta=1_000_000.0)
SPECIAL = Special(bos=151643, eos=(151643,))
_SMALL = {"vocab": 151936, "tied": True}
_LARGE = {"width": 5120, "heads": 40, "kv_heads": 8}


build_spec = partial(
    build_llama_spec,
    width=3584,
    depth=28,
    heads=28,
    kv_heads=4,
    vocab=152064,
    hidden=18944,
    position=ROTARY,
    context=32768,
    changes={"family": "qwen2", "decoder.blocks.0.attention.bias": ("q", "k", "v"), "special": SPECIAL},
)
"""Qwen2: a bias on queries, keys and values, and rotary positions for long contexts."""

build_qwen3_spec = partial(
    build_llama_spec,
    depth=36,
    kv_heads=8,
    head_width=128,
    vocab=151936,
    hidden=12288,
    position=ROTARY,
    context=32768,
    changes={"family": "qwen3", "decoder.blocks.0.attention.norm": PerHead(norm=RMSNorm()), "special": SPECIAL},
)
"""Qwen3: norms of queries and keys, and heads of a width of their own."""


def _build_template(build: Callable[[], Model]) -> Model:
    """Build a spec with the special tokens of the reference: none."""
    return config.replace(build(), {"special": Special()})


def _build_window_key(build: Callable[[], Model]) -> CustomKey:
    """Return the keys of sliding windows, which the last layers have from `max_window_layers` on, or named ones."""

    def read(hf_config: HfConfig) -> SpecChanges:
        depth = hf_config.read("num_hidden_layers", check=check_size, default=32)
        if depth > MAX_LAYERS:
            return {}  # the stack refuses it
        window = hf_config.read("sliding_window", check=allow_null(check_size), default=4096)
        if not hf_config.read("use_sliding_window", check=check_flag, default=False):
            window = None
        first = hf_config.read("max_window_layers", check=partial(check_size, minimum=0), default=28)
        default_kinds = [FULL if window is None or i < first else SLIDING for i in range(depth)]
        kinds = hf_config.read_layer_types(default_kinds, (FULL,) if window is None else (FULL, SLIDING))
        if SLIDING not in kinds:
            return {}
        block = build().first_block
        windows = {f"decoder.blocks.{i}.attention.window": window for i in range(depth) if kinds[i] == SLIDING}
        return {"decoder.blocks": (block,) * depth, **windows}

    def write(spec: Model) -> dict[str, object]:
        assert isinstance(spec.decoder, Stack)
        windows = [block.attention.window for block in spec.decoder.layers]
        kinds = [FULL if window is None else SLIDING for window in windows]
        return {
            "use_sliding_window": SLIDING in kinds,
            "sliding_window": next((window for window in windows if window is not None), None),
            "max_window_layers": [*kinds, SLIDING].index(SLIDING),
            "layer_types": kinds,
        }

    return CustomKey(("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"), read, write)


qwen2 = Family(
    build_spec=build_spec,
    shape="decoder",
    default="7b",
    # The report states lengths only; the rest is that of the first Qwen (Bai et al., 2023).
    training=build_decoder_training(
        length=4096,
        batch_tokens=4_194_304,
        tokens=7e12,
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 151_646),
    ),
    sizes={
        # 3b, 14b and 32b are of Qwen2.5 (Qwen Team, 2024), whose other sizes are the same.
        "0.5b": Size(
            {**_SMALL, "width": 896, "depth": 24, "heads": 14, "kv_heads": 2, "hidden": 4864},
            494_032_768,
            training={"tokens": 12e12},
        ),
        "1.5b": Size({**_SMALL, "width": 1536, "heads": 12, "kv_heads": 2, "hidden": 8960}, 1_543_714_304),
        "3b": Size(
            {**_SMALL, "width": 2048, "depth": 36, "heads": 16, "kv_heads": 2, "hidden": 11008},
            3_085_938_688,
            training={"tokens": 18e12},
        ),
        "7b": Size({}, 7_615_616_512),
        "14b": Size({**_LARGE, "depth": 48, "hidden": 13824}, 14_770_033_664, training={"tokens": 18e12}),
        "32b": Size({**_LARGE, "depth": 64, "hidden": 27648}, 32_763_876_352, training={"tokens": 18e12}),
        "72b": Size({"width": 8192, "depth": 80, "heads": 64, "kv_heads": 8, "hidden": 29568}, 72_706_203_648),
    },
    layout=build_llama_layout(
        "qwen2",
        "Qwen2",
        template=partial(_build_template, build_spec),
        entries=(
            _build_window_key(build_spec),
            *build_llama_keys(vocab=151936, hidden=22016, kv_heads=32, context=32768),
            HEAD_WIDTH_KEY,
            RMS_NORM_KEY,
        ),
    ),
)
"""Qwen2 and Qwen2.5: biases on queries, keys and values, grouped-query attention (Yang et al., 2024)."""

_EPS = ("blocks.*.norms.pre.eps", "blocks.*.attention.norm.norm.eps", "norm.eps")

qwen3 = Family(
    build_spec=build_qwen3_spec,
    shape="decoder",
    default="8b",
    # The report states lengths only; the rest is that of the first Qwen (Bai et al., 2023).
    training=build_decoder_training(
        length=4096,
        batch_tokens=4_194_304,
        tokens=36e12,
        lr=3e-4,
        width=4096,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 151_669),
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
        template=partial(_build_template, build_qwen3_spec),
        entries=(
            _build_window_key(build_qwen3_spec),
            *build_llama_keys(vocab=151936, hidden=22016, kv_heads=32, context=32768),
            build_head_width_key(128),
            BIAS_KEY,
            Key("rms_norm_eps", tuple(f"decoder.{path}" for path in _EPS), 1e-6),
        ),
        norms={**PRE_NORM_NAMES, **QK_NORM_NAMES},
    ),
)
"""Qwen3: norms of queries and keys within each head, grouped-query attention (Yang et al., 2025)."""
