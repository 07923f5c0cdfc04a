"""TinyBERT (Jiao et al., 2020): a narrow BERT, the student of layer-by-layer distillation."""

from dataclasses import replace

from pretune.models.families.bert import bert
from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import POOLER, Family, PaperDefaults, Size
from pretune.models.spec import Model


def build_spec(
    *,
    width: int = 312,
    depth: int = 4,
    heads: int = 12,
    vocab: int = 30522,
    hidden: int = 1200,
    positions: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: BERT with as many heads as BERT-base, whatever its width, so that their attention compares."""
    base = build_bert_spec(
        width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden, positions=positions, dropout=dropout
    )
    return replace(base, family="tinybert")


tinybert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=POOLER,
    default="4",
    training=PaperDefaults(  # general distillation: sequences of 128 tokens, otherwise as BERT
        objective={"kind": "next_sentence"},
        lengths=(128,),
        batch_tokens=32_768,
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
