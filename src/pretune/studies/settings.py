"""Settings of a row of a study: their paths, and the options of public functions that they become.

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
    recipe.shape|flops                 model, tokenizer, objective and training that a recipe chooses
    evaluate.limit|calibrate|…         of `pt.evaluate`

`$seed` in a value is the seed of the cell, null removes the option of another layer, and `row:NAME` names the model of
another row.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from pretune.core.api import Options
from pretune.core.config import Count, Number, PathText, check_record
from pretune.core.config.read import format_value
from pretune.core.errors import UsageError, find_synonyms, suggest
from pretune.core.io import parse_json
from pretune.studies.spec import Measure, Scale, Setting, Settings, Study, check_name

O = TypeVar("O", bound=Options)
SEED, RECIPE = "$seed", "recipe."
ROW_PREFIX = "row:"
TYPES: Mapping[str, Any] = {
    "text": str,
    "path": PathText,
    "texts": list[str],
    "count": Count,
    "number": Number,
    "flag": bool,
    "value": Any,
    "examples": Count | Literal["all"],
}
_OPTIONS = """
tokenizer: kind=text vocab=count style=text lowercase=flag strip_accents=flag min_frequency=count alphabet=count
  sample_bytes=count seed=count path=path corpus=texts
prepare: valid=texts holdout=value by=text field=text errors=text clean=texts near=value lang=text sentences=text
pretrain: objective=text steps=value tokens=value epochs=value seconds=value init_from=path teacher=path seed=count
finetune: task=text train=path dev=path test=path type=text text=text pair=text label=text method=text epochs=number
  steps=count train_examples=examples teacher=path force=flag seed=count
embeddings: task=text train=path dev=path loss=value pooling=value normalise=value length=value batch=value
  epochs=value steps=value lr=value warmup=value weight_decay=value clip=value seed=count
vectors: kind=text mode=text width=count window=count epochs=count min_count=count max_words=count seed=count
recipe: shape=text flops=number
evaluate: split=text limit=count seed=count prompt=text text_to_text=flag length=text calibrate=flag order=text
  window=count stride=count words=flag data=path pooling=text
