"""Building the config of a pre-training run from options, overrides, and a whole or partial settings tree."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pretune.core import config, io
from pretune.core.config.read import format_value
from pretune.core.config.yaml import read_yaml
from pretune.core.errors import ResourceError, UsageError, suggest
from pretune.core.migration import FORMAT_KEY, migrate_run, refuse_old_settings, refuse_old_tree
from pretune.data.prepared_data import PreparedData
from pretune.runs.config import SECTIONS, PretrainConfig, read_objective, refuse_conflicts
from pretune.runs.defaults import RUN_FILE, build_default_config, replace_heads
from pretune.runs.duration import LENGTHS, fit_schedule, parse_duration

OPTION_PATHS = {
    "data.path": "data",
    "objective.kind": "objective",
    "train.init_from": "init_from",
    "model.name": "model",
}
"""Paths that are also arguments, by the name of the argument."""


def build_pretrain_config(
    model: str | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    objective: str | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    budget: str | float | None = None,
    init_from: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | PretrainConfig | str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> PretrainConfig:
    """Return the config of a run: the paper's defaults, or the tree in `settings`, with overrides.

    `settings` is a whole or partial tree, or a file with one: a run.json, or YAML. `changes` (paths and values, as
    `--set` takes them) override it, and the other arguments override both. `init_from` is a directory of initial
    weights. Invalid or contradictory values are a UsageError.
    """
    refuse_old_settings(changes or {})
    lengths = {"steps": steps, "tokens": tokens, "epochs": epochs}
    lengths["budget"] = parse_duration(budget) if isinstance(budget, str) else budget
    length = {name: value for name, value in lengths.items() if value is not None}
    if len(length) > 1:
        raise UsageError(f"a run has one length, got {' and '.join(length)}; keep one")
    tree = read_tree(settings)
    arguments: dict[str, Any] = {"model": model, "data": data, "objective": objective, "init_from": init_from}
    options = {path: arguments[name] for path, name in OPTION_PATHS.items()}
    refuse_conflicts(options | {f"train.{name}": value for name, value in lengths.items()}, changes or {})
    if all(isinstance(tree.get(name), Mapping) for name in SECTIONS) and "kind" in tree["model"]:
        return _override_config(PretrainConfig.from_dict(tree), {**arguments, **length}, dict(changes or {}))
    inner = {**dict(_flatten_tree(tree)), **(changes or {})}
    for path, name in OPTION_PATHS.items():
        value = inner.pop(path, None)
        if value is not None and not isinstance(value, str | os.PathLike):
            raise UsageError(f"{path}: expected a text, got {format_value(value)}")
        arguments[name] = value if arguments[name] is None else arguments[name]
    if arguments["data"] is None or (arguments["model"] is None and arguments["init_from"] is None):
        raise UsageError("a run needs a model and --data; or a --config that names them")
    return build_default_config(
        arguments["model"] or "",
        data=os.fspath(arguments["data"]),
        objective=arguments["objective"],
        init_from=None if arguments["init_from"] is None else os.fspath(arguments["init_from"]),
        device=resolve_device(device).partition(":")[0],
        length=length,
        changes=inner,
    )


def _override_config(settings: PretrainConfig, overrides: Mapping[str, Any], changes: dict[str, Any]) -> PretrainConfig:
    """Return a whole config with overrides; its model stays, except for the heads of another objective."""
    if overrides["model"] is not None:
        raise UsageError(
            f"the settings contain a model; leave '{overrides['model']}' out, or change it with --set model.…"
        )
    if overrides["objective"] is not None and overrides["objective"] != config.get_kind(settings.objective):
        objective = read_objective(overrides["objective"])
        settings = replace(settings, objective=objective, model=replace_heads(settings.model, objective))
    length = {f"train.{name}": value for name in LENGTHS if (value := overrides.get(name)) is not None}
    if length or any(f"train.{name}" in changes for name in LENGTHS):
        length = {**{f"train.{name}": None for name in LENGTHS}, **length}
    paths = {"data": "data.path", "init_from": "train.init_from"}
    files = {paths[name]: os.fspath(overrides[name]) for name in paths if overrides[name] is not None}
    if not (length or files or changes):
        return settings
    settings = settings.replace({**length, **files, **changes})
    return fit_schedule(settings, PreparedData.open(settings.data.path).tokens, changes) if length else settings


def read_tree(settings: Mapping[str, Any] | PretrainConfig | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return a tree of settings from a config, a mapping, a YAML file, or the run.json of a run of any format."""
    return settings.to_dict() if isinstance(settings, PretrainConfig) else read_settings(settings)


def read_settings(settings: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return a tree of settings; old names are migrated in a JSON file and refused in YAML and mappings."""
    if settings is None or isinstance(settings, Mapping):
        return refuse_old_tree(settings or {})
    file = Path(settings) / RUN_FILE if Path(settings).is_dir() else Path(settings)
    if file.suffix == ".json":
        return migrate_run(io.read_json(file, UsageError), UsageError, str(file))
    return refuse_old_tree(read_yaml(file))


def _flatten_tree(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values of a partial tree."""
    shorthands = {"model": "model.name", "objective": "objective.kind", "data": "data.path"}
    for section, values in tree.items():
        if isinstance(values, Mapping) and section in SECTIONS:
            yield from _flatten_section(section, values)
        elif section in shorthands and isinstance(values, str):
            yield shorthands[section], values
        elif section not in (FORMAT_KEY, "environment"):
            allowed_sections = f"expected: {', '.join(SECTIONS)}"
            if section in SECTIONS:
                raise UsageError(
                    f"the section '{section}' must hold settings, got {type(values).__name__} ({allowed_sections})"
                )
            raise UsageError(f"unknown section '{section}'{suggest(section, SECTIONS)} ({allowed_sections})")


def _flatten_section(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield paths and values; a part that names its kind is one value, because each kind has its own fields."""
    for name, value in values.items():
        if isinstance(value, Mapping) and "kind" not in value:
            yield from _flatten_section(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


def resolve_device(device: str | None) -> str:
    """Return the requested device, which must exist; by default a GPU where there is one, else the CPU."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (":" in device and not (kind == "cuda" and index.isdecimal())):
        raise UsageError(f"unknown device '{device[:40]}' (allowed: cpu, cuda, cuda:N)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device '{device[:40]}': torch finds no GPU; use --device cpu")
    if index and int(index[:9]) >= torch.cuda.device_count():
        raise ResourceError(
            f"device '{device[:40]}': torch finds {torch.cuda.device_count()} GPUs, numbered from cuda:0"
        )
    return device
