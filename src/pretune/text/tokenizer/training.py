"""Tokenizer training in bounded memory, byte-identical for the same corpus.

    tokenizer = train("wordpiece", texts, vocab=8192, lowercase=True)
    tokenizer.save("tokenizers/small")

At most `sample_bytes` of text are kept, sampled from the corpus by `seed`, plus the distinct words of that sample. BPE
and WordPiece use the library's trainers; unigram uses our own (`unigram` explains why).
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Raw
from tokenizers.decoders import Decoder
from tokenizers.models import Model
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.trainers import Trainer

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import open_corpus
from pretune.text.corpora.document import DocumentBoundary
from pretune.text.corpora.streams import Errors
from pretune.text.styles import SENTINEL, TokenizerKind, TokenizerStyle, get_tokenizer_kind, get_tokenizer_style
from pretune.text.tokenizer import sample, unigram
from pretune.text.tokenizer.sample import TextSample
from pretune.text.tokenizer.tokenizer import MAX_VOCAB, Tokenizer

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


def build_normaliser(kind: TokenizerKind, style: TokenizerStyle, config: "TokenizerConfig") -> Normalizer | None:
    """Build the normalizer, or None."""
    names = [*(["quotes"] if style.quotes and kind.normalise else []), *kind.normalise]
    strips_accents = config.lowercase and bool(kind.normalise) if config.strip_accents is None else config.strip_accents
    extra = [*["accents"] * strips_accents, *["lowercase"] * config.lowercase]
    # Spaces last: the other steps may leave some.
    position = names.index("spaces") if "spaces" in names else len(names)
    steps = [step for name in [*names[:position], *extra, *names[position:]] for step in NORMALISERS[name]()]
    if kind.split == ("whitespace",):  # a word of a text that spells a special token would be that token
        words = [*style.special_tokens, *(SENTINEL.format(number) for number in range(style.sentinels))]
        unknown = next(token for token, roles in style.special_tokens.items() if roles == "unk")
        steps.append(normalizers.Replace(Regex(rf"(?<!\S)({'|'.join(map(re.escape, words))})(?!\S)"), unknown))
    return normalizers.Sequence(steps) if steps else None


def build_splitter(kind: TokenizerKind) -> PreTokenizer:
    """Build the pre-tokenizer; no piece crosses the words it returns."""
    parts = [SPLITTERS[name]() for name in kind.split]
    return parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)


def build_decoder(kind: TokenizerKind) -> Decoder | None:
    """Build the decoder; without one, tokens are joined by spaces."""
    parts = [DECODERS[name]() for name in kind.decode]
    return (parts[0] if len(parts) == 1 else decoders.Sequence(parts)) if parts else None


_PART_BYTES = 2**24
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
"""Spellings of bytes, for characters without a piece."""
_UNLIKELY_SCORE = -1000.0
"""Score of special tokens and bytes in a unigram model: any other segmentation of a text is likelier."""


class TokenizerTrainingOptions(TypedDict, total=False):
    """Options of a tokenizer besides its kind and size."""

    style: str | None
    lowercase: bool
    strip_accents: bool | None
    min_frequency: int
    alphabet: int | None
    sample_bytes: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """Settings of a tokenizer to train.

    `strip_accents` follows `lowercase` by default for the kinds that normalize. `alphabet` is the number of characters
    with a piece; by default they cover 99.99 % of the text, with at most half of the vocabulary. Words, and pairs to be
    merged, need `min_frequency` occurrences.
    """

    kind: str
    vocab: int
    style: str | None = None
    lowercase: bool = False
    strip_accents: bool | None = None
    min_frequency: int = 2
    alphabet: int | None = None
    sample_bytes: int = 200_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        kind, style = self.get_tables()
        if kind.unknown and "unk" not in style.special_tokens.values():
            raise UsageError(f"style '{self.style}' has no unknown token, which the kind '{self.kind}' needs")
        reserved_tokens = len(style.special_tokens) + style.sentinels
        letters = len(_list_required_letters(style.special_tokens)) if self.kind == "unigram" else 0
        min_vocab = reserved_tokens + (len(BYTE_TOKENS) + letters if kind.bytes else 2)
        if not min_vocab <= self.vocab <= MAX_VOCAB:
            parts = f"{reserved_tokens} special tokens" + (f", {len(BYTE_TOKENS)} bytes" * kind.bytes)
            parts += f", {letters} letters to spell them" * bool(letters)
            raise UsageError(f"vocab must be from {min_vocab} ({parts}) to {MAX_VOCAB}, got {self.vocab}")
        for name in ("min_frequency", "sample_bytes", "alphabet"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} must be >= 1, got {value}")

    def get_tables(self) -> tuple[TokenizerKind, TokenizerStyle]:
        """Return the kind and the style."""
        kind = get_tokenizer_kind(self.kind)
        return kind, get_tokenizer_style(self.style or kind.style)


class _TrainingInputs(NamedTuple):
    """Inputs of a trainer: the sample, the library's tokenizer without a model, and the vocabulary size."""

    config: TokenizerConfig
    sample: TextSample
    raw: Raw
    leading_tokens: list[str]  # special tokens with the first ids
    unk_token: str  # "" if there is none
    size: int  # number of pieces, including the leading tokens


