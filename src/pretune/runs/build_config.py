"""From wishes to settings: a name with options, a whole tree, or a part of one."""

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
from pretune.data.prepare import PreparedData
from pretune.runs.config import SECTIONS, PretrainConfig, read_objective, refuse_conflicts
from pretune.runs.defaults import RUN_FILE, build_default_config, replace_heads
from pretune.runs.duration import LENGTHS, fit_schedule, parse_duration

OPTION_PATHS = {"data.path": "data", "objective.kind": "objective", "train.start": "start", "model.name": "model"}
"""Paths that are wishes of their own."""


def build_pretrain_config(
    model: str | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    objective: str | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    budget: str | float | None = None,
    start: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | PretrainConfig | str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> PretrainConfig:
    """The settings of a run: what its paper did, or a tree that is given, with what is wished for changed.

    `settings` may be a tree, whole or in part, or the file with one: a run.json, or YAML. `changes` go before it, and
    the other wishes before both.
    """
    length = {"steps": steps, "tokens": tokens, "epochs": epochs}
    length["budget"] = parse_duration(budget) if isinstance(budget, str) else budget
    given = {name: value for name, value in length.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"a run has one length, found {' and '.join(given)}; keep one")
    tree = read_tree(settings)
    wishes: dict[str, Any] = {"model": model, "data": data, "objective": objective, "start": start}
    options = {path: wishes[name] for path, name in OPTION_PATHS.items()}
    refuse_conflicts(options | {f"train.{name}": value for name, value in length.items()}, changes or {})
    if all(isinstance(tree.get(name), Mapping) for name in SECTIONS) and "kind" in tree["model"]:
        return _override_config(PretrainConfig.from_dict(tree), {**wishes, **given}, dict(changes or {}))
    inner = {**dict(_flatten_tree(tree)), **(changes or {})}
    for path, name in OPTION_PATHS.items():
        value = inner.pop(path, None)
        if value is not None and not isinstance(value, str | os.PathLike):
            raise UsageError(f"{path}: expected a text, found {format_value(value)}")
        wishes[name] = value if wishes[name] is None else wishes[name]
    if wishes["data"] is None or (wishes["model"] is None and wishes["start"] is None):
        raise UsageError("a run needs a model and --data; or a --config that names them")
    return build_default_config(
        wishes["model"] or "",
        data=os.fspath(wishes["data"]),
        objective=wishes["objective"],
        start=None if wishes["start"] is None else os.fspath(wishes["start"]),
        device=resolve_device(device).partition(":")[0],
        length=given,
        changes=inner,
    )


def _override_config(settings: PretrainConfig, overrides: Mapping[str, Any], changes: dict[str, Any]) -> PretrainConfig:
    """A whole tree with some things changed; its model stays, but for heads that go with another objective."""
    if overrides["model"] is not None:
        raise UsageError(
            f"the settings have a model; leave '{overrides['model']}' out, or change it with --set model.…"
        )
    if overrides["objective"] is not None and overrides["objective"] != config.get_kind(settings.objective):
        chosen = read_objective(overrides["objective"])
        settings = replace(settings, objective=chosen, model=replace_heads(settings.model, chosen))
    length = {f"train.{name}": value for name in LENGTHS if (value := overrides.get(name)) is not None}
    if length or any(f"train.{name}" in changes for name in LENGTHS):
        length = {**{f"train.{name}": None for name in LENGTHS}, **length}
    paths = {"data": "data.path", "start": "train.start"}
    wished = {paths[name]: os.fspath(overrides[name]) for name in paths if overrides[name] is not None}
    if not (length or wished or changes):
        return settings
    settings = settings.replace({**length, **wished, **changes})
    return fit_schedule(settings, PreparedData.open(settings.data.path).tokens, changes) if length else settings


def read_tree(settings: Mapping[str, Any] | PretrainConfig | str | os.PathLike[str] | None) -> dict[str, Any]:
    """A tree of settings, from wherever it is."""
    if isinstance(settings, PretrainConfig):
        return settings.to_dict()
    if settings is None or isinstance(settings, Mapping):
        return dict(settings or {})
    file = Path(settings) / RUN_FILE if Path(settings).is_dir() else Path(settings)
    return io.read_json(file, UsageError) if file.suffix == ".json" else read_yaml(file)


def _flatten_tree(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A tree that says only some things, as paths with values."""
    alone = {"model": "model.name", "objective": "objective.kind", "data": "data.path"}
    for section, values in tree.items():
        if isinstance(values, Mapping) and section in SECTIONS:
            yield from _flatten_section(section, values)
        elif section in alone and isinstance(values, str):
            yield alone[section], values
        elif section != "found":
            there = f"there are {', '.join(SECTIONS)}"
            if section in SECTIONS:
                raise UsageError(f"the section '{section}' holds settings, found {type(values).__name__}; {there}")
            raise UsageError(f"unknown section '{section}'{suggest(section, SECTIONS)}; {there}")


def _flatten_section(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What lies inside; a part that names its kind is one value, for another kind has other settings."""
    for name, value in values.items():
        if isinstance(value, Mapping) and "kind" not in value:
            yield from _flatten_section(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


def resolve_device(device: str | None) -> str:
    """The device that is wished for, which has to be there; or a GPU that is found, or the processor."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (":" in device and not (kind == "cuda" and index.isdecimal())):
        raise UsageError(f"unknown device '{device[:40]}'; there are cpu and cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device '{device[:40]}': torch finds no GPU here; use --device cpu")
    if index and int(index[:9]) >= torch.cuda.device_count():
        raise ResourceError(
            f"device '{device[:40]}': torch finds {torch.cuda.device_count()} GPUs here, from cuda:0 on"
        )
    return device
