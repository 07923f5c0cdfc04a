"""MPT (MosaicML, 2023): ALiBi positions, no biases."""

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.families.shared import ADAM_LARGE, Family, Size, build_decoder_training, derive_hidden
from pretune.models.hf.config import (
    IGNORED_KEYS,
    CustomKey,
    FixedKey,
    HfConfig,
    Key,
    SpecChanges,
    allow_null,
    check_positive,
    check_rate,
)
from pretune.models.hf.weights import Layout, define_score_head, define_token_heads, fuse_qkv
from pretune.models.spec import Model
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import FeedForward, LayerNorm
from pretune.nn.positions import Alibi
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    vocab: int = 50432,
    context: int = 2048,
    dropout: float = 0.0,
) -> Model:
    """Build a spec: layer norms without bias; the hidden width is four times the width."""
    norm = LayerNorm(bias=False)
    return Model(
        family="mpt",
        vocab=vocab,
        width=width,
        context=context,
        decoder=Stack(
            depth=depth,
            causal=True,
            position=Alibi(),
            blocks=(
                Block(
                    attention=Attention(heads=heads, bias=False, dropout=dropout),
                    feedforward=FeedForward(hidden=4 * width, bias=False),
                    norms=Norms(pre=norm),
                    dropout=dropout,
                ),
            ),
            norm=norm,
        ),
        head=Head(),
    )


_FIXED_VALUES = {
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
    "alibi": True,
    "alibi_bias_max": 8,
}
_KNOWN_KEYS = {
    "attn_impl",
    "attn_uses_sequence_id",
    "clip_qkv",
    "softmax_scale",
    "attn_pdrop",
    *_FIXED_VALUES,
    *IGNORED_KEYS,
}


def _read_attention(hf_config: HfConfig) -> SpecChanges:
    attention = hf_config.read_object("attn_config")
    for name, value in _FIXED_VALUES.items():
        attention.require(f"attn_config.{name}", value)
    for name, value in attention.items():
        if name.removeprefix("attn_config.") not in _KNOWN_KEYS and value not in (None, False, {}, []):
            raise CheckpointError(f"key {format_value(name)} is unknown; its effect cannot be reproduced")
    dropout = attention.read("attn_config.attn_pdrop", check=check_rate, default=0.0)
    clip, scale = (
        attention.read(f"attn_config.{name}", check=allow_null(check_positive), default=None)
        for name in ("clip_qkv", "softmax_scale")
    )
    return {
        "decoder.blocks.*.attention.clip": clip,
        "decoder.blocks.*.attention.scale": scale,
        "decoder.blocks.*.attention.dropout": dropout,
        "decoder.blocks.*.dropout": dropout,
    }


def _write_attention(spec: Model) -> dict[str, object]:
    assert isinstance(spec.decoder, Stack)
    attention = spec.decoder.blocks[0].attention
    # NOTE: the reference takes only integers for this rate; others are stored under the key `pretune`.
    rate = {"attn_pdrop": int(attention.dropout)} if float(attention.dropout).is_integer() else {}
    return {"attn_config": {**_FIXED_VALUES, "clip_qkv": attention.clip, "softmax_scale": attention.scale, **rate}}


mpt = Family(
    build_spec=build_spec,
    shape="decoder",
    default="7b",
    training=build_decoder_training(
        length=2048,
        # The settings of its code for Adam; the released weights were trained with Lion.
        batch_tokens=2_097_152,
        tokens=1e12,
        lr=1.2e-4,
        width=4096,
        optimizer={**ADAM_LARGE, "weight_decay": 0.0},
        warmup=100,
        tokenizer=("bpe", "endoftext", 50_368),
    ),
    sizes={
        "7b": Size({}, 6_649_286_656),
        "30b": Size({"width": 7168, "depth": 48, "heads": 64, "context": 8192}, 29_957_200_896),
    },
    layout=Layout(
        model_type="mpt",
        template=build_spec,
        entries=(
            Key("vocab_size", ("vocab",), 50368),
            Key("d_model", ("width",), 2048, aliases=("hidden_size",)),
            Key("n_layers", ("decoder.depth",), 24, aliases=("num_hidden_layers",)),
            Key("n_heads", ("decoder.blocks.*.attention.heads",), 16, aliases=("num_attention_heads",)),
            Key("max_seq_len", ("context",), 2048),
            Key("layer_norm_epsilon", ("decoder.blocks.*.norms.pre.eps", "decoder.norm.eps"), 1e-5),
            Key("initializer_range", ("init.std",), 0.02),
            derive_hidden("decoder", "d_model", "hidden_size", default=2048),
            CustomKey(("attn_config",), _read_attention, _write_attention),
            FixedKey("expansion_ratio", (4,)),
            FixedKey("no_bias", (True,)),
            FixedKey("logit_scale", (None,)),
            FixedKey("embedding_fraction", (1, 1.0)),
        ),
        # The reference ignores these keys.
        ignored_keys=frozenset(
            {"learned_pos_emb", "norm_type", "resid_pdrop", "emb_pdrop", "init_config", "tokenizer_name"}
        ),
        prefix="transformer.",
        # MPTForCausalLM is the equivalent class in the code of the release.
        classes={"MptForCausalLM": frozenset({"head"}), "MPTForCausalLM": frozenset({"head"}), "MptModel": frozenset()},
        task_heads={**define_score_head("Mpt"), **define_token_heads("Mpt")},
        rules=(fuse_qkv("decoder", "transformer.blocks.{i}.attn.Wqkv.{p}"),),
        names={
            "decoder.{i}.attention.out.weight": "transformer.blocks.{i}.attn.out_proj.weight",
            "decoder.{i}.attention_norm.pre.weight": "transformer.blocks.{i}.norm_1.weight",
            "decoder.{i}.feedforward_norm.pre.weight": "transformer.blocks.{i}.norm_2.weight",
            "decoder.{i}.feedforward.up.weight": "transformer.blocks.{i}.ffn.up_proj.weight",
            "decoder.{i}.feedforward.down.weight": "transformer.blocks.{i}.ffn.down_proj.weight",
            "tokens.weight": "transformer.wte.weight",
            "decoder.norm.weight": "transformer.norm_f.weight",
            "head.weight": "lm_head.weight",
        },
    ),
)
"""MPT: ALiBi and no biases (MosaicML, 2023)."""