def train(
    kind: str,
    texts: Iterable[str],
    *,
    vocab: int,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[TokenizerTrainingOptions],
) -> Tokenizer:
    """Train a tokenizer on texts; `progress` is called with the number of bytes read. Options: see `TokenizerConfig`.

    A small corpus may give fewer than `vocab` tokens.
    """
    config = TokenizerConfig(kind=kind, vocab=vocab, **options)
    tokenizer_kind, style = config.get_tables()
    sample = TextSample(texts, config.sample_bytes, config.seed, progress)
    if not sample.sample_bytes:
        raise DataError(
            "cannot train a tokenizer: the corpus has no text" + (" that fits the sample" * bool(sample.total_bytes))
        )
    raw = Raw(models.WordLevel({}, unk_token=""))
    raw.normalizer = build_normaliser(tokenizer_kind, style, config)
    raw.pre_tokenizer = build_splitter(tokenizer_kind)
    leading_tokens = [token for token in style.special_tokens if token != style.last_token]
    trailing_count = len(style.special_tokens) - len(leading_tokens) + style.sentinels
    unknown = next((token for token, roles in style.special_tokens.items() if roles == "unk"), "")
    raw.model = _TRAINERS[kind](_TrainingInputs(config, sample, raw, leading_tokens, unknown, vocab - trailing_count))
    raw.decoder = build_decoder(tokenizer_kind)
    return Tokenizer(raw, _add_special_tokens(raw, style))


