"""T5 (Raffel et al., 2020), T5 v1.1 and mT5 (Xue et al., 2021): text-to-text encoder-decoders.

`t5_table` are the architectures that the paper compares (table 2), built from T5 blocks.
At L = 12 layers, an encoder-decoder of L + L layers has twice the parameters P of a language model of L layers but the
same compute M per token; sharing its halves or halving its depth brings it back to P.
"""

from dataclasses import replace
from functools import partial

from pretune.models.families.shared import Family, PaperDefaults, Size, TuningDefaults
from pretune.models.hf.config import (
    ACTIVATIONS,
    CustomKey,
    Entry,
    HfConfig,
    Key,
    SpecChanges,
    allow_choices,
    allow_null,
    check_flag,
    check_size,
    expand_sides,
)
from pretune.models.hf.weights import HeadLayout, Layout, define_token_heads
from pretune.models.spec import FanIn, Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head, PoolingConfig
from pretune.nn.layers import Embed, FeedForward, RMSNorm
from pretune.nn.positions import RelativeBias
from pretune.nn.stack import Stack


def build_stack(
    *,
    width: int,
    depth: int,
    heads: int,
    head_width: int = 64,
    hidden: int,
    gated: bool,
    dropout: float,
    causal: bool,
    cross: bool = False,
    both_ways: bool | None = None,
) -> Stack:
    """Build a stack: pre-norm without biases, unscaled attention, one relative position table for all layers."""
    norm = RMSNorm(eps=1e-6)
    attention = Attention(heads=heads, head_width=head_width, bias=False, scale=1.0, dropout=dropout)
    return Stack(
        depth=depth,
        causal=causal,
        position=RelativeBias(both_ways=not causal if both_ways is None else both_ways),
        embed=Embed(dropout=dropout),
        blocks=(
            Block(
                attention=attention,
                cross=attention if cross else None,
                feedforward=FeedForward(
                    hidden=hidden, activation="gelu_tanh" if gated else "relu", gated=gated, bias=False, dropout=dropout
                ),
                norms=Norms(pre=norm),
                dropout=dropout,
            ),
        ),
        norm=norm,
        dropout=dropout,
    )


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    head_width: int = 64,
    vocab: int = 32128,
    hidden: int | None = None,
    gated: bool = False,
    tied: bool = True,
    dropout: float = 0.1,
    family: str = "t5",
) -> Model:
    """Build a spec. A tied head takes states divided by sqrt(width), except in mT5."""
    make = partial(
        build_stack,
        width=width,
        depth=depth,
        heads=heads,
        head_width=head_width,
        hidden=hidden or 4 * width,
        gated=gated,
        dropout=dropout,
    )
    return Model(
        family=family,
        vocab=vocab,
        width=width,
        encoder=make(causal=False),
        decoder=make(causal=True, cross=True),
        head=Head(tied=tied, scale=width**-0.5 if tied and family != "mt5" else None),
        context=512,
        init=FanIn(),
        special=Special(pad=0, eos=(1,), start=0),
    )


# NOTE: "gated-gelu" is the tanh approximation in every release.
GATES = {
    **{name: (False, ours) for name, ours in ACTIVATIONS.items()},
    "gated-gelu": (True, "gelu_tanh"),
    **{f"gated-{name}": (True, ours) for name, ours in ACTIVATIONS.items() if name != "gelu"},
}


def _read_gate(default: str, hf_config: HfConfig) -> SpecChanges:
    is_gated, activation = hf_config.read("feed_forward_proj", check=allow_choices(GATES), default=GATES[default])
    # Newer releases also write these derived keys.
    hf_config.require("is_gated_act", is_gated)
    hf_config.require("dense_act_fn", *(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation))
    places = expand_sides(["blocks.*.feedforward.gated"]), expand_sides(["blocks.*.feedforward.activation"])
    return {**dict.fromkeys(places[0], is_gated), **dict.fromkeys(places[1], activation)}


