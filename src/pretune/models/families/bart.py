"""BART (Lewis et al., 2020), mBART (Liu et al., 2020) and MASS (Song et al., 2019): denoising encoder-decoders."""

from dataclasses import replace
from functools import partial

from pretune.models.families.shared import ADAM, Family, PaperDefaults, Size
from pretune.models.hf.config import ACTIVATIONS, Entry, FixedKey, Key, expand_sides
from pretune.models.hf.weights import HeadLayout, Layout, LeadingAxisPacking, Rule, define_token_heads
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head, PoolingConfig
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import LearnedEmbedding
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 768,
    depth: int = 6,
    heads: int = 12,
    vocab: int = 50265,
    hidden: int | None = None,
    positions: int = 1024,
    dropout: float = 0.1,
    pre_norm: bool = False,
    scale: bool = False,
    family: str = "bart",
) -> Model:
    """Build a spec: learned positions from row 2, embedding norms; mBART is pre-norm and scales embeddings."""
    norm = LayerNorm()

    def stack(causal: bool) -> Stack:
        attention = Attention(heads=heads)
        return Stack(
            depth=depth,
            causal=causal,
            position=LearnedEmbedding(rows=positions + 2, offset=2),
            embed=Embed(norm=norm, scale=scale, dropout=dropout),
            blocks=(
                Block(
                    attention=attention,
                    cross=attention if causal else None,
                    feedforward=FeedForward(hidden=hidden or 4 * width),
                    norms=Norms(pre=norm) if pre_norm else Norms(post=norm),
                    dropout=dropout,
                ),
            ),
            norm=norm if pre_norm else None,
        )

    return Model(
        family=family,
        vocab=vocab,
        width=width,
        encoder=stack(causal=False),
        decoder=stack(causal=True),
        head=Head(bias="fixed"),
        special=Special(pad=1, bos=0, eos=(2,), start=None if family == "mbart" else 2),
    )


def _build_keys(side: str) -> tuple[Entry, ...]:
    first = side == "encoder"  # names without a side refer to the encoder
    attentions = [f"{side}.blocks.*.attention"] + ([] if first else [f"{side}.blocks.*.cross"])
    heads = tuple(f"{path}.heads" for path in attentions)
    return (
        Key(f"{side}_layers", (f"{side}.depth",), 12, aliases=("num_hidden_layers",) if first else ()),
        Key(f"{side}_ffn_dim", (f"{side}.blocks.*.feedforward.hidden",), 4096),
        Key(f"{side}_attention_heads", heads, 16, aliases=("num_attention_heads",) if first else ()),
        FixedKey(f"{side}_layerdrop", (0, 0.0)),
    )


_ENTRIES: tuple[Entry, ...] = (
    *_build_keys("encoder"),
    *_build_keys("decoder"),
    Key("vocab_size", ("vocab",), 50265),
    Key("d_model", ("width",), 1024, aliases=("hidden_size",)),
    Key("max_position_embeddings", expand_sides(["position.rows"]), 1024, shift=2),
    Key("activation_function", expand_sides(["blocks.*.feedforward.activation"]), "gelu", ACTIVATIONS),
    Key("dropout", expand_sides(["embed.dropout", "blocks.*.dropout"]), 0.1),
    Key("attention_dropout", (*expand_sides(["blocks.*.attention.dropout"]), "decoder.blocks.*.cross.dropout"), 0.0),
    Key("activation_dropout", expand_sides(["blocks.*.feedforward.dropout"]), 0.0),
    Key("init_std", ("init.std",), 0.02),
    Key("scale_embedding", expand_sides(["embed.scale"]), False),
)


def _name_tensors(slot: str) -> dict[str, str]:
    table = {"tokens.weight": "model.shared.weight", "head.weight": "lm_head.weight"}
    for side in ("encoder", "decoder"):
        layer = f"model.{side}.layers.{{i}}"
        names = {"attention": "self_attn", "cross": "encoder_attn"} if side == "decoder" else {"attention": "self_attn"}
        for ours, theirs in names.items():
            for part in ("q", "k", "v", "out"):
                table[f"{side}.{{i}}.{ours}.{part}.{{p}}"] = f"{layer}.{theirs}.{part}_proj.{{p}}"
            table[f"{side}.{{i}}.{ours}_norm.{slot}.{{p}}"] = f"{layer}.{theirs}_layer_norm.{{p}}"
        table[f"{side}.{{i}}.feedforward.up.{{p}}"] = f"{layer}.fc1.{{p}}"
        table[f"{side}.{{i}}.feedforward.down.{{p}}"] = f"{layer}.fc2.{{p}}"
        table[f"{side}.{{i}}.feedforward_norm.{slot}.{{p}}"] = f"{layer}.final_layer_norm.{{p}}"
        table[f"{side}.position.table.weight"] = f"model.{side}.embed_positions.weight"
        table[f"{side}.embed.norm.{{p}}"] = f"model.{side}.layernorm_embedding.{{p}}"
        table[f"{side}.norm.{{p}}"] = f"model.{side}.layer_norm.{{p}}"
    return table


