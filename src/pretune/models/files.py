"""Safetensors files: what they hold without reading it, the values when asked, and writing them in shards.

Nothing here unpickles. A pickle is recognised by its name or its first bytes, under any name, and refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pretune.core import io
from pretune.core.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: where it lies and its shape, not its values."""

    file: Path
    key: str
    shape: tuple[int, ...]


def headers(folder: Path) -> dict[str, Stored]:
    """Every tensor of a directory, from the files' headers."""
    found: dict[str, Stored] = {}
    for file in weight_files(folder):
        with opened(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118 (not a mapping)
                part = tensors.get_slice(key)
                if part.get_dtype() not in FLOATS and not key.endswith("position_ids") and part.get_dtype() != "BOOL":
                    raise CheckpointError(f"{file}: tensor '{key}' holds {part.get_dtype()}; only floats are supported")
                if key in found:
                    raise CheckpointError(f"{file}: tensor '{key}' is also in {found[key].file.name}")
                found[key] = Stored(file, key, tuple(part.get_shape()))
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a directory: the single one, or those its index names."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        table = io.read_json(folder / INDEX, CheckpointError).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise CheckpointError(f"{folder / INDEX}: 'weight_map' must be an object of tensor names to file names")
        names = sorted(set(table.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise CheckpointError(f"{folder / INDEX}: '{name}' is not the name of a safetensors file beside it")
            if not (folder / name).is_file():
                raise CheckpointError(f"{folder / name}: named by {INDEX} but missing")
        return [folder / name for name in names]
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise CheckpointError(f"{folder / pickles[0]}: a pickle can run code, so it is never read; save as {SINGLE}")
    raise CheckpointError(f"{folder}: no {SINGLE} and no {INDEX}")


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file, with its errors as one line."""
    try:
        with file.open("rb") as raw:
            start = raw.read(4)
        if start[:1] == b"\x80" or start == b"PK\x03\x04":
            raise CheckpointError(f"{file}: this is a pickle under another name; it is never read")
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file}: not a readable safetensors file ({reason})") from None


def values(stored: Iterable[Stored]) -> Iterator[Tensor]:
    """The tensors themselves, in order, each file opened once per run of neighbours."""
    current: Path | None = None
    tensors: Any = None
    context: Any = None
    try:
        for entry in stored:
            if entry.file != current:
                if context is not None:
                    context.__exit__(None, None, None)
                context, current = opened(entry.file), entry.file
                tensors = context.__enter__()
            yield tensors.get_tensor(entry.key)
    finally:
        if context is not None:
            context.__exit__(None, None, None)


def write(folder: Path, tensors: Mapping[str, Tensor], limit: int) -> list[str]:
    """Write tensors as one file, or as several of at most `limit` bytes with an index. The names written."""
    groups: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        if groups[-1] and used + tensor.nbytes > limit:
            groups.append({})
            used = 0
        groups[-1][name] = tensor
        used += tensor.nbytes
    if len(groups) == 1:
        save(groups[0], folder / SINGLE)
        return [SINGLE]
    names, table = [], {}
    for i, group in enumerate(groups, 1):
        names.append(f"model-{i:05}-of-{len(groups):05}.safetensors")
        save(group, folder / names[-1])
        table.update(dict.fromkeys(group, names[-1]))
    size = sum(tensor.nbytes for tensor in tensors.values())
    io.write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": table})
    return [*names, INDEX]


def save(tensors: Mapping[str, Tensor], file: Path) -> None:
    """One safetensors file, a full disk or a read-only one told in one line."""
    with io.writing(file):
        save_file(dict(tensors), file, metadata={"format": "pt"})
