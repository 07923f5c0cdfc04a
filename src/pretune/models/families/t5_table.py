"""The shapes that T5's authors compared (Raffel et al., 2020, table 2), from the same blocks.

At L = 12 layers, an encoder-decoder of L + L layers has twice the parameters P of a language model of L layers but the
same compute M per token; sharing its halves or halving its depth brings it back to P.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pretune.models.families.t5 import LAYOUT, build_stack
from pretune.models.families.t5 import build_spec as t5
from pretune.models.family import Family, PaperDefaults, Size
from pretune.models.init import FanIn
from pretune.models.spec import Model, Special
from pretune.nn.heads import Head


def build_spec(
    *,
    shape: str = "enc-dec",
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 32128,
    hidden: int | None = None,
    dropout: float = 0.1,
) -> Model:
    """One of the five shapes; `depth` counts the layers of each stack."""
    make = SHAPES[shape]
    return make(width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden or 4 * width, dropout=dropout)


def _build_encoder_decoder(
    *, shared: bool = False, width: int, depth: int, heads: int, vocab: int, hidden: int, dropout: float
) -> Model:
    made = t5(width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden, dropout=dropout, family="t5-table")
    return replace(made, shared=shared)


def _build_decoder(
    *, both_ways: bool, width: int, depth: int, heads: int, vocab: int, hidden: int, dropout: float
) -> Model:
    return Model(
        family="t5-table",
        vocab=vocab,
        width=width,
        decoder=build_stack(
            width=width,
            depth=depth,
            heads=heads,
            hidden=hidden,
            gated=False,
            dropout=dropout,
            causal=True,
            both_ways=both_ways,
        ),
        head=Head(scale=width**-0.5),
        context=512,
        init=FanIn(),
        special=Special(pad=0, eos=(1,), start=0),
    )


SHAPES: dict[str, Callable[..., Model]] = {
    "enc-dec": _build_encoder_decoder,
    "enc-dec-shared": partial(_build_encoder_decoder, shared=True),
    "enc-dec-half": _build_encoder_decoder,
    "lm": partial(_build_decoder, both_ways=False),
    "prefix-lm": partial(_build_decoder, both_ways=True),  # sees its whole prefix, so keys lie on both sides of a query
}

t5_table = Family(
    build_spec=build_spec,
    shape="encoder-decoder or decoder",
    default="enc-dec",
    training=PaperDefaults(
        objective={"kind": "span_corruption"},
        batch_tokens=65_536,
        lr=0.01,
        optimizer={"kind": "adafactor"},
        schedule={"kind": "inverse_square_root", "hold": 10_000},
        tokenizer=("unigram", "sentinels", 32_100),
    ),
    sizes={
        "enc-dec": Size({}, 222_903_552),  # 2P, M
        "enc-dec-shared": Size({"shape": "enc-dec-shared"}, 137_950_464),  # P, M
        "enc-dec-half": Size({"shape": "enc-dec-half", "depth": 6}, 123_790_080),  # P, M / 2
        "lm": Size({"shape": "lm"}, 109_628_544),  # P, M
        "prefix-lm": Size({"shape": "prefix-lm"}, 109_628_544),  # P, M
    },
    layout=LAYOUT,  # what it cannot say (shared halves, language models) is saved in our own names only
)
"""T5's table of architectures: encoder-decoders, language model, prefix LM at matched cost (Raffel et al., 2020)."""
