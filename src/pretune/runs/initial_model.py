"""The model that a run begins with: new weights, or those of another run or of a Hugging Face directory (`--from`)."""

import os
from pathlib import Path
from typing import Any

import torch

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.core.hub import resolve_path
from pretune.models import trained_model
from pretune.models.hf import checkpoint
from pretune.models.verify import check_weights
from pretune.runs.config import PretrainConfig, TrainConfig
from pretune.training.checkpointing import collect_weights
from pretune.training.distributed import Ranks

BODY_PREFIXES = ("tokens.", "encoder.", "decoder.")


def build_initial_model(spec: trained_model.AnySpec, settings: PretrainConfig, ranks: Ranks, *, resume: bool) -> Any:
    """As the settings ask for it; a resumed run has weights of its own."""
    train = settings.train
    model: Any = trained_model.build_any(spec, seed=train.seed, device=ranks.device)
    if train.start is not None and not resume:
        load_initial_weights(model, resolve_path(train.start))
    return configure_model(model, train, ranks)


def configure_model(model: Any, train: TrainConfig, ranks: Ranks) -> Any:
    """A model that computes as a run's settings ask: attention backend, bits, precision of the stream."""
    model.attention_backend = train.attention_backend
    if ranks.device.type == "cuda" and train.deterministic:
        enable_determinism()
        model.attention_backend = model.attention_backend or "rows"
    narrow = resolve_precision(train, ranks) if train.residual != "fp32" else None
    for part in model.modules():
        if hasattr(part, "activation_checkpointing"):
            part.activation_checkpointing = train.recompute
        if hasattr(part, "residual_dtype"):
            part.residual_dtype = narrow
    return model


def resolve_precision(train: TrainConfig, ranks: Ranks) -> torch.dtype | None:
    """What autocast computes in; None: fp32."""
    wish = train.precision
    if wish == "bf16" or (wish == "auto" and ranks.device.type == "cuda" and torch.cuda.is_bf16_supported()):
        return torch.bfloat16
    return None


def enable_determinism() -> None:
    """Ask CUDA for kernels that give the same bits every time; some are slower, some attention kernels have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def load_initial_weights(model: Any, directory: Path) -> None:
    """Put a directory's weights into a new model: its whole body, and the heads that both have.

    A model of two parts is begun with both where the directory has both, and otherwise with the one that is kept.
    """
    parts = model.get_models_by_folder() if hasattr(model, "get_models_by_folder") else {"": model}
    for folder, part in parts.items():
        if not folder or (directory / folder / "config.json").is_file():
            _copy_weights(part, directory / folder)
        else:
            log.info(f"{directory}: has no {folder}; its own weights are new")


def _copy_weights(part: Any, directory: Path) -> None:
    found = checkpoint.load(directory)
    check_weights(found, directory)
    loaded, mine = collect_weights(found), collect_weights(part)
    new: set[str] = set()
    for name, tensor in mine.items():
        there = loaded.get(name)
        if there is None and name.startswith(BODY_PREFIXES):
            raise CheckpointError(f"{directory}: has no '{name}', which the model of the run has")
        if there is not None and there.shape != tensor.shape:
            raise CheckpointError(
                f"{directory}: '{name}' has shape {list(there.shape)}, and {list(tensor.shape)} in the model of the run"
            )
        if there is None:
            new.add(name.split(".")[0])
        else:
            with torch.no_grad():
                tensor.copy_(there)
    if new:
        log.info(f"{directory}: new weights for {', '.join(sorted(new))}")
