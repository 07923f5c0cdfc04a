"""BERT (Devlin et al., 2019): a bidirectional encoder, trained on masked tokens and next sentence prediction.

SpanBERT (Joshi et al., 2020) and TinyBERT (Jiao et al., 2020) share its layout.
"""

from functools import partial

from pretune.core import config
from pretune.models.families.shared import (
    ADAM,
    ENCODER_ACTIVATION,
    ENCODER_NAMES,
    LARGE_SETTINGS,
    NO_CHANGES,
    POOLER,
    Family,
    PaperDefaults,
    Size,
    build_encoder_keys,
)
from pretune.models.hf.config import ACTIVATIONS, Key, SpecChanges
from pretune.models.hf.weights import Layout, define_encoder_heads
from pretune.models.spec import Model, Special
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head, PairHead, Pooler, SpanHead, Transform
from pretune.nn.layers import Embed, FeedForward, LayerNorm
from pretune.nn.positions import LearnedEmbedding
from pretune.nn.stack import Stack

NORM = LayerNorm(eps=1e-12)


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 30522,
    hidden: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
    norm: LayerNorm = NORM,
    changes: SpecChanges = NO_CHANGES,
) -> Model:
    """Build a spec: learned positions, two segments, embedding norm, post-norm; MLM transform, pooler, NSP head.

    `changes` are the values at some paths that make it another family.
    """
    spec = Model(
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
    return config.replace(spec, changes) if changes else spec


bert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=POOLER,
    default="base",
    training=PaperDefaults(
        objective={"kind": "next_sentence"},
        lengths=(128, 512),
        batch_tokens=131_072,
        tokens=131e9,  # a million steps
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
            *build_encoder_keys(),
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
        task_heads=define_encoder_heads("Bert", {"dense": "bert.pooler.dense", "out": "classifier"}, POOLER),
        duplicates={"cls.predictions.bias": "cls.predictions.decoder.bias"},
        skipped_tensors=(r".*embeddings\.position_ids", r"fit_denses?\..*"),
        names={
            **{ours: f"bert.{theirs}" for ours, theirs in ENCODER_NAMES.items()},
            "head.transform.dense.{p}": "cls.predictions.transform.dense.{p}",
            "head.transform.norm.{p}": "cls.predictions.transform.LayerNorm.{p}",
            "head.weight": "cls.predictions.decoder.weight",
            "head.bias": "cls.predictions.bias",
            "pair.{p}": "cls.seq_relationship.{p}",
        },
    ),
)
"""BERT: bidirectional encoder, masked tokens and sentence pairs (Devlin et al., 2019)."""

spanbert = Family(
    build_spec=partial(
        build_spec,
        vocab=28996,
        # Positions in a span from 20 on share a vector; the released code does not predict these tokens.
        changes={"family": "spanbert", "pooler": None, "pair": None, "span": SpanHead(rows=20, norm=NORM)},
    ),
    shape="encoder",
    pooling=POOLER,
    default="base",
    training=PaperDefaults(
        objective={"kind": "span_masked", "boundary": {"kind": "boundary"}},
        batch_tokens=131_072,
        tokens=315e9,  # 2.4 million steps
        lr=1e-4,
        width=768,
        optimizer={**ADAM, "eps": 1e-8, "weight_decay": 0.1},
        tokenizer=("wordpiece", "cls-sep", 28_996),
    ),
    # Cased, of the body: the pooler of the released weights was not trained.
    sizes={
        "base": Size({}, 107_719_680, "body"),  # "110M"
        "large": Size(LARGE_SETTINGS, 332_529_664, "body"),  # "340M"
    },
    layout=bert.layout,
)
"""SpanBERT: BERT on single segments, masked spans and their boundaries (Joshi et al., 2020)."""

tinybert = Family(
    # As many heads as BERT-base, whatever the width, so that their attention compares.
    build_spec=partial(build_spec, width=312, depth=4, hidden=1200, changes={"family": "tinybert"}),
    shape="encoder",
    pooling=POOLER,
    default="4",
    training=PaperDefaults(  # general distillation: sequences of 128 tokens, otherwise as BERT
        objective={"kind": "next_sentence"},
        lengths=(128,),
        batch_tokens=32_768,
        tokens=10e9,  # three passes over Wikipedia
        lr=1e-4,
        width=768,
        tokenizer=("wordpiece", "cls-sep", 30_522),
        distillation={  # layers alone in the general stage
            "soft_weight": 0.0,
            "hard_weight": 0.0,
            "cosine_weight": 0.0,
            "state_weight": 1.0,
            "embedding_weight": 1.0,
            "attention_weight": 1.0,
        },
    ),
    sizes={
        "4": Size({}, 14_350_248, "body_with_pooler"),  # "14.5M", TinyBERT_General_4L_312D
        "6": Size({"width": 768, "depth": 6, "hidden": 3072}, 66_955_008, "body_with_pooler"),  # "67M"
    },
    layout=bert.layout,
)
"""TinyBERT: a narrow BERT, the student of layer-by-layer distillation (Jiao et al., 2020)."""
