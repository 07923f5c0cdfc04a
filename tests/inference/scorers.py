"""Tiny random models of every shape with a tokenizer, and the slow, obviously right way to score with them.

One sequence at a time, the whole softmax in fp64, token by token in plain Python.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

import pretune as pt
from pretune.models.model import LanguageModel, build
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough, tiny
from tests.data.texts import stories

STYLE = {
    "bert": ("wordpiece", "cls-sep"),
    "roberta": ("bpe", "s-mask"),
    "xlnet": ("unigram", "cls-last"),
    "gpt2": ("bpe", "endoftext"),
    "llama": ("bpe", "s-mask"),  # its layout begins with <s>
    "gpt": ("words", "none"),
    "t5": ("unigram", "sentinels"),
    "bart": ("bpe", "s-mask"),
}
"""Tokenizers by family; one without any special token is made of words."""

VOCAB = {"bpe": 300, "unigram": 420, "wordpiece": 120, "words": 40}

TEXTS = [
    "The sea was quiet.",
    "Nobody knew",
    "Had the old house, who lived there before it was sold and left to the quiet, old and odd sea of nobody",
    "old",
    "A quiet, odd book!",
]
"""Of unequal lengths; the third is longer than the models with a table of positions."""


@cache
def tokenizer(kind: str, style: str) -> Tokenizer:
    """Trained on a few stories."""
    if style == "none":
        result = train(kind, stories(40), vocab=VOCAB[kind], style="plain")
        return Tokenizer(result.raw, {"unk_token": "<unk>"})  # files that name no other role
    return train(kind, stories(40), vocab=VOCAB[kind], style=style)


@cache
def scorer(family: str) -> LanguageModel:
    """A tiny model in fp64 with its tokenizer; shared by all tests, so never to be changed."""
    result = tokenizer(*STYLE[family])
    model = rough(build(replace(tiny(family), vocab=result.vocab))).double().eval()
    model.assets.tokenizer = result
    return model


def log_softmax(model: LanguageModel, tokens: Sequence[int], **kwargs: object) -> Tensor:
    """[n, vocab] of one sequence alone."""
    batch = pt.batch([list(tokens)], **kwargs) if "source" not in kwargs else pt.batch(target=[list(tokens)], **kwargs)  # type: ignore[arg-type]
    with torch.no_grad():
        logits = model(batch).logits
    assert logits is not None
    return batch.split(logits.double().log_softmax(-1))[0]


def ids(model: LanguageModel, text: str) -> list[int]:
    """The tokens of a text, without special ones."""
    return [int(i) for i in model.tokenizer.encode(text, literal=True, add_special_tokens=False)]


def causal(model: LanguageModel, text: str, lead: list[int]) -> list[float]:
    """From the left, one prefix at a time."""
    result, read = [], list(lead)
    for token in ids(model, text):
        if read:
            result.append(float(log_softmax(model, read)[-1, token]))
        read.append(token)
    return result


def words_of(model: LanguageModel, text: str) -> list[list[int]]:
    """The places of the tokens of each word."""
    starts = model.tokenizer.encode_batch([text], literal=True).word_start.tolist()
    result: list[list[int]] = []
    for place, start in enumerate(starts):
        if start or not result:
            result.append([])
        result[-1].append(place)
    return result


def masked(model: LanguageModel, text: str, *, rest: bool = True) -> list[float]:
    """One masked copy per token; with `rest` the later pieces of its word are masked too."""
    special, template, result = model.tokenizer.special, model.tokenizer.template, []
    tokens = ids(model, text)
    for word in words_of(model, text):
        for place in word:
            hidden = [other for other in word if other >= place] if rest else [place]
            shown = [special["mask"] if index in hidden else token for index, token in enumerate(tokens)]
            laid = template.apply(shown)
            index = int((~laid.is_special).argmax()) + place
            result.append(
                float(log_softmax(model, laid.ids.tolist(), segments=[laid.segments.tolist()])[index, tokens[place]])
            )
    return result
