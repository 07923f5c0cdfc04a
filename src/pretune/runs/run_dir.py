"""A run that is done: a directory that transformers reads, with its settings, its metrics and its cost."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.tensor import DTensor

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.models import trained_model
from pretune.models.hf import checkpoint
from pretune.runs.config import Settings
from pretune.runs.model_card import card
from pretune.runs.training_data import Source
from pretune.training.checkpointing import weights
from pretune.training.distributed import fill, whole
from pretune.training.loop import Loop
from pretune.training.metrics_log import read_metrics
from pretune.training.records import CostFile
from pretune.training.run_logger import Journal

COST = "cost.json"


@dataclass(frozen=True, slots=True)
class Run(os.PathLike[str]):
    """Where it lies, and what came out; it can be given wherever its path can."""

    path: Path
    summary: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def loss(self) -> float | None:
        """The held-out loss at the end."""
        found = self.summary.get("held_out", {}).get("loss")
        return None if found is None else float(found)

    def load(self) -> Any:
        """The model."""
        return checkpoint.load(self.path)


def finish(
    where: Path,
    model: Any,
    source: Source,
    settings: Settings,
    journal: Journal,
    loop: Loop,
    epochs: Mapping[str, float],
) -> Run:
    """Write what a run leaves behind: the model, its card, its cost. `epochs` are those of each source."""
    summary = {"parameters": model.spec.params().total, **journal.summary(loop), "epochs": dict(epochs)}
    model = unsharded(model)
    for part in getattr(model, "folders", lambda: {"": model})().values():
        part.assets.files = source.tokenizer.files()
    if loop.ranks.first:
        checkpoint.save(model, where, overwrite=True)
        text = card(where.name, settings, source, summary, read_metrics(where))
        io.atomic_write(where / "README.md", text.encode())
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(where / COST, {**summary["cost"], "run": about})  # the last thing that a run writes
    return Run(where, summary)


def finished(where: Path) -> Run | None:
    """The run in a directory, if it has come to its end."""
    if not (where / COST).is_file():
        return None
    cost: dict[str, Any] = {**config.read_record(CostFile, where / COST, CheckpointError)}
    about = cost.pop("run", None)
    return None if about is None else Run(where, {**about, "cost": cost})


def unsharded(model: Any) -> Any:
    """The model with whole weights; where they are sharded over ranks, a copy of it (all ranks must ask)."""
    tensors = weights(model)
    if not any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        return model
    copy, found = trained_model.build(model.spec), whole(tensors)
    for name, tensor in weights(copy).items():
        fill(tensor, found[name])
    return copy
