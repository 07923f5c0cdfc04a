"""Reading of studies: built-in ones by name, others from a YAML file.

The file has the fields of `Study`; rows, measures, factors, scales and settings are written as mappings by name. See
docs/studies.md.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pretune.core.config import from_dict
from pretune.core.config.read import format_value, read_yaml
from pretune.core.config.specs import get_fields
from pretune.core.errors import UsageError, explain_missing, suggest
from pretune.core.log import parse_count, parse_duration
from pretune.studies import list_study_files
from pretune.studies.settings import read_settings
from pretune.studies.spec import GridFactor, Measure, Row, Scale, Study

Tree = dict[str, Any]
"""Plain data of a file, with the parts that are read so far as specs."""
Reader = Callable[[object, str], object]
SUFFIXES = (".yaml", ".yml")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def load_study(name: str) -> Study:
    """Return a built-in study by name, or the study in a YAML file; a problem is a UsageError that names its place."""
    files = list_study_files()
    if name in files:
        return read_study(read_yaml(files[name]), name)
    path = Path(name)
    if path.suffix.lower() not in SUFFIXES:
        names = ", ".join(files)
        raise UsageError(f"unknown study '{name[:80]}'{suggest(name, files)} (built in: {names}; or a .yaml file)")
    if not path.is_file():
        raise UsageError(f"{path}: {explain_missing(path)}")
    return read_study(read_yaml(path), path.stem.lower().replace("_", "-").replace(" ", "-"), str(path))


def read_study(tree: Mapping[str, object], name: str, source: str = "") -> Study:
    """Return the study of a plain tree; `source` names it in errors."""
    place = source or f"study '{name}'"
    values: Tree = {"name": name, **tree}
    if not isinstance(values["name"], str) or not _NAME.fullmatch(values["name"]):
        raise UsageError(f"{place}: 'name' must be lower-case words joined by '-', got {format_value(values['name'])}")
    return from_dict(Study, _read_parts(values, _STUDY_READERS, f"{place}: "), place)


def _read_parts(values: Mapping[str, object], readers: Mapping[str, Reader], place: str) -> Tree:
    return {key: readers[key](value, f"{place}{key}") if key in readers else value for key, value in values.items()}


def _iterate_named(tree: object, location: str, content: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield names, values and their places; the values are mappings if `content` describes them."""
    if not isinstance(tree, Mapping) or not tree:
        raise UsageError(f"{location}: expected names with settings below them, got {format_value(tree)}")
    for name, value in tree.items():
        place = f"{location}.{name}"
        if content and not isinstance(value, Mapping):
            raise UsageError(f"{place}: expected {content}, got {format_value(value)}")
        yield str(name), value, place


def _read_rows(tree: object, location: str) -> list[Row]:
    return [
        Row(name=name, settings=read_settings({} if value is None else value, place))
        for name, value, place in _iterate_named(tree, location)
    ]


def _read_grid(tree: object, location: str) -> list[GridFactor]:
    """Read factors: names with levels and their settings, or the path of a setting with a list of its values."""
    factors = []
    for name, value, place in _iterate_named(tree, location):
        if isinstance(value, list):
            label = name.rpartition(".")[2]
            value = {f"{label} {_format_level(item)}": {name: item} for item in value}
        rows = _read_rows(value, place)
        factors.append(GridFactor(name=name, levels=tuple(rows)))
    return factors


def _format_level(value: object) -> str:
    return str(value.get("kind", value)) if isinstance(value, Mapping) else str(value)


def _read_measures(tree: object, location: str) -> list[Tree]:
    """Read measures; the fields of the quantity stand beside those of the measure."""
    names = [name for name in get_fields(Measure) if name not in ("name", "quantity")]
    measures = []
    for name, value, place in _iterate_named(tree, location, "a kind, such as 'kind: validation'"):
        fields = {key: item for key, item in value.items() if key in names}
        quantity = {key: item for key, item in value.items() if key not in names}
        if "settings" in fields:
            fields["settings"] = read_settings(fields["settings"], place)
        measures.append({"name": name, "quantity": quantity, **fields})
    return measures


def _read_scales(tree: object, location: str) -> list[Tree]:
    scales = []
    for name, value, place in _iterate_named(tree, location, "the fields of a scale"):
        fields = _read_parts(value, _SCALE_READERS, f"{place}.")
        for key in fields:
            if key not in get_fields(Scale):
                raise UsageError(f"unknown key '{place}.{key}'{suggest(str(key), get_fields(Scale))}")
        scales.append({"name": name, "scale": fields})
    return scales


def _read_levels(tree: object, location: str) -> list[Tree]:
    return [
        {"factor": factor, "levels": [str(level) for level in levels]}
        for factor, levels, _ in _iterate_named(tree, location)
    ]


def _read_budget(tree: object, location: str) -> object:
    """Read a budget: counts may have a suffix (2M, 1.5B), FLOPs an exponent, times a unit (90s, 10m)."""
    if not isinstance(tree, Mapping):
        return tree
    values: Tree = {**tree}
    for key, value in tree.items():
        if isinstance(value, str):
            if key in ("tokens", "parameters"):
                values[key] = parse_count(value, f"{location}.{key}")
            elif key == "seconds":
                values[key] = parse_duration(value)
            elif key == "flops":
                values[key] = _parse_flops(value, f"{location}.{key}")
    return values


def _parse_flops(text: str, location: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{location}: expected a number such as 1e15, got '{text[:40]}'") from None


def _read_paper(tree: object, location: str) -> object:
    """Read a source: its table has rows by name."""
    if not isinstance(tree, Mapping) or not isinstance(tree.get("table"), Mapping):
        return tree
    table: Tree = {**tree["table"]}
    if isinstance(table.get("rows"), Mapping):
        table["rows"] = [{"name": str(name), "values": values} for name, values in table["rows"].items()]
    return {**tree, "table": table}


_SCALE_READERS: Mapping[str, Reader] = {
    "settings": read_settings,
    "row_settings": _read_rows,
    "measure_settings": _read_rows,
    "levels": _read_levels,
    "budget": _read_budget,
}
_STUDY_READERS: Mapping[str, Reader] = {
    "settings": read_settings,
    "rows": _read_rows,
    "bases": _read_rows,
    "grid": _read_grid,
    "measures": _read_measures,
    "scales": _read_scales,
    "budget": _read_budget,
    "paper": _read_paper,
}
