"""The architectures compared by Raffel et al. (2020, table 2), built from T5 blocks.

At L = 12 layers, an encoder-decoder of L + L layers has twice the parameters P of a language model of L layers but the
same compute M per token; sharing its halves or halving its depth brings it back to P.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pretune.models.families.shared import Family, Size
from pretune.models.families.t5 import build_spec as build_t5_spec
from pretune.models.families.t5 import t5
from pretune.models.spec import Model
from pretune.nn.positions import RelativeBias
from pretune.nn.stack import Stack


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
    """Build one of the five architectures; `depth` is the number of layers of each stack."""
    return SHAPES[shape](
        width=width, depth=depth, heads=heads, vocab=vocab, hidden=hidden or 4 * width, dropout=dropout
    )


def _build_encoder_decoder(*, is_shared: bool = False, **settings: Any) -> Model:
    return replace(build_t5_spec(**settings, family="t5-table"), shared=is_shared)


def _build_decoder(*, both_ways: bool, **settings: Any) -> Model:
    base = build_t5_spec(**settings, family="t5-table")
    assert isinstance(base.decoder, Stack)
    block = replace(base.decoder.blocks[0], cross=None)
    decoder = replace(base.decoder, position=RelativeBias(both_ways=both_ways), blocks=(block,))
    return replace(base, encoder=None, decoder=decoder)


SHAPES: dict[str, Callable[..., Model]] = {
    "enc-dec": _build_encoder_decoder,
    "enc-dec-shared": partial(_build_encoder_decoder, is_shared=True),
    "enc-dec-half": _build_encoder_decoder,
    "lm": partial(_build_decoder, both_ways=False),
    "prefix-lm": partial(_build_decoder, both_ways=True),  # the prefix is bidirectional: keys on both sides of a query
}

t5_table = Family(
    build_spec=build_spec,
    shape="encoder-decoder or decoder",
    default="enc-dec",
    training=t5.training,
    tuning=t5.tuning,
    sizes={
        "enc-dec": Size({}, 222_903_552),  # 2P, M
        "enc-dec-shared": Size({"shape": "enc-dec-shared"}, 137_950_464),  # P, M
        "enc-dec-half": Size({"shape": "enc-dec-half", "depth": 6}, 123_790_080),  # P, M / 2
        "lm": Size({"shape": "lm"}, 109_628_544),  # P, M
        "prefix-lm": Size({"shape": "prefix-lm"}, 109_628_544),  # P, M
    },
    layout=t5.layout,  # shared stacks and language models are saved in the native format
)
"""T5's architectures: encoder-decoders, language model, prefix LM at matched cost (Raffel et al., 2020)."""
