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
from pretune.text.corpora.formats import By
from pretune.text.styles import SENTINEL, Kind, Style, kind_of, style_of
from pretune.text.tokenizer import counting, pipeline, unigram
from pretune.text.tokenizer.sample import Sample
from pretune.text.tokenizer.tokenizer import MOST, Tokenizer

_PART = 2**24
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""How bytes are spelled where a character has no piece."""
_UNLIKELY = -1000.0
"""The score of special tokens and bytes in a unigram model: text that spells one out is likelier anything else."""


class Options(TypedDict, total=False):
    """What may be said of a tokenizer beside its kind and size."""

    style: str | None
    lowercase: bool
    strip_accents: bool | None
    min_frequency: int
    alphabet: int | None
    sample_bytes: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
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
        kind, style = self.parts()
        if kind.unknown and not any("unk" in mark.roles for mark in style.marks):
            raise UsageError(f"style '{self.style}' has no token for unknown text, which '{self.kind}' needs")
        fixed = len(style.marks) + style.sentinels
        letters = len(_spelling([mark.text for mark in style.marks])) if self.kind == "unigram" else 0
        least = fixed + (len(BYTES) + letters if kind.bytes else 2)
        if not least <= self.vocab <= MOST:
            what = f"{fixed} special tokens" + (f", {len(BYTES)} bytes" * kind.bytes)
            what += f", {letters} letters to spell them" * bool(letters)
            raise UsageError(f"vocab must be from {least} ({what}) to {MOST}, found {self.vocab}")
        for name, value in (("min_frequency", self.min_frequency), ("sample_bytes", self.sample_bytes)):
            if value < 1:
                raise UsageError(f"{name} must be 1 or more, found {value}")
        if self.alphabet is not None and self.alphabet < 1:
            raise UsageError(f"alphabet must be 1 or more, found {self.alphabet}")

    def parts(self) -> tuple[Kind, Style]:
        """The rows of the two tables."""
        kind = kind_of(self.kind)
        return kind, style_of(self.style or kind.style)


class _Work(NamedTuple):
    """What a learner is given: the sample, the library's tokenizer without a model, and how much room there is."""

    plan: Plan
    sample: Sample
    raw: Raw
    front: list[str]  # the special tokens that come before all pieces
    unknown: str | None
    size: int  # the pieces, with those of the front


def train(
    kind: str,
    texts: Iterable[str],
    *,
    vocab: int,
    tell: Callable[[int], None] | None = None,
    **options: Unpack[Options],
) -> Tokenizer:
    """Train a tokenizer on texts; `tell` hears how many bytes have been read. See `Plan` for the options.

    A small corpus may give fewer than `vocab` tokens.
    """
    plan = Plan(kind=kind, vocab=vocab, **options)
    made, style = plan.parts()
    sample = Sample(texts, plan.sample_bytes, plan.seed, tell)
    if not sample.kept:
        raise DataError(
            "cannot train a tokenizer: the corpus has no text" + (" that fits the sample" * bool(sample.seen))
        )
    accents = not (plan.strip_accents if plan.strip_accents is not None else plan.lowercase and bool(made.normalise))
    raw = Raw(models.WordLevel({}, unk_token=""))
    raw.normalizer = pipeline.normaliser(made, style, plan.lowercase, accents)
    raw.pre_tokenizer = pipeline.splitter(made)
    front = [mark.text for mark in style.marks if not mark.last]
    after = len(style.marks) - len(front) + style.sentinels
    unknown = next((mark.text for mark in style.marks if "unk" in mark.roles), None)
    raw.model = _LEARNERS[kind](_Work(plan, sample, raw, front, unknown, vocab - after))
    raw.decoder = pipeline.decoder(made)
    return Tokenizer(raw, _dress(raw, style))


