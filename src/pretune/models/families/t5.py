"""T5 (Raffel et al., 2020), T5 v1.1 and mT5 (Xue et al., 2021): everything is text to text."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pretune.core.errors import CheckpointError
from pretune.models.families.bert import ACTIVATIONS
from pretune.models.family import Family, Size
from pretune.models.huggingface import Key, Layout, Odd, both
from pretune.models.init import FanIn
from pretune.models.spec import Model, Special
from pretune.models.weights import Rule, rules
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.embeddings import Embed
from pretune.nn.feedforward import FeedForward
from pretune.nn.heads import Head
from pretune.nn.norm import RMSNorm
from pretune.nn.positions import RelativeBias
from pretune.nn.stack import Stack


def stack(
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
    """Pre-norm without biases; unscaled attention; one table of relative positions for all layers."""
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


def recipe(
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
    """Encoder and decoder over one table. A tied head reads states divided by sqrt(width); mT5's never are."""
    make = partial(
        stack,
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


def _read_gate(found: Mapping[str, Any]) -> dict[str, Any]:
    kind = found.get("feed_forward_proj", "relu")
    gate, _, name = kind.rpartition("-") if isinstance(kind, str) else ("", "", kind)
    name = "gelu_new" if kind == "gated-gelu" else name  # NOTE: so it is in every release
    if gate not in ("", "gated") or name not in ACTIVATIONS:
        raise CheckpointError(f"feed_forward_proj = {kind!r} is not supported; allowed: 'relu', 'gated-gelu', …")
    return dict(zip(_GATE, (gate == "gated",) * 2 + (ACTIVATIONS[name],) * 2, strict=True))


_GATE = (*both(["blocks.*.feedforward.gated"]), *both(["blocks.*.feedforward.activation"]))


def _write_gate(spec: Model) -> dict[str, Any]:
    layer = spec.last.blocks[0].feedforward
    name = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == layer.activation)
    name = "gelu" if layer.gated and name == "gelu_new" else name
    return {"feed_forward_proj": f"gated-{name}" if layer.gated else name}


def _read_scale(found: Mapping[str, Any]) -> dict[str, Any]:
    scaled = found.get("scale_decoder_outputs", found.get("tie_word_embeddings") is not False)
    return {"head.scale": found.get("d_model", 512) ** -0.5 if scaled else None}


def _write_scale(spec: Model) -> dict[str, Any]:
    return {"scale_decoder_outputs": spec.head is not None and spec.head.scale is not None}


def _read_depth(found: Mapping[str, Any]) -> dict[str, Any]:
    depth = found.get("num_layers", found.get("num_hidden_layers", 6))
    after = found.get("num_decoder_layers")
    return {"encoder.depth": depth, "decoder.depth": depth if after is None else after}


def _write_depth(spec: Model) -> dict[str, Any]:
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
_KEYS = (
    Key("d_model", ("width",), 512, aliases=("hidden_size",)),
    Key("d_kv", tuple(f"{path}.head_width" for path in _ATTENTION), 64),
    Key("num_heads", tuple(f"{path}.heads" for path in _ATTENTION), 8, aliases=("num_attention_heads",)),
    Key("d_ff", both(["blocks.*.feedforward.hidden"]), 2048),
    Odd(("num_layers", "num_decoder_layers", "num_hidden_layers"), _read_depth, _write_depth),
    Key("relative_attention_num_buckets", both(["position.buckets"]), 32),
    Key("relative_attention_max_distance", both(["position.far"]), 128),
    Key("dropout_rate", (*both(_DROPOUT), "decoder.blocks.*.cross.dropout"), 0.1),
    Key("layer_norm_epsilon", both(["norm.eps", "blocks.*.norms.pre.eps"]), 1e-6),
    Key("initializer_factor", ("init.factor",), 1.0),
    Odd(("feed_forward_proj", "is_gated_act", "dense_act_fn"), _read_gate, _write_gate),
    Key("n_positions", ("context",), 512),
)
_SCALE = Odd(("scale_decoder_outputs", "tie_word_embeddings"), _read_scale, _write_scale)


def _rules(spec: Model) -> tuple[Rule, ...]:
    gated = spec.last.blocks[0].feedforward.gated
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
        table[f"{side}.{{i}}.feedforward.up.weight"] = f"{dense}.wi_1.weight" if gated else f"{dense}.wi.weight"
        table[f"{side}.{{i}}.feedforward.down.weight"] = f"{dense}.wo.weight"
        table[f"{side}.{{i}}.feedforward_norm.pre.weight"] = f"{layer}.{last}.layer_norm.weight"
        table[f"{side}.position.table.weight"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table[f"{side}.norm.weight"] = f"{side}.final_layer_norm.weight"
    return rules(table)


def _layout(model_type: str, name: str, extra: tuple[Key | Odd, ...]) -> Layout:
    return Layout(
        model_type=model_type,
        template=partial(recipe, family=model_type),
        entries=(*_KEYS, *extra),
        classes={f"{name}ForConditionalGeneration": frozenset({"head"}), f"{name}Model": frozenset()},
        head="lm_head.weight",
        copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        # NOTE: an old release saved a position table of the attention to the source that was never used.
        skipped=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        rules=_rules,
    )


LAYOUT = _layout("t5", "T5", (Key("vocab_size", ("vocab",), 32128), _SCALE))

t5 = Family(
    recipe=recipe,
    shape="encoder-decoder",
    default="base",
    sizes={
        "small": Size({"width": 512, "depth": 6, "heads": 8}, 60_506_624),
        "base": Size({}, 222_903_552),
        "large": Size({"width": 1024, "depth": 24, "heads": 16}, 737_668_096),  # "770M"
        "3b": Size({"width": 1024, "depth": 24, "heads": 32, "head_width": 128, "hidden": 16384}, 2_851_598_336),
        "11b": Size({"width": 1024, "depth": 24, "heads": 128, "head_width": 128, "hidden": 65536}, 11_307_321_344),
    },
    layout=LAYOUT,
)
"""T5: every task as text to text, relative position buckets (Raffel et al., 2020)."""

_V1_1 = {
    "small": {"width": 512, "depth": 8, "heads": 6, "hidden": 1024},
    "base": {"width": 768, "depth": 12, "heads": 12, "hidden": 2048},
    "large": {"width": 1024, "depth": 24, "heads": 16, "hidden": 2816},
    "xl": {"width": 2048, "depth": 24, "heads": 32, "hidden": 5120},
    "xxl": {"width": 4096, "depth": 24, "heads": 64, "hidden": 10240},
}


def _sizes(*params: int) -> dict[str, Size]:
    return {name: Size(settings, count) for (name, settings), count in zip(_V1_1.items(), params, strict=True)}


t5_v1_1 = Family(
    recipe=partial(recipe, gated=True, tied=False, family="t5v1.1"),
    shape="encoder-decoder",
    default="base",
    sizes=_sizes(76_961_152, 247_577_856, 783_150_080, 2_849_757_184, 11_135_332_352),
    layout=LAYOUT,
)
"""T5 v1.1: GEGLU, a head of its own (Shazeer, 2020)."""

mt5 = Family(
    recipe=partial(recipe, vocab=250112, gated=True, tied=False, family="mt5"),
    shape="encoder-decoder",
    default="base",
    sizes=_sizes(300_176_768, 582_401_280, 1_229_581_312, 3_742_619_648, 12_921_057_280),
    layout=_layout("mt5", "MT5", (Key("vocab_size", ("vocab",), 250112),)),
)
"""mT5: T5 v1.1 over a hundred languages (Xue et al., 2021)."""
