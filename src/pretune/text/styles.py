"""What tokenizers can be made: the kinds (how text becomes pieces) and the styles (special tokens and layouts).

Both are data. A kind and a style are chosen apart, so a byte-level vocabulary with [CLS] and [MASK] is one of the
combinations; each kind names the style it mostly goes with. Styles are called by what they look like:

| style            | as in                        | one text         | two texts                  |
|------------------|------------------------------|------------------|----------------------------|
| `cls-sep`        | BERT, ELECTRA                | `[CLS] a [SEP]`  | `[CLS] a [SEP] b [SEP]`    |
| `cls-sep-pieces` | ALBERT                       | `[CLS] a [SEP]`  | `[CLS] a [SEP] b [SEP]`    |
| `s-mask`         | RoBERTa, BART                | `<s> a </s>`     | `<s> a </s> </s> b </s>`   |
| `endoftext`      | GPT-2                        | `a`              | `a b`                      |
| `sentinels`      | T5                           | `a </s>`         | `a </s> b </s>`            |
| `cls-last`       | XLNet                        | `a <sep> <cls>`  | `a <sep> b <sep> <cls>`    |
| `plain`          | ELMo, ULMFiT                 | `a`              | `a b`                      |

Layouts are written as words: a token, or `$A` and `$B` for the texts, with `:1` for a segment other than 0.
"""

from collections.abc import Mapping
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import UsageError, suggest


@spec
class SpecialToken:
    """One special token: how it is spelled, what it is for, and whether its id comes after all pieces."""

    text: str
    roles: tuple[str, ...] = ()
    last: bool = False
    strip: bool = False  # takes the space before it along, so that "a <mask>" is what the model predicts " b" for


@spec
class TokenizerStyle:
    """The special tokens of a vocabulary, and how they are laid around texts."""

    about: str
    marks: tuple[SpecialToken, ...]
    single: str
    pair: str
    sentinels: int = 0  # <extra_id_0> … at the very end, the first with the highest id
    padding: Literal["right", "left"] = "right"
    pad_segment: int = 0
    quotes: bool = False  # `` and '' become "


@spec
class TokenizerKind:
    """How text becomes pieces: the steps before the model, by their names in `pretune.text.tokenizer.pipeline`."""

    about: str
    style: str  # the one it mostly goes with
    normalise: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    bytes: bool = False  # a piece for every byte is in its vocabulary
    unknown: bool = False  # its model needs a token for text without pieces


KINDS: Mapping[str, TokenizerKind] = {
    "wordpiece": TokenizerKind(
        about="whole words and ##parts of them, joined by frequency; punctuation stands alone",
        style="cls-sep",
        normalise=("controls",),
        split=("whitespace", "punctuation", "ideographs"),
        decode=("continuation",),
        unknown=True,
    ),
    "bpe": TokenizerKind(
        about="byte pairs: every text has exact pieces, and nothing is normalised",
        style="endoftext",
        split=("bytes",),
        decode=("bytes",),
        bytes=True,
    ),
    "unigram": TokenizerKind(
        about="pieces with probabilities, the likeliest segmentation, spaces as ▁, rare characters as bytes",
        style="sentinels",
        normalise=("compatible", "spaces"),
        split=("metaspace",),
        decode=("metaspace", "byte_tokens", "fuse", "opening"),
        bytes=True,
        unknown=True,
    ),
    "characters": TokenizerKind(
        about="one token per character, rare ones as their UTF-8 bytes; nothing is normalised",
        style="plain",
        split=("runs",),
        decode=("byte_tokens", "fuse"),
        bytes=True,
    ),
    "words": TokenizerKind(
        about="whole words and single marks of punctuation",
        style="plain",
        normalise=("controls",),
        split=("whitespace", "punctuation", "ideographs"),
        unknown=True,
    ),
}