def _write_gate(spec: Model) -> dict[str, object]:
    layer = spec.first_block.feedforward
    return {"feed_forward_proj": next(name for name, gate in GATES.items() if gate == (layer.gated, layer.activation))}


def _read_scale(hf_config: HfConfig) -> SpecChanges:
    is_scaled = hf_config.read("scale_decoder_outputs", check=allow_null(check_flag), default=None)
    if is_scaled is None:
        is_scaled = hf_config.read("tie_word_embeddings", check=allow_null(check_flag), default=None) is not False
    return {
        "head.scale": hf_config.read("d_model", "hidden_size", check=check_size, default=512) ** -0.5
        if is_scaled
        else None
    }


def _write_scale(spec: Model) -> dict[str, object]:
    return {"scale_decoder_outputs": spec.head is not None and spec.head.scale is not None}


def _read_depth(default: int, hf_config: HfConfig) -> SpecChanges:
    depth = hf_config.read("num_layers", "num_hidden_layers", check=check_size, default=default)
    decoder_depth = hf_config.read("num_decoder_layers", check=allow_null(check_size), default=None)
    return {"encoder.depth": depth, "decoder.depth": depth if decoder_depth is None else decoder_depth}


def _write_depth(spec: Model) -> dict[str, object]:
    assert spec.encoder is not None and spec.decoder is not None
    return {"num_layers": spec.encoder.depth, "num_decoder_layers": spec.decoder.depth}


_ATTENTION = ("encoder.blocks.*.attention", "decoder.blocks.*.attention", "decoder.blocks.*.cross")
_DROPOUT = (
    "embed.dropout",
    "dropout",
    "blocks.*.dropout",
    "blocks.*.attention.dropout",
    "blocks.*.feedforward.dropout",
)


def _build_keys(vocab: int, depth: int, heads: int, hidden: int, gate: str) -> tuple[Entry, ...]:
    return (
        Key("vocab_size", ("vocab",), vocab),
        Key("d_model", ("width",), 512, aliases=("hidden_size",)),
        Key("d_kv", tuple(f"{path}.head_width" for path in _ATTENTION), 64, aliases=("head_dim",)),
        Key("num_heads", tuple(f"{path}.heads" for path in _ATTENTION), heads, aliases=("num_attention_heads",)),
        Key("d_ff", expand_sides(["blocks.*.feedforward.hidden"]), hidden),
        CustomKey(("num_layers", "num_decoder_layers", "num_hidden_layers"), partial(_read_depth, depth), _write_depth),
        Key("relative_attention_num_buckets", expand_sides(["position.buckets"]), 32),
        Key("relative_attention_max_distance", expand_sides(["position.max_distance"]), 128),
        Key("dropout_rate", (*expand_sides(_DROPOUT), "decoder.blocks.*.cross.dropout"), 0.1),
        Key("layer_norm_epsilon", expand_sides(["norm.eps", "blocks.*.norms.pre.eps"]), 1e-6),
        Key("initializer_factor", ("init.factor",), 1.0),
        CustomKey(("feed_forward_proj", "is_gated_act", "dense_act_fn"), partial(_read_gate, gate), _write_gate),
        Key("n_positions", ("context",), 512),
    )


_SCALE = CustomKey(("scale_decoder_outputs", "tie_word_embeddings"), _read_scale, _write_scale)


