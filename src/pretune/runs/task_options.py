"""Options of `finetune`, `train_embeddings` and `evaluate`: the verbs with tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pretune.core.api import ConfigSource, Option, Options, StrPath, option, option_set, positional, setting
from pretune.core.errors import UsageError
from pretune.metrics.rewards import read_reward
from pretune.runs.options import (
    BASE,
    CONFIG,
    DEVICE,
    MODEL,
    OUT,
    PAIR,
    QUANTIZE,
    RESUME,
    SET,
    TASK_DATA,
    TEXT,
    Quantization,
    unescape,
)
from pretune.tasks.types import TYPE_OPTIONS

if TYPE_CHECKING:
    from torch import nn

    from pretune.tasks.task import Task

BASE_MODEL = replace(MODEL, sets="base.path", is_required=False)
FILE_TASKS = ("minimal_pairs", "bias_pairs", "cloze", "scored_pairs", "triplets")
"""Tasks whose data is the user's file, passed as `data`."""
SETTING_NAMES = (
    "data.max_length",
    "method.rank",
    "train.batch",
    "train.eval_every",
    "train.lr",
    "train.patience",
    "train.schedule.warmup",
    "train.seed",
    "tune.layer_decay",
)
"""Frequently changed settings, which `--set` completes; `--dry-run` prints all of them."""


def parse_numbers(text: str) -> tuple[float, ...]:
    """Return comma-separated numbers, as in `--lr 2e-5,3e-5`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--lr must be comma-separated numbers such as 2e-5,3e-5, got '{text[:40]}'") from None


def parse_example_counts(text: str) -> tuple[int | None, ...]:
    """Return comma-separated numbers of training examples; `all` is None.

    >>> parse_example_counts("50,200,all")
    (50, 200, None)
    """
    parts: Sequence[str] = text.split(",")
    if any(part != "all" and (not part.isdecimal() or int(part) < 1) for part in parts):
        raise UsageError(f"--train-examples must be like 50,200,1000,all, got '{text[:40]}'")
    return tuple(None if part == "all" else int(part) for part in parts)


@option_set
class FinetuneOptions(Options):
    """Options of a fine-tuning run."""

    model: StrPath | None = positional(BASE_MODEL, default=None, kw_only=False)
    task: str | None = option(
        "--task NAME",
        "Task of `pretune list tasks`; several, comma-separated, train together.",
        sets="task.name",
        names=("pretune.tasks:TASKS", "embedding"),
        separator=",",
    )
    type: str | None = option(
        "--type TYPE",
        f"Type of --train FILE: {', '.join(TYPE_OPTIONS)} (default: inferred).",
        sets="task.type",
        names=TYPE_OPTIONS,
    )
    train: StrPath | None = option(
        "--train FILE", "Training table instead of --task: CSV, TSV, JSONL, CoNLL.", sets="task.train"
    )
    dev: StrPath | None = option("--dev FILE", "Validation table (default: split off --train).", sets="task.dev")
    test: StrPath | None = option("--test FILE", "Test table.", sets="task.test")
    text: str | None = TEXT.field(sets="task.text")
    pair: str | None = PAIR.field(sets="task.pair")
    label: str | None = option("--label COL", "Label or score column.", sets="task.label")
    reward: str | Callable[[str, str], float] | None = option(
        "--reward NAME",
        "Train on rewards of sampled answers: exact, number, regex, or your function, FILE.py:function.",
        sets="task.reward",
        kind=str,
        parse=read_reward,
        names=("exact", "number", "regex"),
    )
    out: StrPath | None = OUT.field()
    method: str | None = option(
        "--method NAME",
        "Fine-tuning method: full, frozen, freeze-first, last-only, extra-layers, gradual, ulmfit, "
        "scalar-mix, from-scratch, adapter, prefix, prompt, lora, qlora, ia3, bitfit. Combine with +: "
        "lora+gradual.",
        names=("pretune.adaptation:METHODS", "pretune.adaptation:METHOD_PRESETS"),
        separator="+",
    )
    seeds: int | None = option("--seeds N", "Number of seeds; reports mean and 95% confidence interval.")
    train_examples: int | Sequence[int | None] | None = option(
        "--train-examples N,...",
        "Training set sizes, for a learning curve: 50,200,all.",
        default=(),
        kind=str,
        parse=parse_example_counts,
    )
    lr: float | Sequence[float] | None = option(
        "--lr RATE,...",
        "Learning rates; selects the best on the validation set.",
        kind=str,
        parse=parse_numbers,
    )
    epochs: float | None = option("--epochs N", "Training epochs.", sets="train.epochs")
    steps: int | None = option("--steps N", "Training steps, instead of --epochs.", sets="train.steps")
    baselines: str | None = option(
        "--baselines NAME,...",
        "Baselines: default, all, none, or names.",
        names=(
            "default",
            "all",
            "none",
            "pretune.evaluation.baselines:SLOTS",
            "pretune.evaluation.baselines:MODEL_BASELINES",
        ),
        separator=",",
    )
    forgetting: StrPath | None = option(
        "--forgetting DATA", "Report the pre-training loss on this prepared data before and after."
    )
    vectors: StrPath | None = option("--vectors FILE", "Word vectors of the baseline `vectors`; see `pretune vectors`.")
    teacher: StrPath | None = option("--teacher RUN", "Distil this run, fine-tuned on the same task, into the model.")
    data: StrPath | None = TASK_DATA.field(sets="task.data")
    force: bool = option(
        "--force",
        "Allow fewer than 5 training examples, or classes without any.",
        default=False,
        sets="task.force",
    )
    strict: bool = option(
        "--strict",
        "Refuse tables with a blank text or label, instead of skipping such rows.",
        default=False,
        sets="task.strict",
    )
    resume: bool = RESUME.field(default=False)
    config: ConfigSource | None = CONFIG.field()
    overrides: Mapping[str, Any] | None = SET.field(
        about="Change a setting: method.rank=16, tune.layer_decay=0.9, data.max_length=256. Repeatable.",
        names=SETTING_NAMES,
    )
    device: str | None = DEVICE.field()

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates to compare; none: the default of the method."""
        if self.lr is None:
            return ()
        return (self.lr,) if isinstance(self.lr, int | float) else tuple(self.lr)

    @property
    def example_counts(self) -> tuple[int | None, ...]:
        """Training set sizes of a learning curve, None for all."""
        counts = self.train_examples
        return (counts,) if isinstance(counts, int) else tuple(counts or ())


