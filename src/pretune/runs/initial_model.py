"""The model that a run begins with: new weights, or those of another run or of a Hugging Face directory (`--from`)."""

import os
from pathlib import Path
from typing import Any

import torch

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.core.hub import located
from pretune.models import trained_model
from pretune.models.hf import checkpoint
from pretune.models.verify import check_weights
from pretune.runs.config import Settings, Train
from pretune.training.checkpointing import weights
from pretune.training.distributed import Ranks

BODY = ("tokens.", "encoder.", "decoder.")


def first_model(spec: trained_model.AnySpec, settings: Settings, ranks: Ranks, *, resume: bool) -> Any:
    """As the settings ask for it; a resumed run has weights of its own."""
    train = settings.train
    model: Any = trained_model.build(spec, seed=train.seed, device=ranks.device)
    if train.start is not None and not resume:
        begin_from(model, located(train.start))
    return equipped(model, train, ranks)


def equipped(model: Any, train: Train, ranks: Ranks) -> Any:
    """A model that computes as a run's settings ask: attention backend, bits, precision of the stream."""
    model.attention_backend = train.attention_backend
    if ranks.device.type == "cuda" and train.deterministic:
        deterministic()
        model.attention_backend = model.attention_backend or "rows"
    narrow = precision_of(train, ranks) if train.residual != "fp32" else None
    for part in model.modules():
        if hasattr(part, "recompute"):
            part.recompute = train.recompute
        if hasattr(part, "stream"):
            part.stream = narrow
    return model


def precision_of(train: Train, ranks: Ranks) -> torch.dtype | None:
    """What autocast computes in; None: fp32."""
    wish = train.precision
    if wish == "bf16" or (wish == "auto" and ranks.device.type == "cuda" and torch.cuda.is_bf16_supported()):
        return torch.bfloat16
    return None


def deterministic() -> None:
    """Ask CUDA for kernels that give the same bits every time; some are slower, some attention kernels have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


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
    found = checkpoint.load(start)
    check_weights(found, start)
    loaded, mine = weights(found), weights(part)
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
