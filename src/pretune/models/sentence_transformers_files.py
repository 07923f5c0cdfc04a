"""The files that make a model's directory one of sentence-transformers: kept as they are, read by `use`, saved again.

`modules.json` lists what follows the transformer (pooling, a dense layer, a norm), each in a folder of its own.
"""

from collections.abc import Mapping
from pathlib import Path

from pretune.core import io
from pretune.core.errors import CheckpointError

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTH = "sentence_*_config.json"
"""Where the longest text is said; its name differs between releases."""

INSIDE = ("config.json", "model.safetensors")
"""What is kept of the folder of a module."""

LIMIT = 256 << 20


def read(folder: Path) -> dict[str, bytes]:
    """Every such file of a directory by its path in it; none where the directory has no modules."""
    main = folder / MODULES
    if not main.is_file():
        return {}
    found = [main, folder / PROMPTS, *sorted(folder.glob(LENGTH))]
    found += [module / inside for module in _folders(main) for inside in INSIDE]
    return {file.relative_to(folder).as_posix(): _bytes(file) for file in found if file.is_file()}


def write(folder: Path, kept: Mapping[str, bytes]) -> list[str]:
    """Write them again; the names of those that lie right in the directory."""
    for name, data in kept.items():
        (folder / name).parent.mkdir(exist_ok=True)
        io.atomic_write(folder / name, data)
    return [name for name in kept if "/" not in name]


def _folders(main: Path) -> list[Path]:
    """The folders that the list names, but for the directory itself."""
    listed = io.parse_json(_bytes(main).decode(errors="replace"), CheckpointError, str(main))
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and "path" in entry for entry in listed):
        raise CheckpointError(f"{main}: expected a list of modules, each with a 'type' and a 'path'")
    paths = [entry["path"] for entry in listed if entry["path"] != ""]
    return [io.resolve_inside(main.parent, path, CheckpointError, main) for path in paths]


def _bytes(file: Path) -> bytes:
    return io.read_bounded(file, CheckpointError, LIMIT)
