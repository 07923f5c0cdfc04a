"""Model directories as a stranger may give them: tiny ones of ours, changed byte by byte or tensor by tensor."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

import pretune as pt
from tests.contracts.tiny import model_of

WEIGHTS = "model.safetensors"


def directory(folder: Path, name: str = "bert-base") -> Path:
    """A whole directory of a tiny model."""
    pt.save(model_of(name), folder)
    (folder / "MANIFEST.json").unlink()  # as strangers' directories are
    return folder


def change_config(folder: Path, *drop: str, **changes: Any) -> Path:
    """Some keys of config.json set, others left out."""
    file = folder / "config.json"
    found = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in found.items() if key not in drop}))
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """The tensors changed in place, or replaced by what is returned."""
    tensors = load_file(folder / WEIGHTS)
    result = change(tensors)
    tensors = tensors if result is None else result
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / WEIGHTS)
    return folder


def raw(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file from its parts, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data
