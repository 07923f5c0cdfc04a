"""Whether the directory of an adapter is whole: its files, its base model, its names, shapes and numbers."""

from pathlib import Path

import torch

from pretune.adaptation import io as saving
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.peft.base import get_adapter_state
from pretune.adaptation.peft.io import ADAPTER_FILE, PEFT_CONFIG_FILE
from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.core.format import format_count
from pretune.models.hf import checkpoint


def is_adapter_directory(directory: str | Path) -> bool:
    """Whether it holds what a method has learned, without the model that it is for."""
    folder = Path(directory)
    return (folder / ADAPTER_FILE).is_file() or (
        (folder / PEFT_CONFIG_FILE).is_file() and not (folder / checkpoint.CONFIG_FILE).is_file()
    )


def verify_adapter(directory: str | Path, *, base: str | Path | None = None) -> list[str]:
    """Check it and say, one line each, what was checked; the first fault is a CheckpointError.

    The base model, where the adapter says it is or in `base`, is read, for only that tells whether the adapter fits;
    it is not checked itself.
    """
    folder = Path(directory)
    lines = [f"{io.MANIFEST}: none here, so the bytes of the files cannot be compared with anything"]
    if (folder / io.MANIFEST).exists():
        lines = [
            f"{io.MANIFEST}: {format_count(len(io.check_manifest(folder)['files']), 'files')} "
            f"of the sizes and SHA-256 it says"
        ]
    model, method = saving.load_with_method(folder, base=base)
    assert method is not None
    body = model.model if isinstance(model, ModelWithHead) else model
    learned = dict(get_adapter_state(method, body))
    if isinstance(model, ModelWithHead) and model.head is not None:
        learned |= {f"head.{name}": tensor for name, tensor in checkpoint.iterate_weights(model.head)}
    for name, tensor in learned.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{folder}: tensor '{name}' holds values that are not finite")
    said = ADAPTER_FILE if (folder / ADAPTER_FILE).is_file() else PEFT_CONFIG_FILE
    lines.append(
        f"{said}: {config.get_kind(method)} for its base model, of the family '{body.spec.family}', which is there"
    )
    lines.append(f"tensors: {len(learned)}, with the names and shapes that the base model asks for")
    lines.append(f"values: {sum(tensor.numel() for tensor in learned.values()):,}, all finite")
    return lines
