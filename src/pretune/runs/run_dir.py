"""Finished run: a directory that transformers can load, with settings, metrics and cost."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.tensor import DTensor

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.core.results import Result
from pretune.models import catalog
from pretune.models.hf import checkpoint
from pretune.runs.config import PretrainConfig
from pretune.runs.model_card import build_card
from pretune.runs.training_data import TrainingData
from pretune.training.checkpointing import collect_weights
from pretune.training.distributed import fill, unshard_all
from pretune.training.loop import Loop
from pretune.training.metrics_log import read_metrics
from pretune.training.records import CostFile
from pretune.training.run_logger import RunLogger

COST_FILE = "cost.json"


@dataclass(frozen=True, slots=True, repr=False)
class PretrainedRun(Result, os.PathLike[str]):
    """Path and summary of a run; accepted wherever its path is."""

    path: Path
    summary: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        loss = "" if self.loss is None else f", loss={self.loss:.4f}"
        return f"PretrainedRun({str(self.path)!r}{loss})"

    @property
    def loss(self) -> float | None:
        """Final validation loss, or None."""
        loss = self.summary.get("held_out", {}).get("loss")
        return None if loss is None else float(loss)

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the summary as plain data."""
        return {"path": str(self.path), **self.summary}

    def load(self) -> Any:
        """Load the model."""
        return checkpoint.load(self.path)


def write_run(
    run_dir: Path,
    model: Any,
    source: TrainingData,
    settings: PretrainConfig,
    logger: RunLogger,
    loop: Loop,
    epochs: Mapping[str, float],
) -> PretrainedRun:
    """Write the model, its card and its cost. `epochs` are those of each source."""
    summary = {"parameters": model.spec.params().total, **logger.summarize(loop), "epochs": dict(epochs)}
    model = unshard(model)
    for part in getattr(model, "get_models_by_folder", lambda: {"": model})().values():
        part.assets.files = source.tokenizer.build_files()
    if loop.ranks.is_first:
        checkpoint.save(model, run_dir, overwrite=True)
        text = build_card(run_dir.name, settings, source, summary, read_metrics(run_dir))
        io.atomic_write(run_dir / "README.md", text.encode())
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(run_dir / COST_FILE, {**summary["cost"], "run": about})  # written last: marks the run as finished
    return PretrainedRun(run_dir, summary)


def load_finished_run(run_dir: Path) -> PretrainedRun | None:
    """Return the run in a directory, or None if it is unfinished."""
    if not (run_dir / COST_FILE).is_file():
        return None
    cost: dict[str, Any] = {**config.read_record(CostFile, run_dir / COST_FILE, CheckpointError)}
    about = cost.pop("run", None)
    return None if about is None else PretrainedRun(run_dir, {**about, "cost": cost})


def unshard(model: Any) -> Any:
    """Return the model with full weights; if they are sharded, a copy of it (a collective operation)."""
    tensors = collect_weights(model)
    if not any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        return model
    copy, full_weights = catalog.build_any(model.spec), unshard_all(tensors)
    for name, tensor in collect_weights(copy).items():
        fill(tensor, full_weights[name])
    return copy
