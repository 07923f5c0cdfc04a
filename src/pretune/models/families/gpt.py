"""GPT (Radford et al., 2018): a post-norm left-to-right decoder, pre-trained once and fine-tuned per task."""

from pretune.models.families.shared import (
    ADAM,
    GPT_KEYS,
    GPT_RULES,
    Family,
    Size,
    build_decoder_classes,
    build_decoder_training,
    derive_hidden,
)
from pretune.models.hf.config import Key
from pretune.models.hf.weights import Layout, define_score_head
from pretune.models.spec import Model, Normal
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import LearnedEmbedding
from pretune.nn.stack import Stack


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 40478,
    hidden: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: post-norm blocks without a final norm, tied head."""
    return Model(
        family="gpt",
        vocab=vocab,
        width=width,
        decoder=Stack(
            depth=depth,
            causal=True,
            embed=Embed(dropout=dropout),
            position=LearnedEmbedding(rows=positions),
            blocks=(
                Block(
                    attention=Attention(heads=heads, dropout=dropout),
                    feedforward=FeedForward(hidden=hidden or 4 * width, activation="gelu_tanh"),
                    norms=Norms(post=LayerNorm()),
                    dropout=dropout,
                ),
            ),
        ),
        head=Head(),
        init=Normal(),
    )


gpt = Family(
    build_spec=build_spec,
    shape="decoder",
    default="base",
    training=build_decoder_training(
        length=512,
        batch_tokens=32_768,
        tokens=100e9,  # 100 passes over its books
        lr=2.5e-4,
        width=768,
        optimizer={**ADAM, "eps": 1e-8},
        warmup=2_000,
        floor=0.0,
        tokenizer=("bpe", "endoftext", 40_478),
    ),
    sizes={"base": Size({}, 116_534_784)},  # "117M"
    adds_task_tokens=True,
    layout=Layout(
        model_type="openai-gpt",
        template=build_spec,
        entries=(
            *GPT_KEYS,
            Key("vocab_size", ("vocab",), 40478),
            Key("n_positions", ("decoder.position.rows",), 512, aliases=("max_position_embeddings",)),
            # NOTE: this class calls the tanh approximation "gelu".
            Key(
                "afn",
                ("decoder.blocks.*.feedforward.activation",),
                "gelu_tanh",
                {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
            ),
            Key("layer_norm_epsilon", ("decoder.blocks.*.norms.post.eps",), 1e-5),
            derive_hidden("decoder", "n_embd", "hidden_size", default=768),
        ),
        prefix="transformer.",
        supports_cache=False,
        classes=build_decoder_classes("OpenAIGPT", "LMHeadModel"),
        task_heads=define_score_head("OpenAIGPT"),
        skipped_tensors=(r".*\.attn\.bias", r".*position_ids"),
        rules=GPT_RULES,
        names={
            "decoder.{i}.attention_norm.post.{p}": "transformer.h.{i}.ln_1.{p}",
            "decoder.{i}.feedforward_norm.post.{p}": "transformer.h.{i}.ln_2.{p}",
            "tokens.weight": "transformer.tokens_embed.weight",
            "decoder.position.table.weight": "transformer.positions_embed.weight",
            "head.weight": "lm_head.weight",
        },
    ),
)
"""GPT: left-to-right decoder, post-norm (Radford et al., 2018)."""
