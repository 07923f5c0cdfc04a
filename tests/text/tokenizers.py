"""Tokenizers for the tests: a small corpus that every Python has, and one of each kind and style trained on it."""

import functools
from pydoc_data.topics import topics

from pretune.text.styles import KINDS, STYLES, TokenizerStyle
from pretune.text.template import TEXT_A, TEXT_B, Layout, TokenTemplate
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

COMBINATIONS = [
    (kind, style)
    for kind, made in KINDS.items()
    for style, look in STYLES.items()
    if not made.unknown or "unk" in look.special_tokens.values()
]

TYPICAL = (
    ("wordpiece", "cls-sep"),
    ("bpe", "s-mask"),
    ("bpe", "endoftext"),
    ("unigram", "sentinels"),
    ("unigram", "cls-last"),
    ("characters", "plain"),
    ("words", "cls-sep-pieces"),
)
"""Every kind and every style at least once: the combinations of `make test`."""

NASTY = [
    "",
    " ",
    "   \n\t ",
    "Hello, world! It's 3.14 (or 1,000)…",
    "\r\n",
    "one\r\ntwo\rthree\n\nfour\n \nfive ",
    "\0",
    "a\0b\x07\x1b[31mred\x1b[0m\x7f\x85",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 1️⃣",
    "e\u0301 é n\u0303 \u0301alone \u0300",
    "العربية \u202eabc\u202c עברית",
    "中文字符和text混合。日本語 한국어 ไทย",
    "क्षि নমস্কার",
    "\u200b\ufeff\u00ad\u2060zero\u200dwidth",
    "\u00a0\u3000\u2028wide\u2003space\u202f",
    "İstanbul ſtraße ﬁne ½ Ⅷ Ω Å",
    "don't stop ``quoted'' ''",
    "▁the Ġthe ##ing <0x41> <0xE2>",
    "\U0010ffff\ue000\u0378\ufffd\ufffe",
    "[CLS] a [SEP] b [MASK]c <s>x</s> <mask>. <pad><unk>[UNK] <extra_id_0>, <extra_id_99> <|endoftext|>",
    "a" * 3000,
    "word " * 500,
]


@functools.cache
def corpus() -> tuple[str, ...]:
    """The topics of Python's help: some 100 kB of English and code."""
    return tuple(topics[name] for name in sorted(topics)[:24])


@functools.cache
def trained(kind: str, style: str | None = None, lowercase: bool = False) -> Tokenizer:
    """A small tokenizer."""
    return train(kind, corpus(), vocab=700, style=style, lowercase=lowercase)


def template_of(style: TokenizerStyle, ids: dict[str, int]) -> TokenTemplate:
    """The template of a style, parsed from its words."""

    def parse(layout: str) -> Layout:
        parts = [word.split(":") if word[-2:-1] == ":" else (word, "0") for word in layout.split()]
        texts = {"$A": TEXT_A, "$B": TEXT_B}
        return tuple((texts[name] if name in texts else ids[name], int(segment)) for name, segment in parts)

    return TokenTemplate(single=parse(style.single), pair=parse(style.pair))