LAST_TOKEN = PoolingConfig(mode="last", layer="own")
"""The decoder's last state through a dense layer; encoder and decoder get the same text (section 3.1)."""


def _build_layout(model_type: str, name: str, slot: str) -> Layout:
    task_heads = {
        f"{name}ForSequenceClassification": HeadLayout(
            "classification",
            {"dense": "classification_head.dense", "out": "classification_head.out_proj"},
            LAST_TOKEN,
        ),
        **define_token_heads(name, tags=None),
    }
    return Layout(
        model_type=model_type,
        template=partial(build_spec, pre_norm=slot == "pre", family=model_type),
        entries=(
            *_ENTRIES,
            # Keys of early releases; the two classes now fix these values.
            FixedKey("normalize_before", (slot == "pre",)),
            FixedKey("add_final_layer_norm", (slot == "pre",)),
            FixedKey("normalize_embedding", (True,)),
            FixedKey("static_position_embeddings", (False,)),
            FixedKey("extra_pos_embeddings", (2,)),
            FixedKey("add_bias_logits", (False,)),
        ),
        prefix="model.",
        classes={f"{name}ForConditionalGeneration": frozenset({"head"}), f"{name}Model": frozenset()},
        task_heads={key: replace(head, ignores_start=name == "MBart") for key, head in task_heads.items()},
        copies=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        needs_copies=True,
        zeros=("final_logits_bias",),
        rules=(Rule("head.bias", "final_logits_bias", LeadingAxisPacking()),),
        names=_name_tensors(slot),
    )


BART_LAYOUT = _build_layout("bart", "Bart", "post")

bart = Family(
    build_spec=build_spec,
    shape="encoder-decoder",
    pooling=LAST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "denoising"},
        batch_tokens=4_096_000,
        tokens=2.05e12,  # 500,000 steps
        lr=6e-4,
        width=768,
        optimizer={**ADAM, "betas": (0.9, 0.98)},
        schedule={"kind": "linear", "warmup": 10_000},
        tokenizer=("bpe", "s-mask", 50_265),
    ),
    sizes={"base": Size({}, 139_420_416), "large": Size({"width": 1024, "depth": 12, "heads": 16}, 406_291_456)},
    layout=BART_LAYOUT,
)
"""BART: a denoising encoder-decoder (Lewis et al., 2020)."""

mbart = Family(
    build_spec=partial(build_spec, pre_norm=True, scale=True, vocab=250027, family="mbart"),
    shape="encoder-decoder",
    pooling=LAST_TOKEN,
    default="large",
    training=PaperDefaults(
        objective={"kind": "denoising"},
        batch_tokens=32_768_000,  # 128K on each of 256 devices
        tokens=16.4e12,  # 500,000 steps
        lr=3e-4,
        width=768,
        optimizer={**ADAM, "betas": (0.9, 0.98)},
        schedule={"kind": "linear", "warmup": 10_000},
        tokenizer=("unigram", "s-mask", 250_027),
    ),
    sizes={"large": Size({"width": 1024, "depth": 12, "heads": 16}, 610_851_840)},
    layout=_build_layout("mbart", "MBart", "pre"),
)
"""mBART: BART over 25 languages, pre-norm (Liu et al., 2020)."""

mass = Family(
    build_spec=partial(build_spec, vocab=30522, positions=512, family="mass"),
    shape="encoder-decoder",
    pooling=LAST_TOKEN,
    default="base",
    training=PaperDefaults(
        objective={"kind": "masked_seq2seq"},
        batch_tokens=12_000,
        tokens=5e9,  # not published: one pass over its 190M sentences
        lr=1e-4,
        width=768,
        optimizer={**ADAM, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.0},
        schedule={"kind": "inverse_square_root", "warmup": 4_000},
        tokenizer=("wordpiece", "cls-sep", 30_522),
    ),
    sizes={
        "base": Size({}, 123_471_360),  # "123M"
        "middle": Size({"width": 1024, "heads": 16}, 208_668_672),  # "213M"
    },
    layout=BART_LAYOUT,
)
"""MASS: an encoder-decoder that predicts a masked span (Song et al., 2019)."""
