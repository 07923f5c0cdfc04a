"""BLOOM (Le Scao et al., 2022): a multilingual decoder with ALiBi and a norm after the token embedding."""

from dataclasses import replace

from pretune.models.families.shared import (
    ADAM_LARGE,
    Family,
    Size,
    build_decoder_classes,
    build_decoder_training,
    derive_hidden,
)
from pretune.models.hf.config import FixedKey, Key
from pretune.models.hf.weights import InterleavedPacking, Layout, define_score_head, define_token_heads, fuse_qkv
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import Alibi
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 1024,
    depth: int = 24,
    heads: int = 16,
    vocab: int = 250_880,
    context: int = 2048,
    dropout: float = 0.0,
) -> Model:
    """Build a spec: pre-norm with biases, tanh gelu; the hidden width is four times the width."""
    norm = LayerNorm()
    return Model(
        family="bloom",
        vocab=vocab,
        width=width,
        context=context,
        decoder=Stack(
            depth=depth,
            causal=True,
            embed=Embed(norm=norm),
            position=Alibi(),
            blocks=(
                Block(
                    attention=Attention(heads=heads, dropout=dropout),
                    feedforward=FeedForward(hidden=4 * width, activation="gelu_tanh"),
                    norms=Norms(pre=norm),
                    dropout=dropout,
                ),
            ),
            norm=norm,
        ),
        head=Head(),
        special=Special(pad=3, bos=1, eos=(2,)),
    )


def _make_size(width: int, depth: int, heads: int, params: int, lr: float, sequences: int, floor: float) -> Size:
    """Return a size with its rate and batch (table 3 of the paper); warm-up is 375M tokens."""
    schedule = {"kind": "cosine", "warmup": 375_000_000 // (sequences * 2048), "floor": floor}
    training = {"lr": lr, "width": width, "batch_tokens": sequences * 2048, "schedule": schedule}
    return Size({"width": width, "depth": depth, "heads": heads}, params, training=training)


NORM_PATHS = ("decoder.embed.norm.eps", "decoder.blocks.*.norms.pre.eps", "decoder.norm.eps")
LAYER = "transformer.h.{i}"

bloom = Family(
    build_spec=build_spec,
    shape="decoder",
    default="560m",
    training=build_decoder_training(
        length=2048,
        batch_tokens=256 * 2048,
        tokens=341e9,
        lr=3e-4,
        width=1024,
        optimizer=ADAM_LARGE,
        warmup=715,
        floor=0.033,  # 1e-5
        tokenizer=("bpe", "endoftext", 250_680),
    ),
    sizes={
        "560m": _make_size(1024, 24, 16, 559_214_592, 3e-4, 256, 0.033),
        "1b1": _make_size(1536, 24, 16, 1_065_314_304, 2.5e-4, 256, 0.04),
        "1b7": _make_size(2048, 24, 16, 1_722_408_960, 2e-4, 512, 0.05),
        "3b": _make_size(2560, 30, 32, 3_002_557_440, 1.6e-4, 512, 0.0625),
        "7b1": _make_size(4096, 30, 32, 7_069_016_064, 1.2e-4, 512, 0.083),
        "176b": _make_size(14336, 70, 112, 176_247_271_424, 6e-5, 2048, 0.1),
    },
    layout=Layout(
        model_type="bloom",
        template=lambda: replace(build_spec(), special=Special(bos=1, eos=(2,))),
        entries=(
            Key("hidden_size", ("width",), 64, aliases=("n_embed",)),
            derive_hidden("decoder", "hidden_size", "n_embed", default=64),
            Key("vocab_size", ("vocab",), 250_880),
            Key("n_layer", ("decoder.depth",), 2, aliases=("num_hidden_layers",)),
            Key("n_head", ("decoder.blocks.*.attention.heads",), 8, aliases=("num_attention_heads",)),
            Key("hidden_dropout", ("decoder.blocks.*.dropout",), 0.0),
            Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.0),
            Key("layer_norm_epsilon", NORM_PATHS, 1e-5),
            Key("initializer_range", ("init.std",), 0.02),
            Key("seq_length", ("context",), 2048),
            FixedKey("apply_residual_connection_post_layernorm", (False,)),
        ),
        # Settings of the training code, which the released configs have; the reference ignores them.
        ignored_keys=frozenset(
            {"slow_but_exact", "offset_alibi", "attention_softmax_in_fp32", "masked_softmax_fusion"}
            | {"bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"}
        ),
        prefix="transformer.",
        classes=build_decoder_classes("Bloom"),
        task_heads={**define_score_head("Bloom"), **define_token_heads("Bloom")},
        rules=(fuse_qkv("decoder", f"{LAYER}.self_attention.query_key_value.{{p}}", InterleavedPacking()),),
        names={
            "decoder.{i}.attention.out.{p}": f"{LAYER}.self_attention.dense.{{p}}",
            "decoder.{i}.attention_norm.pre.{p}": f"{LAYER}.input_layernorm.{{p}}",
            "decoder.{i}.feedforward_norm.pre.{p}": f"{LAYER}.post_attention_layernorm.{{p}}",
            "decoder.{i}.feedforward.up.{p}": f"{LAYER}.mlp.dense_h_to_4h.{{p}}",
            "decoder.{i}.feedforward.down.{p}": f"{LAYER}.mlp.dense_4h_to_h.{{p}}",
            "tokens.weight": "transformer.word_embeddings.weight",
            "decoder.embed.norm.{p}": "transformer.word_embeddings_layernorm.{p}",
            "decoder.norm.{p}": "transformer.ln_f.{p}",
            "head.weight": "lm_head.weight",
        },
    ),
)
"""BLOOM: ALiBi and a norm after the token embedding, 46 languages (Le Scao et al., 2022)."""
