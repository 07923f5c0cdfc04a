"""Paths in run.json: as typed, relative to the run and absolute, so that a run finds them from any working directory.

    {"data": {"path": "data/books"}, "paths": {"data.path": {"relative": "../../data/books", "absolute": "/…"}}}

A run that was moved together with its data finds them by the relative path, one that was moved alone by the other.
"""

import copy
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from pretune.core.config import PathText, check_record
from pretune.core.errors import CheckpointError, DataError

PATHS_KEY = "paths"
MODEL_PATHS = ("base.path", "base.tokenizer", "objective.teacher", "train.init_from", "tune.distill.teacher")
DATA_PATHS = ("data.path", "task.train", "task.dev", "task.test", "task.data", "plan.forgetting", "plan.vectors")
"""Settings that name a file or directory."""


class PathRecord(TypedDict):
    """Places of a path when the run was started."""

    relative: str  # to the directory of the run
    absolute: str


class PathsFile(TypedDict, total=False):
    """run.json, as far as it describes its paths."""

    paths: dict[str, PathRecord]


class MovedPath(NamedTuple):
    """Path that is not where run.json says."""

    place: str
    typed: str  # in run.json


@dataclass(frozen=True, slots=True)
class LocatedSettings:
    """Settings of a run.json with its paths as they are found now.

    `moved` has the paths that are found elsewhere, `missing` the places of those that are not found.
    """

    tree: dict[str, Any]
    moved: dict[str, MovedPath]
    missing: dict[str, list[str]]

    def check(self, tree: Mapping[str, Any], optional: Collection[str] = ()) -> None:
        """Raise an error that names all places of the first path that is missing and that `tree` still has."""
        for name, places in self.missing.items():
            if name not in optional and get_path(tree, name) == get_path(self.tree, name):
                error = CheckpointError if name in MODEL_PATHS else DataError
                text = " or ".join(place[:500] for place in places)
                raise error(f"{name}: not found at {text}; move it back, or pass its new path")


def get_path(tree: Mapping[str, Any], name: str) -> str | None:
    """Return a path of a tree of settings by its name, such as `data.path`; None if there is none."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None


def describe_paths(tree: Mapping[str, Any], directory: str | os.PathLike[str]) -> dict[str, PathRecord]:
    """Return the places of the paths of a run in a directory; names of installed models and of the hub have none."""
    start = os.path.realpath(directory)
    records: dict[str, PathRecord] = {}
    for name in (*MODEL_PATHS, *DATA_PATHS):
        path = get_path(tree, name)
        if path and _find_file(path) is not None:
            relative = os.path.relpath(os.path.realpath(path), start)
            records[name] = {"relative": relative, "absolute": str(Path(path).absolute())}
    return records


def locate_paths(tree: Mapping[str, Any], directory: str | os.PathLike[str]) -> LocatedSettings:
    """Return the settings of the run in a directory, with paths as they are found from the working directory."""
    source = f"{os.fspath(directory)}: run.json"
    records = check_record(PathsFile, {**tree}, CheckpointError, source).get("paths", {})
    located_settings = LocatedSettings(copy.deepcopy({**tree}), {}, {})
    for name in (*MODEL_PATHS, *DATA_PATHS):
        path, record = get_path(tree, name), records.get(name)
        if path is None:
            continue
        check_record(PathText, path, CheckpointError, f"{source}: '{name}'")
        if record is None:
            continue
        near = os.path.normpath(Path(os.path.realpath(directory), record["relative"]))
        files = {place: file for place in (near, record["absolute"], path) if (file := _find_file(place)) is not None}
        if not files:
            located_settings.missing[name] = [*dict.fromkeys((near, record["absolute"]))]
        elif path not in files or not os.path.samestat(files[path], next(iter(files.values()))):
            located_settings.moved[name] = MovedPath(next(iter(files)), path)
            *sections, key = name.split(".")
            parent: Any = located_settings.tree
            for section in sections:
                parent = parent[section]
            parent[key] = next(iter(files))
    return located_settings


def _find_file(path: str) -> os.stat_result | None:
    """Return the status of a file or directory; None if there is none, or the name is impossible."""
    try:
        return Path(path).stat() if path else None
    except (OSError, ValueError):
        return None
