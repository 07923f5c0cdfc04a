"""Integrity of models and runs: `pt.verify`, `pretune verify`."""

import os
from pathlib import Path

from pretune.adaptation.verify import is_adapter_directory, verify_adapter
from pretune.core.arguments import check_arguments
from pretune.core.hub import resolve_path
from pretune.models.verify import verify as verify_model
from pretune.runs.restore import check_model
from pretune.training.checkpoints import verify_checkpoints


@check_arguments()
def verify(model: str | os.PathLike[str], *, base: str | os.PathLike[str] | None = None) -> list[str]:
    """Verify the integrity of a model or a run, and return a line for each part that was checked.

    Hashes, config, tensors, values, tokenizer, and every checkpoint are checked.

    Args:
        model: A run, a Hugging Face directory, or hf:OWNER/NAME.
        base: Directory of an adapter's base model, if it was moved.

    Raises:
        CheckpointError: a part is missing or damaged; the message names it.
    """
    directory = resolve_path(Path(model))
    check_model(directory)  # a finished run has a manifest
    lines = verify_checkpoints(directory)
    if is_adapter_directory(directory):
        return [*verify_adapter(directory, base=None if base is None else Path(base)), *lines]
    if not lines or (directory / "config.json").exists():  # a finished run holds a model
        return [*verify_model(directory), *lines]
    return lines