"""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    name: {option: TYPES[kind] for option, kind in (item.split("=") for item in rest.split())}
    for name, rest in (line.split(":") for line in re.split(r"\n(?=\w)", _OPTIONS.strip()))
}
"""Options of the functions that a study calls, by section, with their types; those of a config are checked with it."""
CONFIG_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "pretrain": ("model", "objective", "data", "train"),
    "finetune": ("base", "task", "method", "tune", "data", "train"),
}
"""Sections of the configs of runs, whose paths are settings too."""
TOP_LEVEL: Mapping[str, Any] = {"corpus": list[str], "model": str, "base": PathText, "baseline": str}
KIND_PATHS = ("pretrain.objective", "finetune.method")
"""Options that name a kind, whose fields are settings below them."""
INDEPENDENT_PATHS = ("model", "finetune.task", "finetune.train")
"""Options with the name of a section of a config, whose settings do not depend on them."""
_FLOAT = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """Settings of a row for a measure, by path, with the seed of a cell."""

    values: Mapping[str, Any]
    seed: int

    def get(self, path: str) -> str | None:
        """Return a setting that is a name or a path."""
        value: str | None = self.values.get(path)
        return value

    def get_corpora(self, path: str = "corpus") -> tuple[str, ...]:
        """Return the corpora of a path, by default those of the row."""
        return tuple(self.values.get(path, self.values.get("corpus", ())))

    def has_section(self, section: str) -> bool:
        """Return whether an option of a section is set."""
        return any(path.startswith(f"{section}.") for path in self.values)

    @property
    def is_pretrained(self) -> bool:
        """True if the study pre-trains the model of the row."""
        return self.get("model") is not None and self.get("base") is None

    def fill_seed(self, section: str = "") -> "RowSettings":
        """Return the settings with the seed of a section, by default that of the cell, in place of `$seed`.

        >>> RowSettings(values={"finetune.seed": 0, "finetune.task.split_seed": "$seed"}, seed=3).fill_seed("finetune")
        RowSettings(values={'finetune.seed': 0, 'finetune.task.split_seed': 0}, seed=0)
        """
        seed = _fill(self.values.get(f"{section}.seed", self.seed), self.seed)
        if not isinstance(seed, int):
            raise UsageError(f"'{section}.seed' must be a number or {SEED}, got {format_value(seed, 40)}")
        return RowSettings(values={path: _fill(value, seed) for path, value in self.values.items()}, seed=seed)

    def read(self, section: str, default: O) -> O:
        """Return the options of a public function with the settings of a section; those of a run have its seed."""
        values = {
            path.removeprefix(f"{section}."): value
            for path, value in self.values.items()
            if path.startswith(f"{section}.")
        }
        seconds = values.pop("seconds", None)
        values["budget"] = float(seconds) if isinstance(seconds, int) else seconds  # as that of a budget
        if values.get("train_examples") == "all":
            del values["train_examples"]
        names = {field.name for field in fields(default)}  # type: ignore[arg-type]
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in names and value is not None
        }
        if section in CONFIG_SECTIONS:
            place = "objective.base." if options.get("teacher") else "objective."  # that of a teacher is around it
            config = {path.replace("objective.", place, 1): value for path, value in values.items() if "." in path}
            options["overrides"] = {**config, "train.seed": self.seed}
        return replace(default, **options)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class RowLayers:
    """Settings of the rows of a study at a scale, in layers."""

    study: Study
    scale: Scale
    overrides: Settings
    build_base: Callable[[RowSettings, str | None], Settings]  # of the recipe that a row names, and for its model

    def merge(self, row_name: str, seed: int, measure: Measure | None = None) -> RowSettings:
        """Return the settings of a row for a measure; later layers go before earlier ones."""
        rows = {row.name: row for row in (*self.study.list_rows(), *self.study.bases)}
        check_name("row:", row_name, rows)
        layers: list[Settings] = [self.study.settings, self.scale.settings, rows[row_name].settings]
        layers += [entry.settings for entry in self.scale.row_settings if entry.name == row_name]
        if measure is not None:
            layers.append(measure.settings)
            layers += [entry.settings for entry in self.scale.measure_settings if entry.name == measure.name]
        settings = RowSettings(values=merge_settings(*self._insert_base([*layers, self.overrides])), seed=seed)
        names = [name for name in ("model", "base") if settings.get(name)]
        if names and settings.get("baseline") is None and settings.has_section("vectors"):
            raise UsageError(f"both '{names[0]}' and 'vectors' are set; a row has one model, remove one of them")
        return settings

    def _insert_base(self, layers: list[Settings]) -> list[Settings]:
        """Return the layers with the settings of a recipe below the first one that names it: all layers change them."""
        places = [place for place, layer in enumerate(layers) if any(s.path.startswith(RECIPE) for s in layer)]
        if not places:
            return layers
        earlier_layers, later_layers = layers[: places[0]], layers[places[0] :]
        model = merge_settings(*later_layers).get("model")
        base = self.build_base(RowSettings(values=merge_settings(*layers), seed=0), model)
        return [*earlier_layers, base, *later_layers]


def _fill(value: Any, seed: int) -> Any:
    """Return a value with a seed in place of `$seed`."""
    if isinstance(value, Mapping):
        return {name: _fill(item, seed) for name, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, seed) for item in value]
    return parse_scalar(value.replace(SEED, str(seed))) if isinstance(value, str) and SEED in value else value


def read_settings(tree: object, location: str) -> Settings:
    """Return the settings of a nested or dotted mapping as paths and values; unknown paths are errors."""
    if not isinstance(tree, Mapping):
        raise UsageError(
            f"{location}: expected settings such as 'pretrain.objective: masked', got {format_value(tree)}"
        )
    values: dict[str, object] = {}
    for path, value in _iterate_leaves("", tree):
        check_path(path, location)
        if path in values:
            raise UsageError(f"{location}: '{path}' is set twice; keep one")
        section, _, option = path.partition(".")
        annotation = OPTIONS.get(section, {}).get(option) if option else TOP_LEVEL[section]
        values[path] = _read_value(value, annotation)
        if annotation is not None and value is not None and not (isinstance(value, str) and SEED in value):
            check_record(annotation, values[path], UsageError, f"{location}: {path}", "")
    return tuple(Setting(path=path, value=value) for path, value in values.items())


def _read_value(value: Any, annotation: Any) -> Any:
    """Return a value with its type: YAML reads `3e-4` as text, and `--set` gives text alone."""
    if isinstance(value, str):
        if annotation == list[str]:
            return parse_json(value, UsageError, value[:40]) if value.startswith("[") else [value]
        is_number = annotation not in (None, str, PathText) or ("e" in value.lower() and _FLOAT.fullmatch(value))
        return parse_scalar(value) if is_number else value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {name: _read_value(item, None) for name, item in value.items()}
    return [_read_value(item, None) for item in value] if isinstance(value, list | tuple) else value


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
    if section in OPTIONS:
        options = [*OPTIONS[section], *(f"{name}.…" for name in CONFIG_SECTIONS.get(section, ()))]
        names = f"{section} allows: {', '.join(options)}"
    else:
        names = f"allowed: {', '.join([*TOP_LEVEL, *OPTIONS])}"
    raise UsageError(f"{location}: unknown setting '{path[:80]}'{hint} ({names})")


def format_setting(value: object) -> str:
    """Return a value as reports print it and as `--set` takes it; equal numbers have equal texts.

    >>> format_setting("3e-4"), format_setting(0.0003), format_setting(True), format_setting([1, 2])
    ('0.0003', '0.0003', 'true', '[1, 2]')
    """
    if isinstance(value, bool) or value is None:
        return format_value(value)
    if isinstance(value, str):
        return format_setting(float(value)) if _FLOAT.fullmatch(value) and math.isfinite(float(value)) else value
    if isinstance(value, int | float):
        return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def merge_settings(*layers: Settings) -> dict[str, Any]:
    """Return settings by path; later layers go before earlier ones, and a new kind before the fields of another.

    A layer that sets `pretrain.objective` drops the settings `pretrain.objective.…` of earlier layers.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        changed_paths = {setting.path for setting in layer if values.get(setting.path) != setting.value}
        values = {
            path: value
            for path, value in values.items()
            if not any(path.startswith(f"{parent}.") for parent in changed_paths if parent not in INDEPENDENT_PATHS)
        }
        values |= {setting.path: setting.value for setting in layer}
    return values


def parse_scalar(value: str) -> str | int | float | bool | None:
    """Return the value of a text: a number, true, false or null; other texts are themselves."""
    if value in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[value]
    if re.fullmatch(r"[+-]?[0-9]{1,40}", value):
        return int(value)
    return float(value) if _FLOAT.fullmatch(value) and math.isfinite(float(value)) else value
