"""Options of `pretrain`."""

from collections.abc import Mapping
from typing import Any

from pretune.core.api import ConfigSource, Option, Options, StrPath, option, option_set, positional
from pretune.runs.options import CONFIG, DEVICE, OUT, RESUME, SET

SETTING_NAMES = tuple(
    f"{path}="
    for path in [
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
    ]
)
"""Frequently changed settings, which `--set` completes; `--dry-run` prints all of them."""
MODEL_NAME = Option(
    "FAMILY[-SIZE]",
    "Model to train; see `pretune list families`.",
    sets="model.name",
    names=("pretune.models.families:list_names",),
)


def _parse_tokens(text: str) -> int:
    from pretune.core.log import parse_count

    return parse_count(text, "--tokens")


@option_set
class PretrainOptions(Options):
    """Options of a pre-training run."""

    model: str | None = positional(MODEL_NAME, default=None, kw_only=False)
    data: StrPath | None = option("--data DATA", "Data of `pretune prepare`.", sets="data.path")
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
        parse=_parse_tokens,
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
