"""Training: from a corpus to a tokenizer, in bounded memory, and byte for byte the same for the same corpus.

    tokenizer = train("wordpiece", texts, vocab=8192, lowercase=True)
    tokenizer.save("tokenizers/small")

At most `sample_bytes` of text are kept, drawn from the whole corpus by `seed`; beside them memory holds the distinct
words of that sample. Byte pairs and word pieces are merged by the library's trainers; unigrams by ours, which says why.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from tokenizers import AddedToken, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Raw
from tokenizers.models import Model

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import open_corpus
from pretune.text.corpora.decoding import Errors
from pretune.text.corpora.formats import DocumentBoundary
from pretune.text.styles import SENTINEL, TokenizerKind, TokenizerStyle, get_tokenizer_kind, get_tokenizer_style
from pretune.text.tokenizer import counting, pipeline, unigram
from pretune.text.tokenizer.sample import TextSample
from pretune.text.tokenizer.tokenizer import MAX_VOCAB, Tokenizer

_PART_BYTES = 2**24
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
"""How bytes are spelled where a character has no piece."""
_UNLIKELY_SCORE = -1000.0
"""The score of special tokens and bytes in a unigram model: text that spells one out is likelier anything else."""


class TokenizerOptions(TypedDict, total=False):
    """What may be said of a tokenizer beside its kind and size."""

    style: str | None
    lowercase: bool
    strip_accents: bool | None
    min_frequency: int
    alphabet: int | None
    sample_bytes: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """A tokenizer to be trained.

    `strip_accents` follows `lowercase` by default for the kinds that normalise. `alphabet` is the number of characters
    to have pieces for; by default they cover 99.99 % of the text, with at most half of the vocabulary. Words, and pairs
    to be merged, count from `min_frequency` on.
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
        if kind.unknown and not any("unk" in mark.roles for mark in style.marks):
            raise UsageError(f"style '{self.style}' has no token for unknown text, which '{self.kind}' needs")
        fixed = len(style.marks) + style.sentinels
        letters = len(_list_required_letters([mark.text for mark in style.marks])) if self.kind == "unigram" else 0
        least = fixed + (len(BYTE_TOKENS) + letters if kind.bytes else 2)
        if not least <= self.vocab <= MAX_VOCAB:
            what = f"{fixed} special tokens" + (f", {len(BYTE_TOKENS)} bytes" * kind.bytes)
            what += f", {letters} letters to spell them" * bool(letters)
            raise UsageError(f"vocab must be from {least} ({what}) to {MAX_VOCAB}, found {self.vocab}")
        for name, value in (("min_frequency", self.min_frequency), ("sample_bytes", self.sample_bytes)):
            if value < 1:
                raise UsageError(f"{name} must be 1 or more, found {value}")
        if self.alphabet is not None and self.alphabet < 1:
            raise UsageError(f"alphabet must be 1 or more, found {self.alphabet}")

    def get_tables(self) -> tuple[TokenizerKind, TokenizerStyle]:
        """The rows of the two tables."""
        kind = get_tokenizer_kind(self.kind)
        return kind, get_tokenizer_style(self.style or kind.style)


class _TrainingInputs(NamedTuple):
    """What a learner is given: the sample, the library's tokenizer without a model, and how much room there is."""

    config: TokenizerConfig
    sample: TextSample
    raw: Raw
    leading_tokens: list[str]  # the special tokens that come before all pieces
    unk_token: str | None
    size: int  # the pieces, with those of the front


