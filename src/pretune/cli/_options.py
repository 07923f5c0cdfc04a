"""Options and arguments of verbs, and their shell completion, without importing what they name.

    steps: Annotated[int | None, option("--steps N", "Training steps.")] = None

Options that several verbs share are types here: `device: DeviceName = None`.
"""

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from pretune.core.errors import UsageError

Completer = Callable[[str], list[str]]

FILE_TASKS = ("minimal_pairs", "bias_pairs", "cloze", "scored_pairs", "triplets")
POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt", "weighted", "static")
SHAPES = ("encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream")
SETTING_PATHS = {
    "pretrain": (
        "data.max_length", "model.depth", "model.heads", "model.width", "train.attention_backend", "train.batch_tokens",
        "train.checkpoint_every", "train.eval_every", "train.lr", "train.precision", "train.schedule.warmup",
        "train.seed", "train.workers",
    ),
    "finetune": (
        "data.max_length", "method.rank", "train.batch", "train.eval_every", "train.lr", "train.patience",
        "train.schedule.warmup", "train.seed", "tune.layer_decay",
    ),
    "show": ("depth", "heads", "vocab", "width"),
}  # fmt: skip
"""Frequently changed settings; `--dry-run` prints all of them."""


def option(usage: str, about: str, complete: Completer | None = None, **more: Any) -> Any:
    """Return an option for `Annotated`; `usage` holds its names and its metavar, as the help prints them."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=about, autocompletion=complete, **more)


def argument(metavar: str, about: str, complete: Completer | None = None) -> Any:
    """Return a positional argument for `Annotated`."""
    return typer.Argument(metavar=metavar, help=about, autocompletion=complete)


def check_format(as_json: bool, as_csv: bool) -> None:
    """Raise where two output formats are requested."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; choose one")


def complete_names(*sources: str, separator: str = "") -> Completer:
    """Return a completer of names; a source is a name, or the registry `module:ATTRIBUTE` of names.

    With a separator, the last part is completed; earlier parts stay and are not offered again.
    """

    def complete(incomplete: str = "") -> list[str]:
        prefix, mark, part = incomplete.rpartition(separator) if separator else ("", "", incomplete)
        previous = prefix.split(separator) if separator else []
        names = [name for source in sources for name in _list_names(source)]
        return [f"{prefix}{mark}{name}" for name in names if name.startswith(part) and name not in previous]

    return complete


def _list_names(source: str) -> list[str]:
    module, _, attribute = source.partition(":")
    return [*getattr(import_module(module), attribute)] if attribute.isupper() else [source]


def complete_families(incomplete: str = "") -> list[str]:
    """Complete families and their sizes."""
    from pretune.models.families import FAMILIES, list_sizes

    names = (name for family in FAMILIES for name in (family, *(f"{family}-{size}" for size in list_sizes(family))))
    return [name for name in names if name.startswith(incomplete)]


def complete_settings(verb: str) -> Completer:
    """Return a completer of the paths of `--set`, up to the `=`."""
    return complete_names(*(f"{path}=" for path in SETTING_PATHS[verb]))


complete_devices = complete_names("cpu", "cuda", "cuda:0")
complete_poolings = complete_names(*POOLINGS)
complete_shapes = complete_names(*SHAPES)
complete_objectives = complete_names("pretune.objectives:OBJECTIVES")
complete_methods = complete_names("pretune.adaptation:METHODS", "pretune.adaptation:METHOD_PRESETS", separator="+")
complete_task_types = complete_names("pretune.tasks.types:TYPE_OPTIONS")
complete_tasks = complete_names("pretune.tasks:TASKS", "embedding", separator=",")
complete_eval_tasks = complete_names("pretune.tasks:TASKS", *FILE_TASKS, separator=",")
complete_tokenizer_kinds = complete_names("pretune.text.styles:KINDS")
complete_styles = complete_names("pretune.text.styles:STYLES")
complete_cleaners = complete_names("pretune.text.cleaning:PRESETS", "pretune.text.cleaning:CLEANERS", separator=",")
complete_splitters = complete_names("pretune.text.sentences:SPLITTERS")
complete_baselines = complete_names(
    "default", "all", "none", "pretune.evaluation.baselines:SLOTS", "probe", "random", "cosine", separator=","
)


class Dtype(StrEnum):
    """Data type of the weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Quantization(StrEnum):
    """Quantization of the weights, for inference."""

    INT8 = "int8"
    NF4 = "nf4"


class DocumentUnit(StrEnum):
    """Unit of a document."""

    AUTO = "auto"
    FILE = "file"
    BLOCK = "block"
    LINE = "line"
    FIELD = "field"


ModelNames = Annotated[
    list[str],
    argument(
        "MODEL",
        "Run, Hugging Face directory, hf:OWNER/NAME, `pretune list models`; fine-tuned runs of one task: an ensemble.",
    ),
]
ModelName = Annotated[
    str, argument("MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or one of `pretune list models`.")
]
EmbeddingModel = Annotated[str, argument("MODEL", "Run, Hugging Face directory, hf:OWNER/NAME, or word vectors.")]
Corpus = Annotated[list[str], argument("CORPUS", "Files, folders, globs, pair:A,B, builtin:NAME, hf:NAME.")]
AsJson = Annotated[bool, option("--json", "Print JSON.")]
AsCsv = Annotated[bool, option("--csv", "Print CSV.")]
Base = Annotated[Path | None, option("--base DIR", "Base model of an adapter, if it was moved.")]
DeviceName = Annotated[
    str | None, option("--device NAME", "cpu or cuda (default: a GPU if available).", complete_devices)
]
Quantize = Annotated[
    Quantization | None, option("--quantize", "Reduce the weights of linear layers to 8 or 4 bits (int8, nf4).")
]
WeightDtype = Annotated[Dtype, option("--dtype", "Data type of the weights.")]
TaskData = Annotated[Path | None, option("--data DIR", "Directory of task data (default: $PRETUNE_DATA).")]
ConfigFile = Annotated[Path | None, option("--config FILE", "Settings file: YAML, or the run.json of a run.")]
Resume = Annotated[bool, option("--resume", "Resume the unfinished run in --out.")]
RunOut = Annotated[Path | None, option("--out RUN", "Output directory of the run.")]
Unit = Annotated[DocumentUnit, option("--by", "Unit of a document.")]
TextField = Annotated[str | None, option("--field NAME", "Text column or JSON field.")]
InputField = Annotated[str, option("--field NAME", "Text column or JSON field.")]
TextColumn = Annotated[str | None, option("--text COL", "Text column.")]
PairColumn = Annotated[str | None, option("--pair COL", "Column of a second text.")]
MaxLength = Annotated[int | None, option("--length N", "Maximum length in tokens; longer texts are truncated.")]
TextPrompt = Annotated[str | None, option("--prompt TEXT", "Prompt prepended to every text.")]
Layer = Annotated[int | None, option("--layer N", "Layer, 0 (embeddings) to depth; -1 is the last.")]
