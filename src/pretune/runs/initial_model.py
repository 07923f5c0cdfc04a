"""Initial model of a run: new weights, or those of a run or Hugging Face directory (`--from`)."""

import os
from pathlib import Path
from typing import Any

import torch

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.core.hub import resolve_path
from pretune.models import catalog
from pretune.models.hf import checkpoint
from pretune.models.verify import check_weights
from pretune.runs.config import PretrainConfig
from pretune.training.checkpointing import collect_weights
from pretune.training.config import TrainConfig
from pretune.training.distributed import Ranks

BODY_PREFIXES = ("tokens.", "encoder.", "decoder.")


def build_initial_model(spec: catalog.AnySpec, settings: PretrainConfig, ranks: Ranks, *, resume: bool) -> Any:
    """Build the model of the settings; a resumed run restores its weights later."""
    train = settings.train
    model: Any = catalog.build_any(spec, seed=train.seed, device=ranks.device)
    if train.init_from is not None and not resume:
        load_initial_weights(model, resolve_path(train.init_from))
    return configure_model(model, train, ranks)


def configure_model(model: Any, train: TrainConfig, ranks: Ranks) -> Any:
    """Apply the settings to a model: attention backend, activation checkpointing, determinism, residual dtype."""
    model.attention_backend = train.attention_backend
    if ranks.device.type == "cuda" and train.deterministic:
        enable_determinism()
        model.attention_backend = model.attention_backend or "rows"
    narrow = resolve_precision(train, ranks) if train.residual_precision != "fp32" else None
    for part in model.modules():
        if hasattr(part, "activation_checkpointing"):
            part.activation_checkpointing = train.activation_checkpointing
        if hasattr(part, "residual_dtype"):
            part.residual_dtype = narrow
    return model


def resolve_precision(train: TrainConfig, ranks: Ranks) -> torch.dtype | None:
    """Return the autocast dtype; None: fp32."""
    precision = train.precision
    if precision == "bf16" or (precision == "auto" and ranks.device.type == "cuda" and torch.cuda.is_bf16_supported()):
        return torch.bfloat16
    return None


def enable_determinism() -> None:
    """Enable deterministic CUDA kernels; some are slower, and some attention kernels have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def load_initial_weights(model: Any, directory: Path) -> None:
    """Copy a directory's weights into a new model: the body, and the heads that both have.

    A generator-discriminator pair loads both if the directory has both, otherwise the one that is kept.
    """
    parts = model.get_models_by_folder() if hasattr(model, "get_models_by_folder") else {"": model}
    for folder, part in parts.items():
        if not folder or (directory / folder / "config.json").is_file():
            _copy_weights(part, directory / folder)
        else:
            log.info(f"{directory}: no {folder}; its weights are newly initialized")


def _copy_weights(part: Any, directory: Path) -> None:
    source = checkpoint.load(directory)
    check_weights(source, directory)
    source_weights, weights = collect_weights(source), collect_weights(part)
    new: set[str] = set()
    for name, tensor in weights.items():
        source_tensor = source_weights.get(name)
        if source_tensor is None and name.startswith(BODY_PREFIXES):
            raise CheckpointError(f"{directory}: missing '{name}', which the model of the run needs")
        if source_tensor is not None and source_tensor.shape != tensor.shape:
            raise CheckpointError(
                f"{directory}: '{name}' has shape {list(source_tensor.shape)}, expected {list(tensor.shape)}"
            )
        if source_tensor is None:
            new.add(name.split(".")[0])
        else:
            with torch.no_grad():
                tensor.copy_(source_tensor)
    if new:
        log.info(f"{directory}: newly initialized: {', '.join(sorted(new))}")