def _name_tensors(spec: Model) -> dict[str, str]:
    is_gated = spec.first_block.feedforward.gated
    table = {"tokens.weight": "shared.weight", "head.weight": "lm_head.weight"}
    for side, last in (("encoder", 1), ("decoder", 2)):
        layer = f"{side}.block.{{i}}.layer"
        attentions = [("attention", f"{layer}.0.SelfAttention", 0)]
        if side == "decoder":
            attentions.append(("cross", f"{layer}.1.EncDecAttention", 1))
        for ours, theirs, number in attentions:
            for part in "qkv":
                table[f"{side}.{{i}}.{ours}.{part}.weight"] = f"{theirs}.{part}.weight"
            table[f"{side}.{{i}}.{ours}.out.weight"] = f"{theirs}.o.weight"
            table[f"{side}.{{i}}.{ours}_norm.pre.weight"] = f"{layer}.{number}.layer_norm.weight"
        dense = f"{layer}.{last}.DenseReluDense"
        table[f"{side}.{{i}}.feedforward.gate.weight"] = f"{dense}.wi_0.weight"
        table[f"{side}.{{i}}.feedforward.up.weight"] = f"{dense}.wi_1.weight" if is_gated else f"{dense}.wi.weight"
        table[f"{side}.{{i}}.feedforward.down.weight"] = f"{dense}.wo.weight"
        table[f"{side}.{{i}}.feedforward_norm.pre.weight"] = f"{layer}.{last}.layer_norm.weight"
        table[f"{side}.position.table.weight"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table[f"{side}.norm.weight"] = f"{side}.final_layer_norm.weight"
    return table


LAST_TOKEN = PoolingConfig(mode="last", layer="own")
"""The decoder's last state through a dense layer, as in BART; the paper itself uses text-to-text for all tasks."""


def _build_layout(model_type: str, name: str, *entries: Entry) -> Layout:
    return Layout(
        model_type=model_type,
        template=partial(build_spec, family=model_type),
        entries=entries,
        classes={
            f"{name}ForConditionalGeneration": frozenset({"head"}),
            f"{name}WithLMHeadModel": frozenset({"head"}),  # former name
            f"{name}Model": frozenset(),
        },
        task_heads={
            f"{name}ForSequenceClassification": HeadLayout(
                "classification",
                {"dense": "classification_head.dense", "out": "classification_head.out_proj"},
                LAST_TOKEN,
                prefix="transformer.",
            ),
            **define_token_heads(name, tags=None),
        },
        has_encoder_class=True,
        copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        # NOTE: an old release has an unused position table of the cross-attention.
        skipped_tensors=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        names=_name_tensors,
    )


LAYOUT = _build_layout("t5", "T5", *_build_keys(vocab=32128, depth=6, heads=8, hidden=2048, gate="relu"), _SCALE)

TUNING = TuningDefaults(
    method="full",
    settings={
        "train.optimizer": {"kind": "adafactor"},
        "train.schedule": {"kind": "constant"},
        "train.lr": 1e-3,
    },
)
"""Fine-tuning of the paper. Adafactor's rates are relative to the size of a weight, which differs a hundredfold between
the token table and the queries; no absolute rate of AdamW fits both."""

t5 = Family(
    build_spec=build_spec,
    shape="encoder-decoder",
    pooling=LAST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "span_corruption"},
        batch_tokens=65_536,
        tokens=2**35,
        lr=0.01,
        optimizer={"kind": "adafactor"},
        schedule={"kind": "inverse_square_root", "hold": 10_000},
        tokenizer=("unigram", "sentinels", 32_100),
    ),
    tuning=TUNING,
    sizes={
        "small": Size({"width": 512, "depth": 6, "heads": 8}, 60_506_624),
        "base": Size({}, 222_903_552),
        "large": Size({"width": 1024, "depth": 24, "heads": 16}, 737_668_096),  # "770M"
        "3b": Size({"width": 1024, "depth": 24, "heads": 32, "head_width": 128, "hidden": 16384}, 2_851_598_336),
        "11b": Size({"width": 1024, "depth": 24, "heads": 128, "head_width": 128, "hidden": 65536}, 11_307_321_344),
    },
    layout=LAYOUT,
)
"""T5: text-to-text, relative position buckets (Raffel et al., 2020)."""

