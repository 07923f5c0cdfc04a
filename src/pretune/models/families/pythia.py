"""Pythia (Biderman et al., 2023), a suite of GPT-NeoX models: parallel residual, partial rotary, untied head."""

from dataclasses import replace

from pretune.models.families.shared import (
    ADAM_LARGE,
    Family,
    Size,
    build_decoder_classes,
    build_decoder_training,
)
from pretune.models.families.shared_rotary import build_rope_key
from pretune.models.hf.config import ACTIVATIONS, Key
from pretune.models.hf.weights import InterleavedPacking, Layout, define_score_head, define_token_heads, fuse_qkv
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import FeedForward, LayerNorm
from pretune.nn.positions import Rotary
from pretune.nn.stack import Stack


def build_spec(
    *, width: int = 768, depth: int = 12, heads: int = 12, vocab: int = 50304, hidden: int | None = None
) -> Model:
    """Build a spec: parallel attention and feed-forward; a quarter of each head is rotated."""
    norm = LayerNorm()
    return Model(
        family="pythia",
        vocab=vocab,
        width=width,
        context=2048,
        decoder=Stack(
            depth=depth,
            causal=True,
            position=Rotary(fraction=0.25),
            blocks=(
                Block(
                    attention=Attention(heads=heads),
                    feedforward=FeedForward(hidden=hidden or 4 * width),
                    norms=Norms(pre=norm),
                    parallel=True,
                ),
            ),
            norm=norm,
        ),
        head=Head(tied=False),
        special=Special(bos=0, eos=(0,)),
    )


def _make_size(width: int, depth: int, heads: int, params: int, vocab: int = 50304) -> Size:
    return Size({"width": width, "depth": depth, "heads": heads, "vocab": vocab}, params)


pythia = Family(
    build_spec=build_spec,
    shape="decoder",
    default="160m",
    training=build_decoder_training(
        length=2048,
        batch_tokens=2_097_152,
        tokens=300e9,
        lr=6e-4,
        width=768,
        optimizer={**ADAM_LARGE, "weight_decay": 0.01},
        warmup=1_430,
        tokenizer=("bpe", "endoftext", 50_254),
    ),
    # The vocabulary is padded to a multiple that depends on the training hardware.
    sizes={
        "14m": _make_size(128, 6, 4, 14_067_712),
        "31m": _make_size(256, 6, 8, 30_494_720),
        "70m": _make_size(512, 6, 8, 70_426_624),
        "160m": _make_size(768, 12, 12, 162_322_944),
        "410m": _make_size(1024, 24, 16, 405_334_016),
        "1b": _make_size(2048, 16, 8, 1_011_781_632),
        "1.4b": _make_size(2048, 24, 16, 1_414_647_808),
        "2.8b": _make_size(2560, 32, 32, 2_775_208_960),
        "6.9b": _make_size(4096, 32, 32, 6_857_302_016, 50432),
        "12b": _make_size(5120, 36, 40, 11_846_072_320, 50688),
    },
    layout=Layout(
        model_type="gpt_neox",
        template=lambda: replace(build_spec(), special=Special(bos=0, eos=(2,))),
        entries=(
            Key("vocab_size", ("vocab",), 50432),
            Key("hidden_size", ("width",), 6144),
            Key("num_hidden_layers", ("decoder.depth",), 44),
            Key("num_attention_heads", ("decoder.blocks.*.attention.heads",), 64),
            Key("intermediate_size", ("decoder.blocks.*.feedforward.hidden",), 24576),
            Key("hidden_act", ("decoder.blocks.*.feedforward.activation",), "gelu", ACTIVATIONS),
            Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.0),
            Key("hidden_dropout", ("decoder.blocks.*.dropout", "decoder.embed.dropout"), 0.0),
            Key("layer_norm_eps", ("decoder.blocks.*.norms.pre.eps", "decoder.norm.eps"), 1e-5),
            Key("use_parallel_residual", ("decoder.blocks.*.parallel",), True),
            Key("attention_bias", ("decoder.blocks.*.attention.bias",), True),
            Key("initializer_range", ("init.std",), 0.02),
            Key("max_position_embeddings", ("context",), 2048),
            build_rope_key(fraction=0.25, old_names=("rotary_emb_base", "rotary_pct")),
        ),
        prefix="gpt_neox.",
        classes=build_decoder_classes("GPTNeoX"),
        task_heads={**define_score_head("GPTNeoX"), **define_token_heads("GPTNeoX")},
        skipped_tensors=(r".*\.attention\.(masked_)?bias", r".*rotary_emb\.inv_freq"),
        rules=(fuse_qkv("decoder", "gpt_neox.layers.{i}.attention.query_key_value.{p}", InterleavedPacking()),),
        names={
            "decoder.{i}.attention.out.{p}": "gpt_neox.layers.{i}.attention.dense.{p}",
            "decoder.{i}.attention_norm.pre.{p}": "gpt_neox.layers.{i}.input_layernorm.{p}",
            "decoder.{i}.feedforward_norm.pre.{p}": "gpt_neox.layers.{i}.post_attention_layernorm.{p}",
            "decoder.{i}.feedforward.up.{p}": "gpt_neox.layers.{i}.mlp.dense_h_to_4h.{p}",
            "decoder.{i}.feedforward.down.{p}": "gpt_neox.layers.{i}.mlp.dense_4h_to_h.{p}",
            "tokens.weight": "gpt_neox.embed_in.weight",
            "decoder.norm.{p}": "gpt_neox.final_layer_norm.{p}",
            "head.weight": "embed_out.weight",
        },
    ),
)
"""Pythia: GPT-NeoX at ten sizes, trained on the same data in the same order (Biderman et al., 2023)."""
