"""SpanBERT (Joshi et al., 2020): BERT on single segments, trained on masked spans and their boundaries."""

from dataclasses import replace

from pretune.models.families.bert import bert
from pretune.models.families.bert import build_spec as build_bert_spec
from pretune.models.families.shared import ADAM, LARGE_SETTINGS, POOLER, Family, PaperDefaults, Size
from pretune.models.spec import Model
from pretune.nn.heads import SpanHead
from pretune.nn.layers import LayerNorm


def build_spec(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 28996,
    hidden: int | None = None,
    positions: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: BERT with a span boundary head, without pooler and pair head."""
    base = build_bert_spec(
        width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden, positions=positions, dropout=dropout
    )
    # Positions in a span from 20 on share a vector; the released code does not predict these tokens.
    span = SpanHead(rows=20, norm=LayerNorm(eps=1e-12))
    return replace(base, family="spanbert", pooler=None, pair=None, span=span)


spanbert = Family(
    build_spec=build_spec,
    shape="encoder",
    pooling=POOLER,
    default="base",
    training=PaperDefaults(
        objective={"kind": "span_masked", "boundary": {"kind": "boundary"}},
        batch_tokens=131_072,
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
