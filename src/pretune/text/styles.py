"""Tokenizer kinds (text to pieces) and styles (special tokens and templates), as data.

Kind and style are independent, so a byte-level vocabulary with [CLS] and [MASK] is possible; each kind has a default
style. Styles are named after their special tokens:

| style            | as in                        | one text         | two texts                  |
|------------------|------------------------------|------------------|----------------------------|
| `cls-sep`        | BERT, ELECTRA                | `[CLS] a [SEP]`  | `[CLS] a [SEP] b [SEP]`    |
| `cls-sep-pieces` | ALBERT                       | `[CLS] a [SEP]`  | `[CLS] a [SEP] b [SEP]`    |
| `s-mask`         | RoBERTa, BART                | `<s> a </s>`     | `<s> a </s> </s> b </s>`   |
| `endoftext`      | GPT-2                        | `a`              | `a b`                      |
| `sentinels`      | T5                           | `a </s>`         | `a </s> b </s>`            |
| `cls-last`       | XLNet                        | `a <sep> <cls>`  | `a <sep> b <sep> <cls>`    |
| `plain`          | ELMo, ULMFiT                 | `a`              | `a b`                      |

Templates are written as words: a token, or `$A` and `$B` for the texts, with `:1` for a segment other than 0.
"""

from collections.abc import Mapping
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import UsageError, suggest


@spec
class TokenizerStyle:
    """Special tokens of a vocabulary, and their template around texts."""

    about: str
    special_tokens: Mapping[str, str]  # roles by spelling, in the order of the ids
    single: str
    pair: str
    last_token: str = ""  # the special token whose id comes after all pieces
    strips_mask: bool = False  # the mask absorbs the preceding space, so that "a <mask>" stands for "a b"
    sentinels: int = 0  # <extra_id_0> … at the very end, the first with the highest id
    padding: Literal["right", "left"] = "right"
    pad_segment: int = 0
    quotes: bool = False  # normalize `` and '' to "


@spec
class TokenizerKind:
    """Pipeline from text to pieces, by the names of steps in `pretune.text.tokenizer.training`."""

    about: str
    style: str  # default style
    normalise: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    bytes: bool = False  # has a piece for every byte
    unknown: bool = False  # needs an unknown token


KINDS: Mapping[str, TokenizerKind] = {
    "wordpiece": TokenizerKind(
        about="words and ##pieces merged by frequency; punctuation is separate",
        style="cls-sep",
        normalise=("controls",),
        split=("whitespace", "punctuation", "ideographs"),
        decode=("continuation",),
        unknown=True,
    ),
    "bpe": TokenizerKind(
        about="byte-level BPE: lossless, no normalization",
        style="endoftext",
        split=("bytes",),
        decode=("bytes",),
        bytes=True,
    ),
    "unigram": TokenizerKind(
        about="unigram language model, spaces as ▁, rare characters as bytes",
        style="sentinels",
        normalise=("compatible", "spaces"),
        split=("metaspace",),
        decode=("metaspace", "byte_tokens", "fuse", "opening"),
        bytes=True,
        unknown=True,
    ),
    "characters": TokenizerKind(
        about="one token per character, rare ones as UTF-8 bytes; no normalization",
        style="plain",
        split=("runs",),
        decode=("byte_tokens", "fuse"),
        bytes=True,
    ),
    "words": TokenizerKind(
        about="words and punctuation characters",
        style="plain",
        normalise=("controls",),
        split=("whitespace", "punctuation", "ideographs"),
        unknown=True,
    ),
    "whitespace": TokenizerKind(
        about="words between white space, for text that is tokenized already",
        style="plain",
        normalise=("controls",),
        split=("whitespace",),
        unknown=True,
    ),
}

STYLES: Mapping[str, TokenizerStyle] = {
    "cls-sep": TokenizerStyle(
        about="[CLS] and [SEP] around texts, [MASK]; two segments",
        special_tokens={"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "cls", "[SEP]": "sep", "[MASK]": "mask"},
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    ),
    "cls-sep-pieces": TokenizerStyle(
        about="[CLS] and [SEP] around texts, [MASK], <pad> and <unk>; two segments",
        special_tokens={"<pad>": "pad", "<unk>": "unk", "[CLS]": "cls bos", "[SEP]": "sep eos", "[MASK]": "mask"},
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        strips_mask=True,
        quotes=True,
    ),
    "s-mask": TokenizerStyle(
        about="<s> and </s> around texts, <mask>; one segment",
        special_tokens={"<s>": "bos cls", "<pad>": "pad", "</s>": "eos sep", "<unk>": "unk", "<mask>": "mask"},
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        last_token="<mask>",
        strips_mask=True,
    ),
    "endoftext": TokenizerStyle(
        about="<|endoftext|> between documents, nothing around texts",
        special_tokens={"<|endoftext|>": "bos eos"},
        single="$A",
        pair="$A $B",
        last_token="<|endoftext|>",
    ),
    "sentinels": TokenizerStyle(
        about="</s> after texts, <extra_id_0> … <extra_id_99> for masked spans",
        special_tokens={"<pad>": "pad", "</s>": "eos", "<unk>": "unk"},
        single="$A </s>",
        pair="$A </s> $B </s>",
        sentinels=100,
    ),
    "cls-last": TokenizerStyle(
        about="<sep> after texts and <cls> at the end, <mask>; three segments, padding to the left",
        special_tokens={
            "<unk>": "unk",
            "<s>": "bos",
            "</s>": "eos",
            "<cls>": "cls",
            "<sep>": "sep",
            "<pad>": "pad",
            "<mask>": "mask",
            "<eod>": "",
            "<eop>": "",
        },
        single="$A <sep> <cls>:2",
        pair="$A <sep> $B:1 <sep>:1 <cls>:2",
        strips_mask=True,
        padding="left",
        pad_segment=3,
        quotes=True,
    ),
    "plain": TokenizerStyle(
        about="nothing around texts; <s> and </s> are available",
        special_tokens={"<pad>": "pad", "<unk>": "unk", "<s>": "bos", "</s>": "eos"},
        single="$A",
        pair="$A $B",
    ),
}

SENTINEL = "<extra_id_{}>"


def get_tokenizer_kind(name: str) -> TokenizerKind:
    """Return the kind with a name; raise a UsageError that lists all."""
    if name not in KINDS:
        raise UsageError(f"unknown tokenizer kind '{name[:60]}'{suggest(name, KINDS)} (allowed: {', '.join(KINDS)})")
    return KINDS[name]


def get_tokenizer_style(name: str) -> TokenizerStyle:
    """Return the style with a name; raise a UsageError that lists all."""
    if name not in STYLES:
        raise UsageError(f"unknown tokenizer style '{name[:60]}'{suggest(name, STYLES)} (allowed: {', '.join(STYLES)})")
    return STYLES[name]
