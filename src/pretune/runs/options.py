"""Options of `train_tokenizer`, `prepare`, `train_vectors` and `pretrain`, and those that several verbs have.

The options of a verb are one frozen value. Nothing here imports torch or numpy: the command line is derived from it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretune.core.api import ConfigSource, Option, Options, StrPath, option, option_set, positional
from pretune.core.config import parse_assignments
from pretune.core.errors import UsageError
from pretune.core.log import parse_count
from pretune.text.styles import KINDS, STYLES

if TYPE_CHECKING:
    from pretune.text.tokenizer import Tokenizer


DocumentUnit = Literal["auto", "file", "block", "line", "field"]
Quantization = Literal["int8", "int4", "nf4"]

BASE = Option("--base DIR", "Base model of an adapter, if it was moved.")
BY = Option("--by", "Unit of a document.")
CONFIG = Option("--config FILE", "Settings file: YAML, or the run.json of a run.")
CORPUS = Option("CORPUS", "Files, folders, globs, pair:A,B, builtin:NAME, hf:NAME.", is_required=True, kind=list[str])
DEVICE = Option("--device NAME", "cpu or cuda (default: a GPU if available).", names=("cpu", "cuda", "cuda:0"))
FIELD = Option("--field NAME", "Text column or JSON field.")
MODEL = Option(
    "MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or one of `pretune list models`.", kind=str, is_required=True
)
OUT = Option("--out RUN", "Output directory of the run.")
PAIR = Option("--pair COL", "Column of a second text.")
QUANTIZE = Option("--quantize", "Reduce the weights of linear layers to 8 or 4 bits (int8, int4, nf4).")
RESUME = Option("--resume", "Resume the unfinished run in --out.")
SET = Option("--set PATH=VALUE", "", kind=list[str], parse=parse_assignments, suffix="=")
TASK_DATA = Option("--data DIR", "Directory of task data (default: $PRETUNE_DATA).")
TEXT = Option("--text COL", "Text column.")


def parse_names(text: str) -> list[str]:
    """Return comma-separated names."""
    return [name for name in text.split(",") if name]


def unescape(text: str) -> str:
    r"""Replace the escapes \n, \t and \\ of a shell argument by the characters they stand for.

    >>> unescape(r"one\ntwo"), unescape(r"C:\\new")
    ('one\ntwo', 'C:\\new')
    """
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)


SETTING_NAMES = (
    "data.max_length",
    "model.depth",
    "model.heads",
    "model.width",
    "train.attention_backend",
    "train.batch_tokens",
    "train.checkpoint_every",
    "train.eval_every",
    "train.lr",
    "train.precision",
    "train.schedule.warmup",
    "train.seed",
    "train.workers",
)
"""Frequently changed settings, which `--set` completes; `--dry-run` prints all of them."""
MODEL_NAME = Option(
    "MODEL",
    "Model to train: a recipe (encoder, decoder, encoder-decoder), or FAMILY[-SIZE]; see `pretune list families`.",
    sets="model.name",
    names=("pretune.runs.recipes:RECIPES", "pretune.models.families:list_names"),
)


@option_set
class PretrainOptions(Options):
    """Options of a pre-training run."""

    model: str | None = positional(MODEL_NAME, default=None, kw_only=False)
    data: StrPath | None = option("--data DATA", "Data of `pretune prepare`.", sets="data.path")
    text: StrPath | Sequence[StrPath] | None = option(
        "--text PATH", "Text for a recipe, instead of --data: files or folders. Repeatable.", kind=list[str]
    )
    out: StrPath | None = OUT.field()
    objective: str | None = option(
        "--objective NAME",
        "Training objective (default: that of the model's paper).",
        sets="objective.kind",
        names=("pretune.objectives:OBJECTIVES",),
    )
    steps: int | None = option("--steps N", "Training steps.", sets="train.steps")
    tokens: int | None = option(
        "--tokens N",
        "Training tokens, instead of steps: 10M, 1B.",
        sets="train.tokens",
        kind=str,
        parse=lambda text: parse_count(text, "--tokens"),
    )
    epochs: float | None = option("--epochs N", "Training epochs, instead of steps.", sets="train.epochs")
    budget: str | float | None = option(
        "--budget TIME",
        "Training time, instead of steps: 90s, 10m, 1h30m. The learning rate follows the clock.",
        sets="train.budget",
    )
    init_from: StrPath | None = option("--from DIR", "Initialize from the weights of a MODEL.", sets="train.init_from")
    teacher: StrPath | None = option(
        "--teacher MODEL",
        "Distil this pre-trained model, of the same vocabulary, into the new one.",
        sets="objective.teacher",
    )
    paper: bool = option(
        "--paper",
        "Take the paper's batch, optimizer, rate and schedule in a short run too.",
        default=False,
    )
    resume: bool = RESUME.field(default=False)
    stop_early: bool = option(
        "--stop-early",
        "End when the validation loss has not fallen for 3 evaluations (train.patience); save the best weights.",
        default=False,
    )
    config: ConfigSource | None = CONFIG.field()
    overrides: Mapping[str, Any] | None = SET.field(
        about="Change a setting: train.lr=3e-4, data.max_length=128, model.depth=6. Repeatable.", names=SETTING_NAMES
    )
    device: str | None = DEVICE.field()


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
    quality: Sequence[StrPath] | None = option(
        "--quality REFERENCE", "Good text: drop documents unlike it. Repeatable.", kind=list[str]
    )
    keep: str | float | None = option("--keep SHARE", "Share of documents that --quality keeps: 30%.", kind=str)
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