STYLES: Mapping[str, TokenizerStyle] = {
    "cls-sep": TokenizerStyle(
        about="[CLS] and [SEP] around texts, [MASK]; two segments",
        marks=(
            SpecialToken(text="[PAD]", roles=("pad",)),
            SpecialToken(text="[UNK]", roles=("unk",)),
            SpecialToken(text="[CLS]", roles=("cls",)),
            SpecialToken(text="[SEP]", roles=("sep",)),
            SpecialToken(text="[MASK]", roles=("mask",)),
        ),
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    ),
    "cls-sep-pieces": TokenizerStyle(
        about="[CLS] and [SEP] around texts, [MASK], <pad> and <unk>; two segments",
        marks=(
            SpecialToken(text="<pad>", roles=("pad",)),
            SpecialToken(text="<unk>", roles=("unk",)),
            SpecialToken(text="[CLS]", roles=("cls", "bos")),
            SpecialToken(text="[SEP]", roles=("sep", "eos")),
            SpecialToken(text="[MASK]", roles=("mask",), strip=True),
        ),
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        quotes=True,
    ),
    "s-mask": TokenizerStyle(
        about="<s> and </s> around texts, <mask>; one segment",
        marks=(
            SpecialToken(text="<s>", roles=("bos", "cls")),
            SpecialToken(text="<pad>", roles=("pad",)),
            SpecialToken(text="</s>", roles=("eos", "sep")),
            SpecialToken(text="<unk>", roles=("unk",)),
            SpecialToken(text="<mask>", roles=("mask",), last=True, strip=True),
        ),
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
    ),
    "endoftext": TokenizerStyle(
        about="<|endoftext|> between documents, nothing around texts",
        marks=(SpecialToken(text="<|endoftext|>", roles=("bos", "eos"), last=True),),
        single="$A",
        pair="$A $B",
    ),
    "sentinels": TokenizerStyle(
        about="</s> after texts, <extra_id_0> … <extra_id_99> for what was taken out",
        marks=(
            SpecialToken(text="<pad>", roles=("pad",)),
            SpecialToken(text="</s>", roles=("eos",)),
            SpecialToken(text="<unk>", roles=("unk",)),
        ),
        single="$A </s>",
        pair="$A </s> $B </s>",
        sentinels=100,
    ),
    "cls-last": TokenizerStyle(
        about="<sep> after texts and <cls> last of all, <mask>; three segments, padding to the left",
        marks=(
            SpecialToken(text="<unk>", roles=("unk",)),
            SpecialToken(text="<s>", roles=("bos",)),
            SpecialToken(text="</s>", roles=("eos",)),
            SpecialToken(text="<cls>", roles=("cls",)),
            SpecialToken(text="<sep>", roles=("sep",)),
            SpecialToken(text="<pad>", roles=("pad",)),
            SpecialToken(text="<mask>", roles=("mask",), strip=True),
            SpecialToken(text="<eod>"),
            SpecialToken(text="<eop>"),
        ),
        single="$A <sep> <cls>:2",
        pair="$A <sep> $B:1 <sep>:1 <cls>:2",
        padding="left",
        pad_segment=3,
        quotes=True,
    ),
    "plain": TokenizerStyle(
        about="<s> and </s> are there, but nothing is laid around texts",
        marks=(
            SpecialToken(text="<pad>", roles=("pad",)),
            SpecialToken(text="<unk>", roles=("unk",)),
            SpecialToken(text="<s>", roles=("bos",)),
            SpecialToken(text="</s>", roles=("eos",)),
        ),
        single="$A",
        pair="$A $B",
    ),
}

SENTINEL = "<extra_id_{}>"


def get_tokenizer_kind(name: str) -> TokenizerKind:
    """The kind of a name, or an error that lists them."""
    if name not in KINDS:
        raise UsageError(f"unknown kind of tokenizer '{name[:60]}'{suggest(name, KINDS)} (known: {', '.join(KINDS)})")
    return KINDS[name]


def get_tokenizer_style(name: str) -> TokenizerStyle:
    """The style of a name, or an error that lists them."""
    if name not in STYLES:
        raise UsageError(f"unknown tokenizer style '{name[:60]}'{suggest(name, STYLES)} (known: {', '.join(STYLES)})")
    return STYLES[name]