def train(
    kind: str,
    texts: Iterable[str],
    *,
    vocab: int,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[TokenizerOptions],
) -> Tokenizer:
    """Train a tokenizer on texts; `tell` hears how many bytes have been read. See `TokenizerConfig` for the options.

    A small corpus may give fewer than `vocab` tokens.
    """
    plan = TokenizerConfig(kind=kind, vocab=vocab, **options)
    made, style = plan.get_tables()
    sample = TextSample(texts, plan.sample_bytes, plan.seed, progress)
    if not sample.sample_bytes:
        raise DataError(
            "cannot train a tokenizer: the corpus has no text" + (" that fits the sample" * bool(sample.total_bytes))
        )
    accents = not (plan.strip_accents if plan.strip_accents is not None else plan.lowercase and bool(made.normalise))
    raw = Raw(models.WordLevel({}, unk_token=""))
    raw.normalizer = pipeline.build_normaliser(made, style, plan.lowercase, accents)
    raw.pre_tokenizer = pipeline.build_splitter(made)
    front = [mark.text for mark in style.marks if not mark.last]
    after = len(style.marks) - len(front) + style.sentinels
    unknown = next((mark.text for mark in style.marks if "unk" in mark.roles), None)
    raw.model = _TRAINERS[kind](_TrainingInputs(plan, sample, raw, front, unknown, vocab - after))
    raw.decoder = pipeline.build_decoder(made)
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
    **options: Unpack[TokenizerOptions],
) -> Tokenizer:
    """Train a tokenizer on a corpus: files, folders, globs or built-in names, as `open_corpus` takes them.

        tokenizer = pt.train_tokenizer("wordpiece", ["books/"], vocab=8192, lowercase=True)

    Kinds: wordpiece, bpe (byte-level), unigram, characters, words. Options: style, lowercase, strip_accents,
    min_frequency, alphabet, sample_bytes, seed (see `TokenizerConfig`). `progress` hears the share and the bytes of text read.
    """
    TokenizerConfig(kind=kind, vocab=vocab, **options)  # what is wrong with it is said before anything is read
    names = [os.fspath(name) for name in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    parts = open_corpus(names, by=by, field=field, errors=errors).plan_parts(_PART_BYTES)
    done = 0

    def texts() -> Iterator[str]:
        nonlocal done
        for part in parts:
            yield from (text for document in part.read_documents() for text in document.sides)
            done += 1

    def tell(read: int) -> None:
        if progress is not None:
            progress(done / max(len(parts), 1), read)

    return train(kind, texts(), vocab=vocab, progress=tell, **options)


def _add_special_tokens(raw: Raw, style: TokenizerStyle) -> dict[str, str | int]:
    """Give the special tokens and the template to a tokenizer, and say what its files shall say of them."""
    order = sorted(style.marks, key=lambda mark: mark.last)
    marks = [AddedToken(mark.text, lstrip=mark.strip, normalized=False, special=True) for mark in order]
    names = [SENTINEL.format(i) for i in reversed(range(style.sentinels))]  # the first has the highest id
    raw.add_special_tokens([*marks, *(AddedToken(name, normalized=False, special=True) for name in names)])
    words = f"{style.single} {style.pair}".replace(":", " ").split()
    ids = [(mark.text, raw.token_to_id(mark.text)) for mark in style.marks if mark.text in words]
    # NOTE: given even where it adds nothing: transformers would put another in its place.
    raw.post_processor = processors.TemplateProcessing(single=style.single, pair=style.pair, special_tokens=ids)
    said: dict[str, str | int] = {f"{role}_token": mark.text for mark in style.marks for role in mark.roles}
    return {**said, "padding_side": style.padding, "pad_token_type_id": style.pad_segment}


def _train_wordpiece(inputs: _TrainingInputs) -> Model:
    """Pairs merged by frequency inside words, as for byte pairs, with ## before all but the first part of a word."""
    counts = counting.count_words(inputs.sample, inputs.raw)
    inner = counting.find_inner_characters(counts)
    prices = dict.fromkeys(inner, 2)
    letters = sorted(counting.choose_alphabet(counts, _get_alphabet_room(inputs), inputs.config.alphabet, prices))
    # NOTE: the trainer numbers the parts with ## in the order of a hash table, which differs from run to run and
    # decides between equally frequent pairs. Given as special tokens they have their numbers beforehand.
    fixed = [*letters, *(f"##{letter}" for letter in letters if letter in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=inputs.size,
        min_frequency=inputs.config.min_frequency,
        special_tokens=[*inputs.leading_tokens, *fixed],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    draft = Raw(models.WordPiece(unk_token=inputs.unk_token or ""))
    draft.normalizer, draft.pre_tokenizer = inputs.raw.normalizer, inputs.raw.pre_tokenizer
    draft.train_from_iterator(iter(inputs.sample), trainer)
    return models.WordPiece(draft.get_vocab(), unk_token=inputs.unk_token or "")


def _train_bpe(inputs: _TrainingInputs) -> Model:
    """Byte pairs (Sennrich et al., 2016), on bytes (Radford et al., 2019)."""
    trainer = trainers.BpeTrainer(
        vocab_size=inputs.size,
        min_frequency=inputs.config.min_frequency,
        special_tokens=inputs.leading_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    draft = Raw(models.BPE())
    draft.normalizer, draft.pre_tokenizer = inputs.raw.normalizer, inputs.raw.pre_tokenizer
    draft.train_from_iterator(iter(inputs.sample), trainer)
    model: Model = draft.model
    return model


def _train_unigram(inputs: _TrainingInputs) -> Model:
    """Pieces with probabilities (Kudo, 2018)."""
    counts = counting.count_words(inputs.sample, inputs.raw)
    fixed = [*inputs.leading_tokens, *BYTE_TOKENS]
    free = inputs.size - len(fixed)
    letters = counting.choose_alphabet(
        counts, free if inputs.config.alphabet is not None else free // 2, inputs.config.alphabet
    )
    needed = [*dict.fromkeys([*_list_required_letters(inputs.leading_tokens), *letters])][:free]
    pieces = unigram.train_unigram(counts, free, needed, inputs.config.min_frequency)
    vocabulary = [*((token, _UNLIKELY_SCORE) for token in fixed), *pieces]
    return models.Unigram(vocabulary, unk_id=inputs.leading_tokens.index(inputs.unk_token or ""), byte_fallback=True)


def _list_required_letters(special_tokens: Sequence[str]) -> list[str]:
    """The letters that a unigram vocabulary must have: text that spells out what is fixed is made of these."""
    return sorted({*"▁".join([*special_tokens, *BYTE_TOKENS])})


def _train_characters(inputs: _TrainingInputs) -> Model:
    """One token per character; what has none is spelled in bytes, so that every text comes back as it was."""
    found = counting.rank_by_count(counting.count_characters(inputs.sample, inputs.raw), inputs.config.min_frequency)
    most = inputs.size - len(inputs.leading_tokens) - len(BYTE_TOKENS)
    tokens = [*inputs.leading_tokens, *BYTE_TOKENS, *found[: min(most, inputs.config.alphabet or most)]]
    return models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True)


def _train_words(inputs: _TrainingInputs) -> Model:
    """The most frequent words."""
    found = counting.rank_by_count(counting.count_words(inputs.sample, inputs.raw), inputs.config.min_frequency)
    tokens = [*inputs.leading_tokens, *(word for word in found if word not in inputs.leading_tokens)][: inputs.size]
    return models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=inputs.unk_token or "")


def _get_alphabet_room(inputs: _TrainingInputs) -> int:
    """How many pieces single characters may take."""
    room = inputs.size - len(inputs.leading_tokens)
    return room if inputs.config.alphabet is not None else (room + 1) // 2


_TRAINERS: dict[str, Callable[[_TrainingInputs], Model]] = {
    "wordpiece": _train_wordpiece,
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "characters": _train_characters,
    "words": _train_words,
}
