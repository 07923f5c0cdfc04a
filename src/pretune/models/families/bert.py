"""BERT (Devlin et al., 2019): a bidirectional encoder, trained on masked tokens and next sentence prediction."""

from pretune.models.families.shared import (
    ENCODER_ACTIVATION,
    ENCODER_KEYS,
    ENCODER_NAMES,
    LARGE_SETTINGS,
    POOLER,
    Family,
    PaperDefaults,
    Size,
)
from pretune.models.hf.config import ACTIVATIONS, Key
from pretune.models.hf.weights import Layout, define_head, define_token_heads, make_rules
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head, PairHead, Pooler, Transform
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import LearnedEmbedding
from pretune.nn.stack import Stack


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
    """Build a spec: learned positions, two segments, embedding norm, post-norm; MLM transform, pooler, NSP head."""
    norm = LayerNorm(eps=1e-12)
    return Model(
        family="bert",
        vocab=vocab,
        width=width,
        encoder=Stack(
            depth=depth,
            embed=Embed(segments=2, norm=norm, dropout=dropout),
            position=LearnedEmbedding(rows=positions),
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


POOLER_NAMES = {"dense": "bert.pooler.dense", "out": "classifier"}

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
    # Turc et al. (2019) released the sizes below base. Counts are of the body with the pooler.
    sizes={
        "tiny": Size({"width": 128, "depth": 2, "heads": 2}, 4_385_920, "body_with_pooler"),
        "mini": Size({"width": 256, "depth": 4, "heads": 4}, 11_170_560, "body_with_pooler"),
        "small": Size({"width": 512, "depth": 4, "heads": 8}, 28_763_648, "body_with_pooler"),
        "medium": Size({"width": 512, "depth": 8, "heads": 8}, 41_373_184, "body_with_pooler"),
        "base": Size({}, 109_482_240, "body_with_pooler"),  # "110M"
        "large": Size(LARGE_SETTINGS, 335_141_888, "body_with_pooler"),  # "340M"
        "multilingual": Size(  # mBERT, cased; languages are sampled with the released exponent
            {"vocab": 119547}, 177_853_440, "body_with_pooler", {"mixing": {"kind": "smoothed", "alpha": 0.7}}
        ),
    },
    layout=Layout(
        model_type="bert",
        template=build_spec,
        entries=(
            *ENCODER_KEYS,
            Key("vocab_size", ("vocab",), 30522),
            Key("hidden_act", (ENCODER_ACTIVATION, "head.transform.activation"), "gelu", ACTIVATIONS),
        ),
        # TinyBERT's releases also have these keys, which mean nothing here, and projections to the teacher's width.
        ignored_keys=frozenset({"emb_size", "pre_trained", "training"}),
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
        skipped_tensors=(r".*embeddings\.position_ids", r"fit_denses?\..*"),
        rules=(
            *make_rules({ours: f"bert.{theirs}" for ours, theirs in ENCODER_NAMES.items()}),
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
"""BERT: bidirectional encoder, masked tokens and sentence pairs (Devlin et al., 2019)."""
