"""GPT-2 (Radford et al., 2019) and GPT-3 (Brown et al., 2020): pre-norm left-to-right decoders."""

from functools import partial

from pretune.core import config
from pretune.models.families.gpt import build_spec as build_gpt_spec
from pretune.models.families.shared import (
    GPT_KEYS,
    GPT_RULES,
    Family,
    Size,
    build_decoder_classes,
    build_decoder_training,
    derive_hidden,
)
from pretune.models.hf.config import (
    ACTIVATIONS,
    FixedKey,
    Key,
)
from pretune.models.hf.weights import Layout, define_score_head, define_token_heads
from pretune.models.spec import Model, Normal, Special
from pretune.nn.block import Norms
from pretune.nn.layers import LayerNorm


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 50257,
    hidden: int | None = None,
    positions: int = 1024,
    dropout: float = 0.1,
    head_width: int | None = None,
    family: str = "gpt2",
) -> Model:
    """Build a spec: GPT with pre-norm, a final norm, and scaled initialization of residual layers."""
    base = build_gpt_spec(
        width=width, depth=depth, heads=1, vocab=vocab, hidden=hidden, positions=positions, dropout=dropout
    )
    changes = {
        "family": family,
        "decoder.blocks.0.attention.heads": heads,
        "decoder.blocks.0.attention.head_width": head_width,
        "decoder.blocks.0.norms": Norms(pre=LayerNorm()),
        "decoder.norm": LayerNorm(),
        "init": Normal(residual=True),
        "special": Special(bos=50256, eos=(50256,)),
    }
    return config.replace(base, changes)


LAYOUT = Layout(
    model_type="gpt2",
    template=build_spec,
    entries=(
        *GPT_KEYS,
        Key("vocab_size", ("vocab",), 50257),
        Key("n_positions", ("decoder.position.rows",), 1024, aliases=("max_position_embeddings",)),
        Key(
            "activation_function",
            ("decoder.blocks.*.feedforward.activation",),
            "gelu_tanh",
            {"gelu_new": "gelu_tanh", **ACTIVATIONS},
        ),
        Key("layer_norm_epsilon", ("decoder.blocks.*.norms.pre.eps", "decoder.norm.eps"), 1e-5),
        derive_hidden("decoder", "n_embd", "hidden_size", default=768, key="n_inner"),
        FixedKey("scale_attn_weights", (True,)),
        FixedKey("scale_attn_by_inverse_layer_idx", (False,)),
        FixedKey("reorder_and_upcast_attn", (False,)),
        FixedKey("add_cross_attention", (False,)),
    ),
    prefix="transformer.",
    classes=build_decoder_classes("GPT2", "LMHeadModel"),
    task_heads={**define_score_head("GPT2"), **define_token_heads("GPT2")},
    skipped_tensors=(r".*\.attn\.(masked_)?bias",),
    rules=GPT_RULES,
    names={
        "decoder.{i}.attention_norm.pre.{p}": "transformer.h.{i}.ln_1.{p}",
        "decoder.{i}.feedforward_norm.pre.{p}": "transformer.h.{i}.ln_2.{p}",
        "tokens.weight": "transformer.wte.weight",
        "decoder.position.table.weight": "transformer.wpe.weight",
        "decoder.norm.{p}": "transformer.ln_f.{p}",
        "head.weight": "lm_head.weight",
    },
)

gpt2 = Family(
    build_spec=build_spec,
    shape="decoder",
    default="small",
    training=build_decoder_training(
        length=1024,
        batch_tokens=524_288,
        tokens=100e9,
        lr=6e-4,
        width=768,
        warmup=2_000,
        tokenizer=("bpe", "endoftext", 50_257),
    ),
    # The paper's figures (117M, 345M, 762M, 1542M) were too small.
    sizes={
        "small": Size({}, 124_439_808),
        "medium": Size({"width": 1024, "depth": 24, "heads": 16}, 354_823_168),
        "large": Size({"width": 1280, "depth": 36, "heads": 20}, 774_030_080),
        "xl": Size({"width": 1600, "depth": 48, "heads": 25}, 1_557_611_200),
    },
    layout=LAYOUT,
)
"""GPT-2: pre-norm left-to-right decoder (Radford et al., 2019)."""


def _make_size(width: int, depth: int, heads: int, head_width: int, params: int) -> Size:
    head_settings = {"head_width": head_width} if heads * head_width != width else {}
    return Size({"width": width, "depth": depth, "heads": heads, **head_settings}, params)


gpt3 = Family(
    build_spec=partial(build_spec, positions=2048, dropout=0.0, family="gpt3"),
    shape="decoder",
    default="125m",
    training=build_decoder_training(
        length=2048,
        batch_tokens=524_288,
        tokens=300e9,
        lr=6e-4,
        width=768,
        warmup=750,
        tokenizer=("bpe", "endoftext", 50_257),
    ),
    # Table 2.1 of the paper; no weights were released, so the counts are computed from these specs. Attention is dense
    # in every layer; the paper alternates with banded sparse layers of unpublished width.
    sizes={
        "125m": _make_size(768, 12, 12, 64, 125_226_240),
        "350m": _make_size(1024, 24, 16, 64, 355_871_744),
        "760m": _make_size(1536, 24, 16, 96, 760_300_032),
        "1.3b": _make_size(2048, 24, 24, 128, 1_517_123_584),
        "2.7b": _make_size(2560, 32, 32, 80, 2_651_553_280),
        "6.7b": _make_size(4096, 32, 32, 128, 6_658_404_352),
        "13b": _make_size(5140, 40, 40, 128, 12_936_488_380),
        "175b": _make_size(12288, 96, 96, 128, 174_604_259_328),
    },
    layout=LAYOUT,
)
"""GPT-3: GPT-2 at up to 175 billion parameters, as specs (Brown et al., 2020)."""
