"""Whether the directory of an adapter is whole: its files, its base model, its names, shapes and numbers."""

from pathlib import Path

import torch

from pretune.adaptation import io as saving
from pretune.adaptation.adapted import Adapted
from pretune.adaptation.peft.base import state
from pretune.adaptation.peft.io import OURS, THEIRS
from pretune.core import config, io
from pretune.core.counted import counted
from pretune.core.errors import CheckpointError
from pretune.models.hf import checkpoint


def is_adapter(directory: str | Path) -> bool:
    """Whether it holds what a method has learned, without the model that it is for."""
    folder = Path(directory)
    return (folder / OURS).is_file() or ((folder / THEIRS).is_file() and not (folder / checkpoint.CONFIG).is_file())


def verify_adapter(directory: str | Path, *, base: str | Path | None = None) -> list[str]:
    """Check it and say, one line each, what was checked; the first fault is a CheckpointError.

    The base model, where the adapter says it is or in `base`, is read, for only that tells whether the adapter fits;
    it is not checked itself.
    """
    folder = Path(directory)
    lines = [f"{io.MANIFEST}: none here, so the bytes of the files cannot be compared with anything"]
    if (folder / io.MANIFEST).exists():
        lines = [
            f"{io.MANIFEST}: {counted(len(io.check_manifest(folder)['files']), 'files')} "
            f"of the sizes and SHA-256 it says"
        ]
    model, method = saving.read(folder, base=base)
    assert method is not None
    body = model.model if isinstance(model, Adapted) else model
    learned = dict(state(method, body))
    if isinstance(model, Adapted) and model.head is not None:
        learned |= {f"head.{name}": tensor for name, tensor in checkpoint.weights_of(model.head)}
    for name, tensor in learned.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{folder}: tensor '{name}' holds values that are not finite")
    said = OURS if (folder / OURS).is_file() else THEIRS
    lines.append(
        f"{said}: {config.kind(method)} for its base model, of the family '{body.spec.family}', which is there"
    )
    lines.append(f"tensors: {len(learned)}, with the names and shapes that the base model asks for")
    lines.append(f"values: {sum(tensor.numel() for tensor in learned.values()):,}, all finite")
    return lines
