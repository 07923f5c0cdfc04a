"""Whether a model directory is whole: every part is read, and the first fault is named."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from pretune.core import io
from pretune.core.config.read import shown
from pretune.core.counted import counted
from pretune.core.errors import CheckpointError, NonFiniteError
from pretune.models import tensor_files
from pretune.models.hf import checkpoint
from pretune.models.spec import Model
from pretune.models.tensor_files import Stored

CHUNK = 1 << 22
"""How many numbers are looked at together, so that memory stays bounded."""


def verify(directory: str | Path) -> list[str]:
    """Check a directory and say, one line each, what was checked; the first fault is a CheckpointError.

    The hashes come first, where there is a manifest: they tell a damaged model from one that was never right.
    """
    folder = Path(directory)
    lines = [_hashes(folder)]
    spec, _, stored = checkpoint.inspect(folder)
    lines.append(f"config.json: family {shown(spec.family)}, {spec.params().total:,} parameters")
    lines.append(f"tensors: {len(stored)}, with the names and shapes that the config asks for")
    lines.append(f"values: {_finite(tensor_files.headers(folder).values()):,}, all finite")
    lines.append(_tokenizer(folder, spec))
    lines += [f"{name}: readable" for name in _texts(folder)]
    partners = [name for name in checkpoint.PARTNERS if (folder / name).is_dir()]
    return [*lines, *(f"{name}/{line}" for name in partners for line in verify(folder / name))]


def _hashes(folder: Path) -> str:
    if not (folder / io.MANIFEST).exists():
        return f"{io.MANIFEST}: none here, so the bytes of the files cannot be compared with anything"
    listed = io.check_manifest(folder)["files"]
    for file in [folder / "config.json", *tensor_files.weight_files(folder)]:
        if file.name not in listed:
            raise CheckpointError(f"{file}: not listed in {io.MANIFEST}; copy or make the directory again")
    return f"{io.MANIFEST}: {counted(len(listed), 'files')} of the sizes and SHA-256 it says"


def _finite(stored: Collection[Stored]) -> int:
    """Look at every number, file by file; how many there are."""
    count = 0
    for entry, tensor in zip(stored, tensor_files.values(stored), strict=True):
        bad = _first_bad(tensor)
        if bad is not None:
            where = [int(part) for part in torch.unravel_index(torch.tensor(bad), tensor.shape)]
            value = tensor.reshape(-1)[bad].item()
            raise CheckpointError(f"{entry.file}: tensor '{entry.key}' holds {value} at {where}; all must be finite")
        count += tensor.numel()
    return count


def check_weights(model: nn.Module, where: str | Path) -> None:
    """Refuse a loaded model whose weights are not finite, before anything is trained from it."""
    for name, tensor in checkpoint.weights_of(model):
        if tensor.is_floating_point() and _first_bad(tensor.detach()) is not None:
            raise NonFiniteError(f"{where}: '{name}' holds values that are not finite; take an undamaged model")


def _first_bad(tensor: Tensor) -> int | None:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        good = torch.isfinite(flat[start : start + CHUNK])
        if not good.all():
            return start + int(good.logical_not().nonzero()[0])
    return None


def _tokenizer(folder: Path, spec: Model) -> str:
    tokenizer = checkpoint._tokenizer(folder, spec)
    if tokenizer is None:
        return "tokenizer.json: none here"
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    return f"tokenizer.json: {size:,} tokens, the model's vocabulary has {spec.vocab:,}"


def _texts(folder: Path) -> list[str]:
    """The other JSON files that belong to a model, each read once."""
    names = [name for name in checkpoint.ASSETS if name.endswith(".json") and name != "tokenizer.json"]
    found = [name for name in names if (folder / name).is_file()]
    for name in found:
        io.read_json(folder / name, CheckpointError)
    return found
