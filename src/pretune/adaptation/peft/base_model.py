"""Base model of an adapter: the stored paths, and the directories where it may be."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.hub import PREFIX, is_hub, resolve_path

MAX_PATH = 4096
"""Maximum characters of a path that is looked up; no system has longer ones."""


def build_base_paths(base: str | None, directory: str | Path) -> dict[str, str | None]:
    """Return the base model's paths for `adapter.json`: absolute, and relative to the adapter's directory.

    A path that does not exist is stored unchanged, and is looked up relative to the adapter.
    """
    if base is None or is_hub(base) or not Path(base).is_dir():
        return {"path": base}
    absolute = str(Path(base).resolve())
    try:
        return {"path": absolute, "relative": os.path.relpath(absolute, Path(directory).resolve())}
    except ValueError:  # on another drive (Windows)
        return {"path": absolute}


def resolve_reference_path(base: str | None) -> str | None:
    """Return the base model's path for `adapter_config.json`: an absolute path, or a name on the hub."""
    if base is None or not is_hub(base):
        return None if base is None else str(Path(base).resolve())
    return base.removeprefix(PREFIX).partition("@")[0]


def find_base_directories(folder: Path, base_info: Mapping[str, Any], base: str | Path | None = None) -> list[Path]:
    """Return the candidate directories of an adapter's base model, best first; `base` is the only one if given.

    A path stored by earlier releases is relative to the working directory of the run, or to the adapter.
    """
    if base is not None:
        place = resolve_path(base)
        if not place.is_dir():
            raise CheckpointError(f"{place}: no such directory; --base must be the base model of {folder}")
        return [place]
    relative, path = (_check_path(folder, base_info.get(name)) for name in ("relative", "path"))
    places = [] if relative is None else [folder / relative]
    if path is not None:
        places += [resolve_path(path)] if is_hub(path) else [Path(path), folder / path]
    if not places:
        raise CheckpointError(
            f"{folder}: no base model is stored with this adapter; pass it with --base DIR (Python: base=)"
        )
    distinct = {os.path.realpath(place): place for place in reversed(places) if place.is_dir()}
    if not distinct:
        raise CheckpointError(
            f"{folder}: base model {format_value(path or relative)} not found; pass it with --base DIR (Python: base=)"
        )
    return [*reversed(distinct.values())]


def _check_path(folder: Path, path: object) -> str | None:
    if path is None:
        return None
    if not isinstance(path, str) or not path or len(path) > MAX_PATH or "\0" in path:
        raise CheckpointError(f"{folder}: invalid base model path {format_value(path)}; pass it with --base DIR")
    return path