@option_set
class EmbeddingOptions(Options):
    """Options of contrastive training; on the command line, those of `finetune --type embedding`."""

    model: StrPath | None = positional(MODEL, default=None, kw_only=False)
    out: StrPath | None = None
    task: str | None = None
    train: StrPath | None = None
    dev: StrPath | None = None
    data: StrPath | None = None
    loss: str | None = setting("loss")
    pooling: str | None = setting("pooling")
    normalise: bool | None = setting("normalise")
    length: int | None = setting("length")
    batch: int | None = setting("batch")
    epochs: float | None = setting("epochs")
    steps: int | None = setting("steps")
    lr: float | None = setting("lr")
    warmup: float | None = setting("warmup")
    weight_decay: float | None = setting("weight_decay")
    clip: float | None = setting("clip")
    seed: int | None = setting("seed")
    overrides: Mapping[str, Any] | None = None
    strict: bool = False
    resume: bool = False
    device: str | None = None


def parse_shots(text: str) -> list[int]:
    """Parse comma-separated numbers of shots."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--shots '{text[:40]}' must be comma-separated integers, such as 0,1,32") from None


EVALUATED_MODEL = Option(
    "MODEL",
    "Run, Hugging Face directory, hf:OWNER/NAME, `pretune list models`; fine-tuned runs of one task: an ensemble.",
    kind=list[str],
    is_required=True,
)
EVALUATED_TASK = Option(
    "--task NAME,...",
    "Tasks of `pretune list tasks`, or minimal_pairs, bias_pairs, cloze, scored_pairs, triplets.",
    kind=str,
    names=("pretune.tasks:TASKS", *FILE_TASKS),
    separator=",",
)


@option_set
class EvaluateOptions(Options):
    """Options of an evaluation."""

    model: "StrPath | nn.Module | Sequence[StrPath]" = positional(EVALUATED_MODEL, default=None, kw_only=False)
    task: "str | Task | Sequence[str | Task]" = positional(EVALUATED_TASK, default=(), kw_only=False)
    text: StrPath | Sequence[StrPath] = option(
        "--text FILE", "Report the perplexity of this text. Repeatable.", default=(), kind=list[str]
    )
    data: StrPath | None = option(
        "--data DIR", "Directory of task data (default: $PRETUNE_DATA), or your own data file."
    )
    shots: int | Sequence[int] | None = option(
        "--shots K,...", "Numbers of in-context examples: 0,1,32.", kind=str, parse=parse_shots
    )
    split: str | None = option("--split NAME", "Split: test or dev (default: test).")
    limit: int | None = option("--limit N", "Maximum number of examples per task.")
    seed: int = option("--seed N", "Random seed of the shots and of --limit.", default=0)
    show: bool = option("--show-prompt", "Print the first prompt.", default=False)
    prompt: str | None = option("--prompt TEXT", "Prompt template with {text}, {pair} and {answer}.", parse=unescape)
    calibrate: bool = option(
        "--calibrate",
        "Contextual calibration (Zhao et al., 2021): correct for the answer to an empty input.",
        default=False,
    )
    length: Literal["sum", "token", "byte"] | None = option(
        "--length", "Length normalization of answers: log-probability summed, or per token or byte."
    )
    text_to_text: bool = option(
        "--text-to-text", "Use the task's text-to-text template (encoder-decoders).", default=False
    )
    order: Literal["good-first", "bad-first"] = option("--order", "Line order of minimal_pairs.", default="good-first")
    words: bool = option(
        "--words/--pieces", "Encoders: mask whole words, or single pieces, when scoring.", default=True
    )
    bidirectional: bool = option(
        "--bidirectional",
        "Decoders of the objective masked_next: score each token from both sides.",
        default=False,
    )
    window: int | None = option("--window N", "Window length of --text in tokens.")
    stride: int | None = option("--stride N", "Stride of the windows in tokens.")
    pooling: str | None = option("--pooling", "Vectors of similarity and retrieval: mean, cls, max, last, static …")
    base: StrPath | None = BASE.field()
    device: str | None = DEVICE.field()
    precision: Literal["float32", "bfloat16"] | None = option(
        "--precision", "Data type (default: bfloat16 on a GPU, else float32)."
    )
    quantize: Quantization | None = QUANTIZE.field()
    on_progress: Callable[[str, int, int], None] | None = None