def train_tokenizer(
    kind: str,
    inputs: str | Path | Sequence[str | Path],
    *,
    vocab: int,
    by: DocumentBoundary = "auto",
    field: str | None = None,
    errors: Errors = "strict",
    progress: Callable[[float, int], None] | None = None,
    **options: Unpack[TokenizerTrainingOptions],
) -> Tokenizer:
    """Train a tokenizer on a corpus: files, folders, globs or built-in names, as `open_corpus` takes them.

        tokenizer = pt.train_tokenizer("wordpiece", ["books/"], vocab=8192, lowercase=True)

    Kinds: wordpiece, bpe (byte-level), unigram, characters, words, whitespace. Options: style, lowercase,
    strip_accents, min_frequency, alphabet, sample_bytes, seed (see `TokenizerConfig`). `progress` is called with the
    share of the corpus and the bytes of text read.
    """
    TokenizerConfig(kind=kind, vocab=vocab, **options)  # validates the options before reading anything
    names = [os.fspath(name) for name in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    parts = open_corpus(names, by=by, field=field, errors=errors).plan_parts(_PART_BYTES)
    parts_done = 0

    def iter_texts() -> Iterator[str]:
        nonlocal parts_done
        for part in parts:
            yield from (text for document in part.read_documents() for text in document.sides)
            parts_done += 1

    def report(read: int) -> None:
        if progress is not None:
            progress(parts_done / max(len(parts), 1), read)

    return train(kind, iter_texts(), vocab=vocab, progress=report, **options)


def _add_special_tokens(raw: Raw, style: TokenizerStyle) -> dict[str, str | int]:
    """Add the special tokens and the template to a tokenizer, and return the entries of its config files."""
    order = sorted(style.special_tokens, key=lambda token: token == style.last_token)
    masks = {token for token, role in style.special_tokens.items() if role == "mask" and style.strips_mask}
    special_tokens = [AddedToken(token, lstrip=token in masks, normalized=False, special=True) for token in order]
    names = [SENTINEL.format(i) for i in reversed(range(style.sentinels))]  # the first sentinel has the highest id
    raw.add_special_tokens([*special_tokens, *(AddedToken(name, normalized=False, special=True) for name in names)])
    words = f"{style.single} {style.pair}".replace(":", " ").split()
    ids = [(token, raw.token_to_id(token)) for token in style.special_tokens if token in words]
    # NOTE: set even if it adds nothing: transformers would otherwise set another one.
    raw.post_processor = processors.TemplateProcessing(single=style.single, pair=style.pair, special_tokens=ids)
    tokens = {f"{role}_token": token for token, roles in style.special_tokens.items() for role in roles.split()}
    return {**tokens, "padding_side": style.padding, "pad_token_type_id": style.pad_segment}


def _train_wordpiece(inputs: _TrainingInputs) -> Model:
    """Train WordPiece: merge pairs by frequency as in BPE, with ## before all but the first piece of a word."""
    counts = sample.count_words(inputs.sample, inputs.raw)
    inner = {letter for word in counts for letter in word[1:]}
    prices = dict.fromkeys(inner, 2)
    room = inputs.size - len(inputs.leading_tokens)
    size = inputs.config.alphabet
    letters = sorted(sample.choose_alphabet(counts, (room + 1) // 2 if size is None else room, size, prices))
    # NOTE: the trainer numbers the pieces with ## in the order of a hash table, which differs from run to run and
    # breaks ties between equally frequent pairs. As special tokens they have fixed ids.
    character_pieces = [*letters, *(f"##{letter}" for letter in letters if letter in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=inputs.size,
        min_frequency=inputs.config.min_frequency,
        special_tokens=[*inputs.leading_tokens, *character_pieces],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    draft = _run_trainer(inputs, models.WordPiece(unk_token=inputs.unk_token), trainer)
    return models.WordPiece(draft.get_vocab(), unk_token=inputs.unk_token)


def _train_bpe(inputs: _TrainingInputs) -> Model:
    """Train byte-level BPE (Sennrich et al., 2016; Radford et al., 2019)."""
    trainer = trainers.BpeTrainer(
        vocab_size=inputs.size,
        min_frequency=inputs.config.min_frequency,
        special_tokens=inputs.leading_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model: Model = _run_trainer(inputs, models.BPE(), trainer).model
    return model


def _run_trainer(inputs: _TrainingInputs, model: Model, trainer: Trainer) -> Raw:
    """Return a tokenizer whose model one of the library's trainers made."""
    draft = Raw(model)
    draft.normalizer, draft.pre_tokenizer = inputs.raw.normalizer, inputs.raw.pre_tokenizer
    draft.train_from_iterator(iter(inputs.sample), trainer)
    return draft


def _train_unigram(inputs: _TrainingInputs) -> Model:
    """Train a unigram language model (Kudo, 2018)."""
    counts = sample.count_words(inputs.sample, inputs.raw)
    reserved_tokens = [*inputs.leading_tokens, *BYTE_TOKENS]
    free = inputs.size - len(reserved_tokens)
    size = inputs.config.alphabet
    letters = sample.choose_alphabet(counts, free // 2 if size is None else free, size)
    required_letters = [*dict.fromkeys([*_list_required_letters(inputs.leading_tokens), *letters])][:free]
    pieces = unigram.train_unigram(counts, free, required_letters, inputs.config.min_frequency)
    vocabulary = [*((token, _UNLIKELY_SCORE) for token in reserved_tokens), *pieces]
    return models.Unigram(vocabulary, unk_id=inputs.leading_tokens.index(inputs.unk_token), byte_fallback=True)


def _list_required_letters(special_tokens: Iterable[str]) -> list[str]:
    """Return the letters that a unigram vocabulary must have, to spell special tokens and byte tokens as text."""
    return sorted({*"▁".join([*special_tokens, *BYTE_TOKENS])})


def _train_characters(inputs: _TrainingInputs) -> Model:
    """Assign a token to each frequent character; others are spelled in bytes, so that decoding is lossless."""
    characters = sample.rank_by_count(sample.count_characters(inputs.sample, inputs.raw), inputs.config.min_frequency)
    tokens = [*inputs.leading_tokens, *BYTE_TOKENS, *characters[: inputs.config.alphabet]][: inputs.size]
    return models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True)


def _train_words(inputs: _TrainingInputs) -> Model:
    """Assign a token to each of the most frequent words."""
    words = sample.rank_by_count(sample.count_words(inputs.sample, inputs.raw), inputs.config.min_frequency)
    tokens = [*inputs.leading_tokens, *(word for word in words if word not in inputs.leading_tokens)][: inputs.size]
    return models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=inputs.unk_token)


_TRAINERS: dict[str, Callable[[_TrainingInputs], Model]] = {
    "wordpiece": _train_wordpiece,
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "characters": _train_characters,
    "words": _train_words,
    "whitespace": _train_words,
}