_V1_1 = {
    "small": {"width": 512, "depth": 8, "heads": 6, "hidden": 1024},
    "base": {"width": 768, "depth": 12, "heads": 12, "hidden": 2048},
    "large": {"width": 1024, "depth": 24, "heads": 16, "hidden": 2816},
    "xl": {"width": 2048, "depth": 24, "heads": 32, "hidden": 5120},
    "xxl": {"width": 4096, "depth": 24, "heads": 64, "hidden": 10240},
}


t5_v1_1 = Family(
    build_spec=partial(build_spec, gated=True, tied=False, family="t5v1.1"),
    shape="encoder-decoder",
    pooling=LAST_TOKEN,
    default="base",
    training=t5.training,
    tuning=TUNING,
    sizes={
        "small": Size(_V1_1["small"], 76_961_152),
        "base": Size(_V1_1["base"], 247_577_856),
        "large": Size(_V1_1["large"], 783_150_080),
        "xl": Size(_V1_1["xl"], 2_849_757_184),
        "xxl": Size(_V1_1["xxl"], 11_135_332_352),
    },
    layout=LAYOUT,
)
"""T5 v1.1: GEGLU, untied head (Shazeer, 2020)."""

mt5 = Family(
    build_spec=partial(build_spec, vocab=250112, gated=True, tied=False, family="mt5"),
    shape="encoder-decoder",
    pooling=LAST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "span_corruption"},
        lengths=(1024,),
        batch_tokens=1_048_576,
        tokens=1e12,
        lr=0.01,
        optimizer={"kind": "adafactor"},
        schedule={"kind": "inverse_square_root", "hold": 10_000},
        tokenizer=("unigram", "sentinels", 250_112),
    ),
    tuning=TUNING,
    sizes={
        "small": Size(_V1_1["small"], 300_176_768),
        "base": Size(_V1_1["base"], 582_401_280),
        "large": Size(_V1_1["large"], 1_229_581_312),
        "xl": Size(_V1_1["xl"], 3_742_619_648),
        "xxl": Size(_V1_1["xxl"], 12_921_057_280),
    },
    layout=_build_layout("mt5", "MT5", *_build_keys(vocab=250112, depth=8, heads=6, hidden=1024, gate="gated-gelu")),
)
"""mT5: T5 v1.1 over a hundred languages (Xue et al., 2021)."""


def build_table_spec(
    *,
    shape: str = "enc-dec",
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 32128,
    hidden: int | None = None,
    dropout: float = 0.1,
) -> Model:
    """Build one of the five architectures; `depth` is the number of layers of each stack."""
    spec = build_spec(
        width=width,
        depth=depth,
        heads=heads,
        vocab=vocab,
        hidden=hidden or 4 * width,
        dropout=dropout,
        family="t5-table",
    )
    if shape.startswith("enc-dec"):
        return replace(spec, shared=shape == "enc-dec-shared")
    assert isinstance(spec.decoder, Stack)
    position = RelativeBias(both_ways=shape == "prefix-lm")  # the prefix has keys on both sides of a query
    blocks = (replace(spec.decoder.blocks[0], cross=None),)
    return replace(spec, encoder=None, decoder=replace(spec.decoder, position=position, blocks=blocks))


t5_table = Family(
    build_spec=build_table_spec,
    shape="encoder-decoder or decoder",
    default="enc-dec",
    training=t5.training,
    tuning=t5.tuning,
    sizes={
        "enc-dec": Size({}, 222_903_552),  # 2P, M
        "enc-dec-shared": Size({"shape": "enc-dec-shared"}, 137_950_464),  # P, M
        "enc-dec-half": Size({"shape": "enc-dec-half", "depth": 6}, 123_790_080),  # P, M / 2
        "lm": Size({"shape": "lm"}, 109_628_544),  # P, M
        "prefix-lm": Size({"shape": "prefix-lm"}, 109_628_544),  # P, M
    },
    layout=t5.layout,  # shared stacks and language models are saved in the native format
)
"""T5's architectures: encoder-decoders, language model, prefix LM at matched cost (Raffel et al., 2020)."""
