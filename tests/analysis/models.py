"""Tiny random models of every family with a tokenizer, and texts."""

from dataclasses import replace
from functools import cache

from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build
from pretune.nn.two_stream import AttentionStack
from pretune.runs.defaults import set_special_tokens
from tests.contracts.tiny import rough, tiny
from tests.inference import speakers

TEXTS = [
    "The old house, the old river.",
    "A cat!",
    "He said: the wind, the sea and the wind again took the boat away.",
    "no",
    "It was late; she sang a song, and the birds sang too.",
]
SHAPES = ("bert", "gpt2", "t5", "xlnet", "ulmfit")
"""A family of every shape: encoder, decoder, encoder-decoder, two streams, recurrent."""
STYLES = {"encoder": ("wordpiece", "cls-sep"), "decoder": ("bpe", "endoftext"), "encoder-decoder": ("bpe", "s-mask")}


@cache
def model_of(family: str) -> LanguageModel:
    """Never to be changed: all tests share it."""
    spec = tiny(family)
    style = STYLES.get(spec.shape, STYLES["encoder"])
    tokenizer = speakers.tokenizer(*style)
    if spec.characters is not None:
        raise ValueError(f"{family} reads characters")
    model = rough(build(set_special_tokens(replace(spec, vocab=tokenizer.vocab), tokenizer))).eval()
    model.assets.tokenizer, model.assets.files = tokenizer.raw, tokenizer.build_files()
    return model


def has_attention(family: str) -> bool:
    spec = tiny(family)
    return any(isinstance(stack, AttentionStack) for stack in spec.stacks)


FAMILY_NAMES = [name for name in FAMILIES if tiny(name).characters is None]
ATTENTIVE = [name for name in FAMILY_NAMES if has_attention(name)]
RECURRENT = [name for name in FAMILY_NAMES if not has_attention(name)]
