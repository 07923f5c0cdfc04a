"""Tiny models that read and write text: random weights, tokenizers of each kind."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.runs.defaults import set_special_tokens
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough
from tests.data.texts import stories

VOCAB = {"bpe": 320, "unigram": 460, "wordpiece": 400}
CHAT_TEMPLATE = (
    "{{ eos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.role[0] + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
SMALL: dict[str, dict[str, Any]] = {
    "gpt2-small": {"width": 32, "depth": 2, "heads": 4, "positions": 48},
    "llama-7b": {"width": 32, "depth": 2, "heads": 4, "hidden": 48},
    "bert-tiny": {"width": 32, "depth": 2, "heads": 4, "positions": 48},
    "roberta-base": {"width": 32, "depth": 2, "heads": 4, "positions": 48},
    "xlnet-base": {"width": 32, "depth": 2, "heads": 4},
    "t5-small": {"width": 32, "depth": 2, "heads": 4, "head_width": 8},
    "bart-base": {"width": 32, "depth": 2, "heads": 4, "positions": 48},
}


@cache
def tokenizer(kind: str, style: str) -> Tokenizer:
    """Trained on a few stories."""
    return train(kind, stories(40), vocab=VOCAB[kind], style=style)


@cache
def speaker(name: str, kind: str, style: str) -> LanguageModel:
    """A model with a tokenizer beside it; shared by all tests, so never to be changed."""
    words = tokenizer(kind, style)
    spec = set_special_tokens(resolve(name, {"vocab": words.vocab, **SMALL[name]}), words)
    model = rough(build(spec)).eval()
    model.assets.tokenizer, model.assets.files = words.raw, words.build_files()
    return model


def gpt() -> LanguageModel:
    return speaker("gpt2-small", "bpe", "endoftext")


def bert() -> LanguageModel:
    return speaker("bert-tiny", "wordpiece", "cls-sep")


def roberta() -> LanguageModel:
    return speaker("roberta-base", "bpe", "s-mask")


def t5() -> LanguageModel:
    return speaker("t5-small", "unigram", "sentinels")


def bart() -> LanguageModel:
    return speaker("bart-base", "bpe", "s-mask")


@cache
def chatter(name: str = "gpt2-small") -> LanguageModel:
    """A decoder with a chat template that is short; shared by all tests, so never to be changed."""
    model = copy.deepcopy(speaker(name, "bpe", "endoftext"))
    files = {**model.assets.files, "chat_template.jinja": CHAT_TEMPLATE.encode()}
    model.assets = replace(model.assets, files=files, tokenizer=tokenizer("bpe", "endoftext").raw)
    return model