def train_tokenizer(
    kind: str,
    inputs: str | Path | Sequence[str | Path],
    *,
    vocab: int,
    by: By = "auto",
    field: str | None = None,
    errors: Errors = "strict",
    progress: Callable[[float, int], None] | None = None,
    **options: Unpack[Options],
) -> Tokenizer:
    """Train a tokenizer on a corpus: files, folders, globs or built-in names, as `open_corpus` takes them.

        tokenizer = pt.train_tokenizer("wordpiece", ["books/"], vocab=8192, lowercase=True)

    Kinds: wordpiece, bpe (byte-level), unigram, characters, words. Options: style, lowercase, strip_accents,
    min_frequency, alphabet, sample_bytes, seed (see `Plan`). `progress` hears the share and the bytes of text read.
    """
    Plan(kind=kind, vocab=vocab, **options)  # what is wrong with it is said before anything is read
    names = [os.fspath(name) for name in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    parts = open_corpus(names, by=by, field=field, errors=errors).parts(_PART)
    done = 0

    def texts() -> Iterator[str]:
        nonlocal done
        for part in parts:
            yield from (text for document in part.documents() for text in document.sides)
            done += 1

    def tell(read: int) -> None:
        if progress is not None:
            progress(done / max(len(parts), 1), read)

    return train(kind, texts(), vocab=vocab, tell=tell, **options)


def _dress(raw: Raw, style: Style) -> dict[str, str | int]:
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


def _wordpiece(work: _Work) -> Model:
    """Pairs merged by frequency inside words, as for byte pairs, with ## before all but the first part of a word."""
    counts = counting.words(work.sample, work.raw)
    inner = counting.inner(counts)
    prices = dict.fromkeys(inner, 2)
    letters = sorted(counting.alphabet(counts, _room(work), work.plan.alphabet, prices))
    # NOTE: the trainer numbers the parts with ## in the order of a hash table, which differs from run to run and
    # decides between equally frequent pairs. Given as special tokens they have their numbers beforehand.
    fixed = [*letters, *(f"##{letter}" for letter in letters if letter in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=work.size,
        min_frequency=work.plan.min_frequency,
        special_tokens=[*work.front, *fixed],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    draft = Raw(models.WordPiece(unk_token=work.unknown or ""))
    draft.normalizer, draft.pre_tokenizer = work.raw.normalizer, work.raw.pre_tokenizer
    draft.train_from_iterator(iter(work.sample), trainer)
    return models.WordPiece(draft.get_vocab(), unk_token=work.unknown or "")


def _bpe(work: _Work) -> Model:
    """Byte pairs (Sennrich et al., 2016), on bytes (Radford et al., 2019)."""
    trainer = trainers.BpeTrainer(
        vocab_size=work.size,
        min_frequency=work.plan.min_frequency,
        special_tokens=work.front,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    draft = Raw(models.BPE())
    draft.normalizer, draft.pre_tokenizer = work.raw.normalizer, work.raw.pre_tokenizer
    draft.train_from_iterator(iter(work.sample), trainer)
    model: Model = draft.model
    return model


def _unigram(work: _Work) -> Model:
    """Pieces with probabilities (Kudo, 2018)."""
    counts = counting.words(work.sample, work.raw)
    fixed = [*work.front, *BYTES]
    free = work.size - len(fixed)
    letters = counting.alphabet(counts, free if work.plan.alphabet is not None else free // 2, work.plan.alphabet)
    needed = [*dict.fromkeys([*_spelling(work.front), *letters])][:free]
    pieces = unigram.learn(counts, free, needed, work.plan.min_frequency)
    vocabulary = [*((token, _UNLIKELY) for token in fixed), *pieces]
    return models.Unigram(vocabulary, unk_id=work.front.index(work.unknown or ""), byte_fallback=True)


def _spelling(marks: Sequence[str]) -> list[str]:
    """The letters that a unigram vocabulary must have: text that spells out what is fixed is made of these."""
    return sorted({*"▁".join([*marks, *BYTES])})


def _characters(work: _Work) -> Model:
    """One token per character; what has none is spelled in bytes, so that every text comes back as it was."""
    found = counting.ranked(counting.characters(work.sample, work.raw), work.plan.min_frequency)
    most = work.size - len(work.front) - len(BYTES)
    tokens = [*work.front, *BYTES, *found[: min(most, work.plan.alphabet or most)]]
    return models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True)


def _words(work: _Work) -> Model:
    """The most frequent words."""
    found = counting.ranked(counting.words(work.sample, work.raw), work.plan.min_frequency)
    tokens = [*work.front, *(word for word in found if word not in work.front)][: work.size]
    return models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=work.unknown or "")


def _room(work: _Work) -> int:
    """How many pieces single characters may take."""
    room = work.size - len(work.front)
    return room if work.plan.alphabet is not None else (room + 1) // 2


_LEARNERS: dict[str, Callable[[_Work], Model]] = {
    "wordpiece": _wordpiece,
    "bpe": _bpe,
    "unigram": _unigram,
    "characters": _characters,
    "words": _words,
}
