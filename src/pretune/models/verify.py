"""Whether a model directory is whole: every part is read, and the first fault is named."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from pretune.core import io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, NonFiniteError
from pretune.core.format import format_count
from pretune.models import tensor_files
from pretune.models.hf import checkpoint
from pretune.models.spec import Model
from pretune.models.tensor_files import TensorInfo

CHUNK_VALUES = 1 << 22
"""How many numbers are looked at together, so that memory stays bounded."""


def verify(directory: str | Path) -> list[str]:
    """Check a directory and say, one line each, what was checked; the first fault is a CheckpointError.

    The hashes come first, where there is a manifest: they tell a damaged model from one that was never right.
    """
    folder = Path(directory)
    lines = [_check_hashes(folder)]
    spec, _, stored = checkpoint.inspect_checkpoint(folder)
    lines.append(f"config.json: family {format_value(spec.family)}, {spec.params().total:,} parameters")
    lines.append(f"tensors: {len(stored)}, with the names and shapes that the config asks for")
    lines.append(f"values: {_check_finite(tensor_files.read_headers(folder).values()):,}, all finite")
    lines.append(_check_tokenizer(folder, spec))
    lines += [f"{name}: readable" for name in _check_json_files(folder)]
    partners = [name for name in checkpoint.PARTNER_FOLDERS if (folder / name).is_dir()]
    return [*lines, *(f"{name}/{line}" for name in partners for line in verify(folder / name))]


def _check_hashes(folder: Path) -> str:
    if not (folder / io.MANIFEST).exists():
        return f"{io.MANIFEST}: none here, so the bytes of the files cannot be compared with anything"
    listed = io.check_manifest(folder)["files"]
    for file in [folder / "config.json", *tensor_files.list_weight_files(folder)]:
        if file.name not in listed:
            raise CheckpointError(f"{file}: not listed in {io.MANIFEST}; copy or make the directory again")
    return f"{io.MANIFEST}: {format_count(len(listed), 'files')} of the sizes and SHA-256 it says"


def _check_finite(tensors: Collection[TensorInfo]) -> int:
    """Look at every number, file by file; how many there are."""
    count = 0
    for entry, tensor in zip(tensors, tensor_files.read_tensors(tensors), strict=True):
        bad = _find_nonfinite(tensor)
        if bad is not None:
            where = [int(part) for part in torch.unravel_index(torch.tensor(bad), tensor.shape)]
            value = tensor.reshape(-1)[bad].item()
            raise CheckpointError(f"{entry.file}: tensor '{entry.key}' holds {value} at {where}; all must be finite")
        count += tensor.numel()
    return count


def check_weights(model: nn.Module, source: str | Path) -> None:
    """Refuse a loaded model whose weights are not finite, before anything is trained from it."""
    for name, tensor in checkpoint.iterate_weights(model):
        if tensor.is_floating_point() and _find_nonfinite(tensor.detach()) is not None:
            raise NonFiniteError(f"{source}: '{name}' holds values that are not finite; take an undamaged model")


def _find_nonfinite(tensor: Tensor) -> int | None:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHUNK_VALUES):
        good = torch.isfinite(flat[start : start + CHUNK_VALUES])
        if not good.all():
            return start + int(good.logical_not().nonzero()[0])
    return None


def _check_tokenizer(folder: Path, spec: Model) -> str:
    tokenizer = checkpoint._read_tokenizer(folder, spec)
    if tokenizer is None:
        return "tokenizer.json: none here"
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    return f"tokenizer.json: {size:,} tokens, the model's vocabulary has {spec.vocab:,}"


def _check_json_files(folder: Path) -> list[str]:
    """The other JSON files that belong to a model, each read once."""
    names = [name for name in checkpoint.ASSET_FILES if name.endswith(".json") and name != "tokenizer.json"]
    found = [name for name in names if (folder / name).is_file()]
    for name in found:
        io.read_json(folder / name, CheckpointError)
    return found
