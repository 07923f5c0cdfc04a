"""XGLM (Lin et al., 2022): a multilingual decoder with sinusoidal positions and scaled embeddings."""

from pretune.models.families.shared import Family, Size, build_decoder_classes, build_decoder_training
from pretune.models.hf.config import ACTIVATIONS, FixedKey, Key, name_projections
from pretune.models.hf.weights import Layout
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import Sinusoidal
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 1024,
    depth: int = 24,
    heads: int = 16,
    vocab: int = 256_008,
    hidden: int | None = None,
    context: int = 2048,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: pre-norm with biases, tied head, positions counted from 2."""
    norm = LayerNorm()
    return Model(
        family="xglm",
        vocab=vocab,
        width=width,
        context=context,
        decoder=Stack(
            depth=depth,
            causal=True,
            embed=Embed(scale=True, dropout=dropout),
            position=Sinusoidal(offset=2, order="halves"),
            blocks=(
                Block(
                    attention=Attention(heads=heads, dropout=dropout),
                    feedforward=FeedForward(hidden=hidden or 4 * width),
                    norms=Norms(pre=norm),
                    dropout=dropout,
                ),
            ),
            norm=norm,
        ),
        head=Head(),
        special=Special(pad=1, bos=0, eos=(2,), start=2),
    )


xglm = Family(
    build_spec=build_spec,
    shape="decoder",
    default="564M",
    # Length and architecture are the paper's; rate, optimizer and schedule are GPT-3's for a decoder of this width.
    training=build_decoder_training(
        length=2048,
        batch_tokens=524_288,
        tokens=500e9,
        lr=3e-4,
        width=1024,
        warmup=715,
        tokenizer=("unigram", "s-mask", 256_008),
    ),
    sizes={
        "564M": Size({}, 564_463_616),
        "1.7B": Size({"width": 2048}, 1_732_907_008),
        "2.9B": Size({"width": 2048, "depth": 48}, 2_941_505_536),
        "4.5B": Size({"width": 2048, "depth": 48, "hidden": 16384}, 4_552_511_488),  # 134 languages
        "7.5B": Size({"width": 4096, "depth": 32, "heads": 32}, 7_492_771_840),
    },
    layout=Layout(
        model_type="xglm",
        template=build_spec,
        entries=(
            Key("vocab_size", ("vocab",), 256_008),
            Key("d_model", ("width",), 1024, aliases=("hidden_size",)),
            Key("num_layers", ("decoder.depth",), 24, aliases=("num_hidden_layers",)),
            Key("attention_heads", ("decoder.blocks.*.attention.heads",), 16, aliases=("num_attention_heads",)),
            Key("ffn_dim", ("decoder.blocks.*.feedforward.hidden",), 4096),
            Key("activation_function", ("decoder.blocks.*.feedforward.activation",), "gelu", ACTIVATIONS),
            Key("dropout", ("decoder.embed.dropout", "decoder.blocks.*.dropout"), 0.1),
            Key("attention_dropout", ("decoder.blocks.*.attention.dropout",), 0.1),
            Key("activation_dropout", ("decoder.blocks.*.feedforward.dropout",), 0.0),
            Key("scale_embedding", ("decoder.embed.scale",), True),
            Key("init_std", ("init.std",), 0.02),
            Key("max_position_embeddings", ("context",), 2048),
            FixedKey("layerdrop", (0, 0.0)),
            FixedKey("add_cross_attention", (False,)),
            FixedKey("pad_token_id", (1, 0)),  # another id would zero the position of its number
        ),
        prefix="model.",
        classes=build_decoder_classes("XGLM"),
        skipped_tensors=(r".*embed_positions\.weights",),
        names={
            **name_projections("decoder", "model.layers.{i}.self_attn.{part}_proj.{p}"),
            "decoder.{i}.attention_norm.pre.{p}": "model.layers.{i}.self_attn_layer_norm.{p}",
            "decoder.{i}.feedforward_norm.pre.{p}": "model.layers.{i}.final_layer_norm.{p}",
            "decoder.{i}.feedforward.up.{p}": "model.layers.{i}.fc1.{p}",
            "decoder.{i}.feedforward.down.{p}": "model.layers.{i}.fc2.{p}",
            "tokens.weight": "model.embed_tokens.weight",
            "decoder.norm.{p}": "model.layer_norm.{p}",
            "head.weight": "lm_head.weight",
        },
    ),
)
"""XGLM: sinusoidal positions, thirty languages (Lin et al., 2022)."""
