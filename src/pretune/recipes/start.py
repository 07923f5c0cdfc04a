"""Weights to begin with: those of another run or of a Hugging Face directory (`--from`)."""

from pathlib import Path
from typing import Any

import torch

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.models import checkpoint
from pretune.train.saving import weights

BODY = ("tokens.", "encoder.", "decoder.")


def begin_from(model: Any, start: Path) -> None:
    """Put a directory's weights into a new model: its whole body, and the heads that both have.

    A model of two parts is begun with both where the directory has both, and otherwise with the one that is kept.
    """
    parts = model.folders() if hasattr(model, "folders") else {"": model}
    for folder, part in parts.items():
        if not folder or (start / folder / "config.json").is_file():
            _fill(part, start / folder)
        else:
            log.say(f"{start}: has no {folder}; its own weights are new")


def _fill(part: Any, start: Path) -> None:
    loaded, mine = weights(checkpoint.load(start)), weights(part)
    new: set[str] = set()
    for name, tensor in mine.items():
        there = loaded.get(name)
        if there is None and name.startswith(BODY):
            raise CheckpointError(f"{start}: has no '{name}', which the model of the run has")
        if there is not None and there.shape != tensor.shape:
            raise CheckpointError(
                f"{start}: '{name}' has shape {list(there.shape)}, and {list(tensor.shape)} in the model of the run"
            )
        if there is None:
            new.add(name.split(".")[0])
        else:
            with torch.no_grad():
                tensor.copy_(there)
    if new:
        log.say(f"{start}: new weights for {', '.join(sorted(new))}")
