"""Inputs of a study: built-in corpora, the installed encoder, files below $PRETUNE_DATA, and other files."""

import glob
import hashlib
import os
from pathlib import Path
from typing import Any

from pretune.core.errors import PretuneError
from pretune.core.hub import INSTALLED_MODELS, is_short_name
from pretune.runs.prepare import TASK_PREFIX
from pretune.text.corpora.builtin import BUILTINS
from pretune.text.corpora.builtin import PREFIX as BUILTIN_PREFIX
from pretune.text.corpora.pairs import PREFIX as PAIR_PREFIX

DATA_VARIABLE = "$PRETUNE_DATA"
HUB_PREFIX = "hf:"
ENCODER = f"{BUILTIN_PREFIX}encoder"
ENCODER_NAME = "minilm"
"""Short name of the encoder that `builtin:encoder` names, too."""
MODEL_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.txt")
"""Files of a run that a result depends on: its model and tokenizer. A model card or a report may change."""
RUN_FOLDERS = ("checkpoints", "trials")
"""Folders of a run that are not a part of its model."""
MAX_WHOLE_BYTES, BLOCK_BYTES, SAMPLE_BLOCKS = 2**26, 2**16, 256
"""Size up to which all of a file is read for its digest, and the blocks that are read of a larger one."""


def locate(name: str, data: str | None) -> tuple[str, str | None]:
    """Return the path of a file, corpus or model, and the reason if it is missing."""
    path, _, problem = inspect_input(name, data)
    return path, problem


def inspect_input(name: str, data: str | None) -> tuple[str, int, str | None]:
    """Return the path of an input, its size in bytes (0: unknown), and the reason if it is missing."""
    if name == ENCODER or is_short_name(name):
        model = INSTALLED_MODELS[ENCODER_NAME if name == ENCODER else name]
        folder = model.find()
        if folder is None:
            return name, 0, f"'{name}': {model.remedy}"
        return str(folder), _sum_sizes(str(folder)), None
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


def identify_input(name: str, data: str | None) -> str | None:
    """Return a digest of the content of a file, corpus, model or tokenizer of the user; None if it is missing.

    None, too, for what has a fixed version: built-in corpora and models, tasks, and files below $PRETUNE_DATA.
    """
    if name.startswith((HUB_PREFIX, TASK_PREFIX, BUILTIN_PREFIX)) or DATA_VARIABLE in name or is_short_name(name):
        return None
    path = expand(name, data)
    digest, is_empty = hashlib.sha256(), True
    for part in path.removeprefix(PAIR_PREFIX).split(",") if path.startswith(PAIR_PREFIX) else [path]:
        is_model = Path(part).is_dir() and (Path(part) / "MANIFEST.json").is_file()
        for file in sorted(_list_files(part)):
            if not is_model or _is_model_file(file.relative_to(part)):
                _add_content(file, digest)
                is_empty = False
    return None if is_empty else digest.hexdigest()[:16]


def _is_model_file(file: Path) -> bool:
    """Return whether a file of a run, relative to it, is one of its model."""
    return file.parts[0] not in RUN_FOLDERS and any(file.match(pattern) for pattern in MODEL_FILES)


def _add_content(file: Path, digest: Any) -> None:
    """Add the name, size and content of a file to a digest; of a large one, blocks at equal distances."""
    size = file.stat().st_size
    digest.update(f"{file.name}\0{size}\0".encode())
    count = -(-size // BLOCK_BYTES) if size <= MAX_WHOLE_BYTES else SAMPLE_BLOCKS
    with file.open("rb") as stream:
        for number in range(count):
            stream.seek(
                number * BLOCK_BYTES if size <= MAX_WHOLE_BYTES else number * (size - BLOCK_BYTES) // (count - 1)
            )
            digest.update(stream.read(BLOCK_BYTES))


def _sum_sizes(pattern: str) -> int:
    return sum(file.stat().st_size for file in _list_files(pattern))


def _list_files(pattern: str) -> list[Path]:
    """Return a file, the files that match a pattern, or those of a folder."""
    paths = [Path(pattern)] if Path(pattern).exists() else [Path(path) for path in glob.glob(pattern, recursive=True)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return [file for file in files if file.is_file()]
