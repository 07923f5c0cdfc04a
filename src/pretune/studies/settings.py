"""Settings of a row of a study: their paths, and their values as text.

    corpus: [builtin:reviews]          text to pre-train on; $PRETUNE_DATA/… is a file below the data directory
    model: bert-mini                   family and size to pre-train
    base: DIR | builtin:encoder        weights that exist already, instead of pre-training
    baseline: svm                      a simple baseline instead of a model
    tokenizer.kind|vocab|style|…       of `pt.train_tokenizer`
    prepare.holdout|by|…               of `pt.prepare`
    pretrain.objective|tokens|…        of `pt.pretrain`, and every path of its config: pretrain.train.lr
    finetune.method|train_examples|…   of `pt.finetune`, and every path of its config: finetune.method.rank
    embeddings.task|loss|…             of `pt.train_embeddings`
    vectors.kind|width|…               of `pt.train_vectors`
    evaluate.limit|calibrate|…         of `pt.evaluate`

`$seed` in a value is the seed of the cell; `row:NAME` names the model of another row.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pretune.core.config import Count, Number, PathText, check_record
from pretune.core.config.read import format_value
from pretune.core.errors import UsageError, find_synonyms, suggest
from pretune.core.io import parse_json
from pretune.studies.spec import Setting, Settings

SEED = "$seed"
ROW_PREFIX = "row:"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "tokenizer": {
        "kind": str, "vocab": Count, "style": str, "lowercase": bool, "strip_accents": bool, "min_frequency": Count,
        "alphabet": Count, "sample_bytes": Count, "seed": Count, "path": PathText, "corpus": list[str],
    },
    "prepare": {
        "valid": list[str], "holdout": Any, "by": str, "field": str, "errors": str, "clean": list[str], "near": Any,
        "lang": str, "sentences": str,
    },
    "pretrain": {
        "objective": str, "steps": Any, "tokens": Any, "epochs": Any, "seconds": Any, "init_from": PathText,
        "teacher": PathText, "seed": Count,
    },
    "finetune": {
        "task": str, "train": PathText, "dev": PathText, "test": PathText, "type": str, "text": str, "pair": str,
        "label": str, "method": str, "epochs": Number, "steps": Count, "train_examples": Count | Literal["all"],
        "teacher": PathText, "force": bool, "seed": Count,
    },
    "embeddings": {
        "task": str, "train": PathText, "dev": PathText, "loss": Any, "pooling": Any, "normalise": Any, "length": Any,
        "batch": Any, "epochs": Any, "steps": Any, "lr": Any, "warmup": Any, "weight_decay": Any, "clip": Any,
        "seed": Count,
    },
    "vectors": {
        "kind": str, "mode": str, "width": Count, "window": Count, "epochs": Count, "min_count": Count,
        "max_words": Count, "seed": Count,
    },
    "evaluate": {
        "split": str, "limit": Count, "seed": Count, "prompt": str, "text_to_text": bool, "length": str,
        "calibrate": bool, "order": str, "window": Count, "stride": Count, "words": bool, "data": PathText,
        "pooling": str,
    },
}  # fmt: skip
"""Options of the functions that a study calls, by section, with their types; those of a config are checked with it."""
CONFIG_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "pretrain": ("model", "objective", "data", "train"),
    "finetune": ("base", "task", "method", "tune", "data", "train"),
}
"""Sections of the configs of runs, whose paths are settings too."""
TOP_LEVEL = ("corpus", "model", "base", "baseline")
KIND_PATHS = ("pretrain.objective", "finetune.method")
"""Options that name a kind, whose fields are settings below them."""
INDEPENDENT_PATHS = ("model", "finetune.task", "finetune.train")
"""Options with the name of a section of a config, whose settings do not depend on them."""
_FLOAT = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")


def flatten_settings(tree: object, location: str) -> list[dict[str, str]]:
    """Return the settings of a nested or dotted mapping as pairs of path and text; unknown paths are errors."""
    if not isinstance(tree, Mapping):
        raise UsageError(
            f"{location}: expected settings such as 'pretrain.objective: masked', got {format_value(tree)}"
        )
    pairs: dict[str, str] = {}
    for path, value in _iterate_leaves("", tree):
        check_path(path, location)
        if path in pairs:
            raise UsageError(f"{location}: '{path}' is set twice; keep one")
        pairs[path] = to_text(value)
        section, _, option = path.partition(".")
        if option in OPTIONS.get(section, ()) and SEED not in pairs[path]:
            annotation = OPTIONS[section][option]
            option_value = parse_list(pairs[path]) if annotation == list[str] else parse_scalar(pairs[path])
            check_record(annotation, option_value, UsageError, f"{location}: {path}", "")
    return [{"path": path, "value": value} for path, value in pairs.items()]


def _iterate_leaves(prefix: str, tree: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield paths and values; a part that names its kind is one value, because each kind has its own fields."""
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if not isinstance(value, Mapping):
            yield path, value
        elif path in KIND_PATHS and "kind" in value:  # the kind is an argument, its fields are paths
            yield path, value["kind"]
            yield from _iterate_leaves(path, {name: item for name, item in value.items() if name != "kind"})
        elif "kind" not in value or path in OPTIONS:
            yield from _iterate_leaves(path, value)
        else:
            yield path, value


