"""The files that make a model's directory one of sentence-transformers: kept as they are, read by `use`, saved again.

`modules.json` lists what follows the transformer (pooling, a dense layer, a norm), each in a folder of its own.
"""

from collections.abc import Mapping
from pathlib import Path

from pretune.core import io
from pretune.core.errors import CheckpointError

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE_PATTERN = "sentence_*_config.json"
"""Where the longest text is said; its name differs between releases."""

MODULE_FILES = ("config.json", "model.safetensors")
"""What is kept of the folder of a module."""

MAX_FILE_BYTES = 256 << 20


def read(folder: Path) -> dict[str, bytes]:
    """Every such file of a directory by its path in it; none where the directory has no modules."""
    main = folder / MODULES_FILE
    if not main.is_file():
        return {}
    found = [main, folder / PROMPTS_FILE, *sorted(folder.glob(LENGTH_FILE_PATTERN))]
    found += [module / inside for module in _list_folders(main) for inside in MODULE_FILES]
    return {file.relative_to(folder).as_posix(): _read_bytes(file) for file in found if file.is_file()}


def write(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write them again; the names of those that lie right in the directory."""
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        io.atomic_write(folder / name, data)
    return [name for name in files if "/" not in name]


def _list_folders(main: Path) -> list[Path]:
    """The folders that the list names, but for the directory itself."""
    listed = io.parse_json(_read_bytes(main).decode(errors="replace"), CheckpointError, str(main))
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and "path" in entry for entry in listed):
        raise CheckpointError(f"{main}: expected a list of modules, each with a 'type' and a 'path'")
    paths = [entry["path"] for entry in listed if entry["path"] != ""]
    return [io.resolve_inside(main.parent, path, CheckpointError, main) for path in paths]


def _read_bytes(file: Path) -> bytes:
    return io.read_bounded(file, CheckpointError, MAX_FILE_BYTES)
