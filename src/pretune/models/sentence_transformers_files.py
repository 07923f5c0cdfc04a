"""Files of sentence-transformers in a model directory; kept unchanged and saved with the model.

`modules.json` lists the modules after the transformer (pooling, dense layer, norm), each in its own folder.
"""

from collections.abc import Mapping
from pathlib import Path

from pretune.core import io
from pretune.core.errors import CheckpointError

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE_PATTERN = "sentence_*_config.json"
"""File with the maximum sequence length; its name differs between releases."""

MODULE_FILES = ("config.json", "model.safetensors")
"""Files that are kept from the folder of a module."""

MAX_FILE_BYTES = 256 << 20


def read(folder: Path) -> dict[str, bytes]:
    """Read the files of a directory, by relative path; empty if it has no modules.json."""
    main = folder / MODULES_FILE
    if not main.is_file():
        return {}
    files = [main, folder / PROMPTS_FILE, *sorted(folder.glob(LENGTH_FILE_PATTERN))]
    files += [module / inside for module in _list_folders(main) for inside in MODULE_FILES]
    return {file.relative_to(folder).as_posix(): _read_bytes(file) for file in files if file.is_file()}


def write(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write the files; return the names of those at the top level."""
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        io.atomic_write(folder / name, data)
    return [name for name in files if "/" not in name]


def _list_folders(main: Path) -> list[Path]:
    """Return the folders that modules.json names, except the directory itself."""
    entries = io.parse_json(_read_bytes(main).decode(errors="replace"), CheckpointError, str(main))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "path" in entry for entry in entries):
        raise CheckpointError(f"{main}: expected a list of modules, each with a 'type' and a 'path'")
    paths = [entry["path"] for entry in entries if entry["path"] != ""]
    return [io.resolve_inside(main.parent, path, CheckpointError, main) for path in paths]


def _read_bytes(file: Path) -> bytes:
    return io.read_bounded(file, CheckpointError, MAX_FILE_BYTES)