def check_path(path: str, location: str) -> None:
    """Raise a UsageError for a path that no row has, naming the nearest one; configs check the rest when resolved."""
    section, _, rest = path.partition(".")
    if not rest and section in TOP_LEVEL:
        return
    if rest in OPTIONS.get(section, ()):
        return
    if rest.partition(".")[0] in CONFIG_SECTIONS.get(section, ()) and "." in rest:
        return
    paths = [*TOP_LEVEL, *(f"{name}.{option}" for name, options in OPTIONS.items() for option in options)]
    synonyms = [f"{section}.{synonym}" for synonym in find_synonyms(path) if synonym in OPTIONS.get(section, ())] or [
        name for name in paths if name.endswith(f".{path}")
    ]
    hint = f"; did you mean '{synonyms[0]}'?" if synonyms else suggest(path, paths)
    section_options = OPTIONS.get(section)
    options = (
        ", ".join([*section_options, *(f"{name}.…" for name in CONFIG_SECTIONS.get(section, ()))])
        if section_options
        else ""
    )
    names = f"{section} allows: {options}" if section_options else f"allowed: {', '.join([*TOP_LEVEL, *OPTIONS])}"
    raise UsageError(f"{location}: unknown setting '{path[:80]}'{hint} ({names})")


def to_text(value: object) -> str:
    """Return a value as the text that `--set` takes; equal numbers have equal texts.

    >>> to_text("3e-4"), to_text(0.0003), to_text(True), to_text([1, 2])
    ('0.0003', '0.0003', 'true', '[1, 2]')
    """
    if isinstance(value, bool) or value is None:
        return format_value(value)
    if isinstance(value, str):
        return to_text(float(value)) if _FLOAT.fullmatch(value) and math.isfinite(float(value)) else value
    if isinstance(value, int | float):
        return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def merge_settings(*layers: Settings) -> dict[str, str]:
    """Return settings by path; later layers go before earlier ones, and a new kind before the fields of another.

    A layer that sets `pretrain.objective` drops the settings `pretrain.objective.…` of earlier layers.
    """
    values_by_path: dict[str, str] = {}
    for layer in layers:
        changed_paths = {setting.path for setting in layer if values_by_path.get(setting.path) != setting.value}
        values_by_path = {
            path: value
            for path, value in values_by_path.items()
            if not any(path.startswith(f"{parent}.") for parent in changed_paths if parent not in INDEPENDENT_PATHS)
        }
        values_by_path |= {setting.path: setting.value for setting in layer}
    return values_by_path


def select_section(settings: Mapping[str, str], section: str) -> dict[str, str]:
    """Return the settings of a section, without its name."""
    return {
        path.removeprefix(f"{section}."): value for path, value in settings.items() if path.startswith(f"{section}.")
    }


def fill_seed(settings: Mapping[str, str], seed: int) -> dict[str, str]:
    """Return settings in which `$seed` is replaced by the seed."""
    return {path: value.replace(SEED, str(seed)) for path, value in settings.items()}


def read_seed(settings: Mapping[str, str], section: str, seed: int) -> int:
    """Return the seed of a section of the settings, by default that of the cell.

    >>> read_seed({}, "pretrain", 3), read_seed({"pretrain.seed": "0"}, "pretrain", 3)
    (3, 0)
    """
    value = settings.get(f"{section}.seed", SEED).replace(SEED, str(seed))
    if not re.fullmatch(r"\d{1,18}", value):
        raise UsageError(f"'{section}.seed' must be a number or {SEED}, got '{value[:40]}'")
    return int(value)


def parse_list(value: str) -> list[str]:
    """Return the items of a list in JSON, or a single text as a list of itself."""
    items = parse_json(value, UsageError, value[:40]) if value.startswith("[") else [value]
    return [str(item) for item in items]


def parse_scalar(value: str) -> str | int | float | bool | None:
    """Return the value of a text: a number, true, false or null; other texts are themselves."""
    if value in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[value]
    if re.fullmatch(r"[+-]?[0-9]{1,40}", value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) and math.isfinite(float(value)) else value


def make_settings(pairs: Sequence[Mapping[str, str]]) -> Settings:
    """Return settings from pairs of path and value."""
    return tuple(Setting(path=pair["path"], value=pair["value"]) for pair in pairs)
