"""Normalizers, pre-tokenizers and decoders of the library, by the names used in `pretune.text.styles`."""

from collections.abc import Callable, Mapping

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers.decoders import Decoder
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from pretune.text.styles import TokenizerKind, TokenizerStyle

_IDEOGRAPHS = "[一-鿿㐀-䶿豈-﫿\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"

NORMALISERS: Mapping[str, Callable[[], list[Normalizer]]] = {
    # Remove control and format characters except white space.
    "controls": lambda: [normalizers.Replace(Regex(r"[\p{Cc}\p{Cf}\p{Co}\x{fffd}&&[^\t\n\r]]"), "")],
    # SentencePiece's "nmt_nfkc" rules, from the parts that the library has.
    "compatible": lambda: [normalizers.Nmt(), normalizers.NFKC()],
    "spaces": lambda: [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False)],
    "quotes": lambda: [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')],
    # NOTE: not the library's StripAccents, which also removes the vowels of Indic scripts (Mc).
    "accents": lambda: [normalizers.NFD(), normalizers.Replace(Regex(r"\p{Mn}"), "")],
    "lowercase": lambda: [normalizers.Lowercase()],
}

SPLITTERS: Mapping[str, Callable[[], PreTokenizer]] = {
    "whitespace": pre_tokenizers.WhitespaceSplit,
    "punctuation": lambda: pre_tokenizers.Punctuation("isolated"),
    "ideographs": lambda: pre_tokenizers.Split(Regex(_IDEOGRAPHS), "isolated"),
    "bytes": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    # NOTE: not "first", which fails if the normalizer changes the first character. After a special token inside a text
    # a new word starts, with or without a space, as in the released vocabularies.
    "metaspace": lambda: pre_tokenizers.Metaspace(prepend_scheme="always"),
    "runs": lambda: pre_tokenizers.Split(Regex(r"\s*\S+|\s+"), "isolated"),
}

DECODERS: Mapping[str, Callable[[], Decoder]] = {
    # NOTE: no clean-up: the library's would turn "do not" into "don't".
    "continuation": lambda: decoders.WordPiece(cleanup=False),
    "bytes": decoders.ByteLevel,
    "metaspace": lambda: decoders.Replace("▁", " "),
    "opening": lambda: decoders.Strip(" ", 1, 0),  # the space before the first word
    "byte_tokens": decoders.ByteFallback,
    "fuse": decoders.Fuse,
}


def build_normaliser(kind: TokenizerKind, style: TokenizerStyle, lowercase: bool, accents: bool) -> Normalizer | None:
    """Build the normalizer, or None; `accents` keeps accents."""
    names = [*(["quotes"] if style.quotes and kind.normalise else []), *kind.normalise]
    extra = [*([] if accents else ["accents"]), *(["lowercase"] if lowercase else [])]
    # Spaces last: the other steps may leave some.
    position = names.index("spaces") if "spaces" in names else len(names)
    steps = [step for name in [*names[:position], *extra, *names[position:]] for step in NORMALISERS[name]()]
    return normalizers.Sequence(steps) if steps else None


def build_splitter(kind: TokenizerKind) -> PreTokenizer:
    """Build the pre-tokenizer; no piece crosses the words it returns."""
    parts = [SPLITTERS[name]() for name in kind.split]
    return parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)


def build_decoder(kind: TokenizerKind) -> Decoder | None:
    """Build the decoder; without one, tokens are joined by spaces."""
    parts = [DECODERS[name]() for name in kind.decode]
    return (parts[0] if len(parts) == 1 else decoders.Sequence(parts)) if parts else None
