"""Options of `train_tokenizer`, `prepare` and `train_vectors`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretune.core.api import Option, Options, StrPath, option, option_set, positional
from pretune.core.errors import UsageError
from pretune.runs.options import BY, CORPUS, FIELD, TASK_DATA, DocumentUnit, parse_names
from pretune.text.styles import KINDS, STYLES

if TYPE_CHECKING:
    from pretune.text.tokenizer import Tokenizer

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_bytes(text: str) -> int:
    """Parse a size: 200MB, 1.5GiB, 4096."""
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgG]?i?)[bB]?\s*", text)
    factor = _UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * factor) if match and factor else 0
    if size < 1:
        raise UsageError(f"--sample: '{text[:40]}' is not a size; examples: 200MB, 1.5GB")
    return size


@option_set
class TokenizerOptions(Options):
    """Options of the training of a tokenizer."""

    inputs: str | Path | Sequence[str | Path] = CORPUS.field()
    out: StrPath | None = option("--out DIR", "Output directory.", is_required=True)
    kind: str = option(
        "--kind NAME", f"Algorithm: {', '.join(KINDS)}.", default="wordpiece", names=("pretune.text.styles:KINDS",)
    )
    vocab: int = option("--vocab N", "Vocabulary size, including special tokens.", default=30000)
    style: str | None = option(
        "--style NAME",
        f"Style of special tokens: {', '.join(STYLES)} (default: by kind).",
        names=("pretune.text.styles:STYLES",),
    )
    lowercase: bool = option("--lowercase", "Lowercase and strip accents.", default=False)
    strip_accents: bool | None = option(
        "--strip-accents/--keep-accents", "Strip or keep accents (default: as --lowercase)."
    )
    min_frequency: int = option("--min-frequency N", "Minimum frequency of words and pairs.", default=2)
    alphabet: int | None = option("--alphabet N", "Alphabet size (default: covers 99.99% of the text).")
    sample_bytes: int = option(
        "--sample SIZE",
        "Train on a random sample of this size.",
        default=200_000_000,
        typed="200MB",
        kind=str,
        parse=parse_bytes,
    )
    seed: int = option("--seed N", "Random seed of the sample.", default=0)
    by: DocumentUnit = BY.field(default="auto")
    field: str | None = FIELD.field()
    progress: Callable[[float, int], None] | None = None


TEXTS = Option(
    "CORPUS",
    "Files, folders, globs, pair:A,B, task:NAME, builtin:NAME, hf:NAME; slices with --merge.",
    kind=list[str],
    is_required=True,
)


@option_set
class PrepareOptions(Options):
    """Options of the preparation of text."""

    inputs: Sequence[StrPath] = positional(TEXTS, default=None, kw_only=False)
    out: StrPath = option("--out DATA", "Output directory.", is_required=True)
    tokenizer: "Tokenizer | StrPath | None" = option("--tokenizer DIR", "Tokenizer directory or .json file.", kind=Path)
    valid: Sequence[StrPath] | None = option("--valid FILE", "Validation text. Repeatable.", kind=list[str])
    holdout: str | float = option(
        "--holdout SHARE", "Share of documents for validation, without --valid.", default="1%"
    )
    by: DocumentUnit = BY.field(default="auto")
    field: str | None = FIELD.field()
    errors: Literal["strict", "replace"] = option(
        "--errors", "Invalid UTF-8: stop, or replace by U+FFFD.", default="strict"
    )
    clean: Sequence[str] = option(
        "--clean NAME,...",
        "Cleaners or presets: plain, web, short_pages=50, …",
        default=(),
        kind=str,
        parse=parse_names,
        names=("pretune.text.cleaning:PRESETS", "pretune.text.cleaning:CLEANERS"),
        separator=",",
    )
    near: float | None = option("--near SHARE", "Drop near-duplicates of at least this Jaccard similarity: 0.8.")
    data: StrPath | None = TASK_DATA.field()
    lang: str = option("--lang CODE", "Language, for sentence splitting.", default="auto")
    sentences: str = option(
        "--sentences NAME", "Sentence splitter.", default="rules", names=("pretune.text.sentences:SPLITTERS",)
    )
    licence: Sequence[str] = option(
        "--licence TEXT", "Licence of the text, for data and model cards; PATTERN=TEXT for some inputs.", default=()
    )
    workers: int | None = option("--workers N", "Worker processes (default: one per core; 0: in the main process).")
    shard: str | None = option("--shard I/N", "Prepare only slice I of N (from 1), for --merge.")
    overwrite: bool = option("--overwrite", "Replace data prepared from other inputs or settings.", default=False)
    progress: Callable[[float, int, int], None] | None = None


@option_set
class VectorsOptions(Options):
    """Options of the training of static word vectors."""

    inputs: StrPath | Sequence[StrPath] = positional(CORPUS, default=None, kw_only=False)
    out: StrPath | None = option("--out FILE", "Output file, in word2vec's text format.", is_required=True)
    kind: str = option(
        "--kind NAME",
        "Algorithm: word2vec, glove or ppmi.",
        default="word2vec",
        names=("word2vec", "glove", "ppmi"),
    )
    mode: str | None = option(
        "--mode NAME", "word2vec: skip_gram (default) or cbow.", sets="mode", names=("skip_gram", "cbow")
    )
    width: int | None = option("--width N", "Vector width (default: 100).", sets="width")
    window: int | None = option("--window N", "Context words on each side (default: 5; glove 10).", sets="window")
    epochs: int | None = option(
        "--epochs N", "Training epochs (default: word2vec 5, glove 15; ppmi counts once).", sets="epochs"
    )
    min_count: int | None = option("--min-count N", "Minimum word frequency (default: 5).", sets="min_count")
    max_words: int | None = option("--max-words N", "Vocabulary size: keep the most frequent words.", sets="max_words")
    seed: int = option("--seed N", "Random seed.", default=0)
    by: DocumentUnit = BY.field(default="auto")
    field: str | None = FIELD.field()
    progress: Callable[[float], None] | None = None
