"""Options of `compare`."""

from collections.abc import Mapping, Sequence
from typing import Any

from pretune.core.api import Option, Options, StrPath, option, option_set, positional
from pretune.runs.options import DEVICE, SET, TASK_DATA

SCALES = ("class", "gpu", "full")
STUDY = Option(
    "STUDY",
    "A built-in study (`pretune list studies`), or a YAML file.",
    is_required=True,
    names=("pretune.studies:list_study_files",),
)


@option_set
class CompareOptions(Options):
    """Options of a study."""

    study: str = positional(STUDY, default="", kw_only=False)
    out: StrPath | None = option("--out DIR", "Output directory of the study.")
    scale: str = option(
        "--scale NAME",
        "class (minutes on two cores; few studies), gpu (minutes on one GPU), full (the paper's sizes).",
        default="class",
        names=SCALES,
    )
    seeds: int | None = option("--seeds N", "Number of seeds (default: that of the scale).")
    jobs: int | None = option(
        "--jobs N", "Steps that run side by side (default: by the memory of the GPU; one per core on a CPU)."
    )
    shard: str | None = option("--shard I/N", "Run only the cells of one of N shards, each with its own --out.")
    row: Sequence[str] = option(
        "--row NAME", "Run only the cells of this row; others are for another run. Repeatable.", default=()
    )
    merge: Sequence[StrPath] = option(
        "--merge DIR", "Combine the --out of a shard into --out; runs nothing. Repeatable.", default=()
    )
    share: Sequence[StrPath] = option(
        "--share DIR",
        "Use equal steps, such as pre-trainings, from the --out of another study. Repeatable.",
        default=(),
    )
    overrides: Mapping[str, Any] | None = SET.field(
        about="Change a setting of all rows: pretrain.train.lr=1e-3. Repeatable."
    )
    data: StrPath | None = TASK_DATA.field()
    device: str | None = DEVICE.field()
