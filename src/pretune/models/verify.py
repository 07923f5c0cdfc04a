"""Verification of a model directory: hashes, config, tensors, values and tokenizer."""

from collections.abc import Collection
from pathlib import Path

import torch

from pretune.core import io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.log import format_count
from pretune.models import tensor_files
from pretune.models.hf import checkpoint, files
from pretune.models.spec import Model
from pretune.models.tensor_files import TensorInfo


def verify(directory: str | Path) -> list[str]:
    """Verify a directory; return one line per check. Raises `CheckpointError` at the first failure.

    Hashes are checked first, if there is a manifest: they distinguish a damaged model from an invalid one.
    """
    folder = Path(directory)
    lines = [_check_hashes(folder)]
    spec, _, tensors = checkpoint.inspect_checkpoint(folder)
    lines.append(f"config.json: family {format_value(spec.family)}, {spec.params().total:,} parameters")
    lines.append(f"tensors: {len(tensors)}, names and shapes match the config")
    lines.append(f"values: {_check_finite(tensor_files.read_headers(folder).values()):,}, all finite")
    lines.append(_check_tokenizer(folder, spec))
    lines += [f"{name}: readable" for name in _check_json_files(folder)]
    partners = [name for name in checkpoint.PARTNER_FOLDERS if (folder / name).is_dir()]
    return [*lines, *(f"{name}/{line}" for name in partners for line in verify(folder / name))]


def _check_hashes(folder: Path) -> str:
    if not (folder / io.MANIFEST).exists():
        return f"{io.MANIFEST}: not found, hashes not checked"
    entries = io.check_manifest(folder)["files"]
    for file in [folder / "config.json", *tensor_files.list_weight_files(folder)]:
        if file.name not in entries:
            raise CheckpointError(f"{file}: not listed in {io.MANIFEST}; copy or save the directory again")
    return f"{io.MANIFEST}: {format_count(len(entries), 'files')} with matching size and SHA-256"


def _check_finite(tensors: Collection[TensorInfo]) -> int:
    """Check every value, file by file; return their number."""
    count = 0
    for entry, tensor in zip(tensors, tensor_files.read_tensors(tensors), strict=True):
        bad = tensor_files.find_nonfinite(tensor)
        if bad is not None:
            index = [int(part) for part in torch.unravel_index(torch.tensor(bad), tensor.shape)]
            value = tensor.reshape(-1)[bad].item()
            raise CheckpointError(
                f"{entry.file}: tensor '{entry.key}' has {value} at {index}; all values must be finite"
            )
        count += tensor.numel()
    return count


def _check_tokenizer(folder: Path, spec: Model) -> str:
    tokenizer = files.read_tokenizer(folder, spec, files.read_assets(folder, spec))
    if tokenizer is None:
        return "tokenizer.json: not found"
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    return f"tokenizer.json: {size:,} tokens, model vocabulary {spec.vocab:,}"


def _check_json_files(folder: Path) -> list[str]:
    """Read the other JSON files of a model; return their names."""
    names = [name for name in files.ASSET_FILES if name.endswith(".json") and name != "tokenizer.json"]
    present = [name for name in names if (folder / name).is_file()]
    for name in present:
        io.read_json(folder / name, CheckpointError)
    return present
