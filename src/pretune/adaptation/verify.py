"""Verification of an adapter directory: files, base model, tensor names, shapes and values."""

from pathlib import Path

import torch

from pretune.adaptation import io as adaptation_io
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.peft.base import get_adapter_state
from pretune.adaptation.peft.io import ADAPTER_FILE, PEFT_CONFIG_FILE
from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.core.format import format_count
from pretune.models.hf import checkpoint


def is_adapter_directory(directory: str | Path) -> bool:
    """Return True if the directory holds an adapter without its base model."""
    folder = Path(directory)
    return (folder / ADAPTER_FILE).is_file() or (
        (folder / PEFT_CONFIG_FILE).is_file() and not (folder / checkpoint.CONFIG_FILE).is_file()
    )


def verify_adapter(directory: str | Path, *, base: str | Path | None = None) -> list[str]:
    """Verify an adapter; return one line per check, raise CheckpointError at the first failure.

    The base model is loaded from the stored path or from `base`, to check that the adapter fits; it is not verified
    itself.
    """
    folder = Path(directory)
    lines = [f"{io.MANIFEST}: missing, file contents cannot be verified"]
    if (folder / io.MANIFEST).exists():
        lines = [
            f"{io.MANIFEST}: sizes and SHA-256 of "
            f"{format_count(len(io.check_manifest(folder)['files']), 'files')} match"
        ]
    model, method = adaptation_io.load_with_method(folder, base=base)
    assert method is not None
    body = model.model if isinstance(model, ModelWithHead) else model
    tensors = dict(get_adapter_state(method, body))
    if isinstance(model, ModelWithHead) and model.head is not None:
        tensors |= {f"head.{name}": tensor for name, tensor in checkpoint.iterate_weights(model.head)}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{folder}: tensor '{name}' has non-finite values")
    config_file = ADAPTER_FILE if (folder / ADAPTER_FILE).is_file() else PEFT_CONFIG_FILE
    lines.append(f"{config_file}: {config.get_kind(method)}, base model of family '{body.spec.family}' found")
    lines.append(f"tensors: {len(tensors)}, names and shapes match the base model")
    lines.append(f"values: {sum(tensor.numel() for tensor in tensors.values()):,}, all finite")
    return lines
