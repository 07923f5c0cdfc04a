"""BERT (Devlin et al., 2019): a bidirectional encoder trained to fill masked words and to judge sentence pairs."""

from pretune.models.family import Family, PaperDefaults, Size
from pretune.models.hf.config import FixedKey, Key, Layout
from pretune.models.hf.heads import define_head, define_token_heads
from pretune.models.hf.weights import make_rules
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.embeddings import Embed
from pretune.nn.feedforward import FeedForward
from pretune.nn.heads import Head, PairHead, Pooler, Transform
from pretune.nn.norm import LayerNorm
from pretune.nn.pooling import Reading
from pretune.nn.positions import Learned
from pretune.nn.stack import Stack

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 30522,
    hidden: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Learned positions, two segments, an embedding norm, post-norm blocks; MLM transform, pooler and NSP head."""
    norm = LayerNorm(eps=1e-12)
    return Model(
        family="bert",
        vocab=vocab,
        width=width,
        encoder=Stack(
            depth=depth,
            embed=Embed(segments=2, norm=norm, dropout=dropout),
            position=Learned(rows=positions),
            blocks=(
                Block(
                    attention=Attention(heads=heads, dropout=dropout),
                    feedforward=FeedForward(hidden=hidden or 4 * width),
                    norms=Norms(post=norm),
                    dropout=dropout,
                ),
            ),
        ),
        head=Head(bias="learned", transform=Transform(activation="gelu", norm=norm)),
        pooler=Pooler(),
        pair=PairHead(),
        special=Special(pad=0),
    )


ACTIVATION = "encoder.blocks.*.feedforward.activation"
ENCODER_KEYS = (
    Key("hidden_size", ("width",), 768),
    Key("num_hidden_layers", ("encoder.depth",), 12),
    Key("num_attention_heads", ("encoder.blocks.*.attention.heads",), 12),
    Key("intermediate_size", ("encoder.blocks.*.feedforward.hidden",), 3072),
    Key("hidden_dropout_prob", ("encoder.embed.dropout", "encoder.blocks.*.dropout"), 0.1),
    Key("attention_probs_dropout_prob", ("encoder.blocks.*.attention.dropout",), 0.1),
    Key("max_position_embeddings", ("encoder.position.rows",), 512),
    Key("type_vocab_size", ("encoder.embed.segments",), 2),
    Key("initializer_range", ("init.std",), 0.02),
    Key(
        "layer_norm_eps",
        ("encoder.embed.norm.eps", "encoder.blocks.*.norms.post.eps", "head.transform.norm.eps"),
        1e-12,
    ),
    FixedKey("position_embedding_type", ("absolute",)),
    FixedKey("is_decoder", (False,)),
    FixedKey("add_cross_attention", (False,)),
)
LAYER = {
    "encoder.{i}.attention.q.{p}": "encoder.layer.{i}.attention.self.query.{p}",
    "encoder.{i}.attention.k.{p}": "encoder.layer.{i}.attention.self.key.{p}",
    "encoder.{i}.attention.v.{p}": "encoder.layer.{i}.attention.self.value.{p}",
    "encoder.{i}.attention.out.{p}": "encoder.layer.{i}.attention.output.dense.{p}",
    "encoder.{i}.attention_norm.post.{p}": "encoder.layer.{i}.attention.output.LayerNorm.{p}",
    "encoder.{i}.feedforward.up.{p}": "encoder.layer.{i}.intermediate.dense.{p}",
    "encoder.{i}.feedforward.down.{p}": "encoder.layer.{i}.output.dense.{p}",
    "encoder.{i}.feedforward_norm.post.{p}": "encoder.layer.{i}.output.LayerNorm.{p}",
    "tokens.weight": "embeddings.word_embeddings.weight",
    "encoder.position.table.weight": "embeddings.position_embeddings.weight",
    "encoder.embed.segments.weight": "embeddings.token_type_embeddings.weight",
    "encoder.embed.norm.{p}": "embeddings.LayerNorm.{p}",
    "pooler.dense.{p}": "pooler.dense.{p}",
}

POOLER_NAMES = {"dense": "bert.pooler.dense", "out": "classifier"}
POOLER = Reading(at="first", layer="pooler")
"""[CLS] through the pooler (section 3.2 of the paper)."""

bert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=POOLER,
    default="base",
    training=PaperDefaults(
        objective={"kind": "next_sentence"},
        lengths=(128, 512),
        batch_tokens=131_072,
        lr=1e-4,
        width=768,
        tokenizer=("wordpiece", "cls-sep", 30_522),
    ),
    # Turc et al. (2019) released the small ones; all counts are of the body with the pooler.
    sizes={
        "tiny": Size({"width": 128, "depth": 2, "heads": 2}, 4_385_920, "body_with_pooler"),
        "mini": Size({"width": 256, "depth": 4, "heads": 4}, 11_170_560, "body_with_pooler"),
        "small": Size({"width": 512, "depth": 4, "heads": 8}, 28_763_648, "body_with_pooler"),
        "medium": Size({"width": 512, "depth": 8, "heads": 8}, 41_373_184, "body_with_pooler"),
        "base": Size({}, 109_482_240, "body_with_pooler"),  # "110M"
        "large": Size({"width": 1024, "depth": 24, "heads": 16}, 335_141_888, "body_with_pooler"),  # "340M"
        "multilingual": Size(  # mBERT, cased; its languages are mixed by the exponent that its release states
            {"vocab": 119547}, 177_853_440, "body_with_pooler", {"mixing": {"kind": "smoothed", "alpha": 0.7}}
        ),
    },
    layout=Layout(
        model_type="bert",
        template=build_spec,
        entries=(
            *ENCODER_KEYS,
            Key("vocab_size", ("vocab",), 30522),
            Key("hidden_act", (ACTIVATION, "head.transform.activation"), "gelu", ACTIVATIONS),
        ),
        prefix="bert.",
        classes={
            "BertForPreTraining": frozenset({"head", "pooler", "pair"}),
            "BertForMaskedLM": frozenset({"head"}),
            "BertForNextSentencePrediction": frozenset({"pooler", "pair"}),
            "BertModel": frozenset({"pooler"}),
        },
        task_heads={
            "BertForSequenceClassification": define_head("classification", POOLER_NAMES, POOLER),
            "BertForMultipleChoice": define_head("choice", POOLER_NAMES, POOLER),
            **define_token_heads("Bert"),
        },
        presence_keys={
            "pooler": "bert.pooler.dense.weight",
            "pair": "cls.seq_relationship.weight",
            "head": "cls.predictions.bias",
        },
        head="cls.predictions.decoder.weight",
        duplicates={"cls.predictions.bias": "cls.predictions.decoder.bias"},
        skipped_tensors=(r".*embeddings\.position_ids",),
        rules=(
            *make_rules({ours: f"bert.{theirs}" for ours, theirs in LAYER.items()}),
            *make_rules(
                {
                    "head.transform.dense.{p}": "cls.predictions.transform.dense.{p}",
                    "head.transform.norm.{p}": "cls.predictions.transform.LayerNorm.{p}",
                    "head.weight": "cls.predictions.decoder.weight",
                    "head.bias": "cls.predictions.bias",
                    "pair.{p}": "cls.seq_relationship.{p}",
                }
            ),
        ),
    ),
)
"""BERT: bidirectional encoder, masked words and sentence pairs (Devlin et al., 2019)."""
