"""Forgetting of a finished run: pre-training loss before and after, and how far the weights moved.

    result = pt.analyze_forgetting("runs/sst2")                     # on validation text of the model it started from
    result.before, result.after, result.difference, result.changes.distance

The run is a fine-tuned one, or one pre-trained further from another model (`--from`). A fine-tuned run without a
vocabulary head gets that of its base: no task trains it.
"""

import copy
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretune.adaptation import methods
from pretune.adaptation.freeze import Full
from pretune.adaptation.methods import AnyMethod
from pretune.adaptation.peft.io import ADAPTER_FILE
from pretune.analysis.held_out import find_base, find_data
from pretune.analysis.pictures import Analysis
from pretune.analysis.weight_change import WeightChanges, compare_weights
from pretune.core import config
from pretune.core.api import check_arguments
from pretune.core.errors import DataError
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.inference.text_model import get_language_model
from pretune.models.model import LanguageModel
from pretune.models.spec import PARTS
from pretune.runs.finetune.adapted_model import load_base_model
from pretune.runs.finetune.config import BaseConfig
from pretune.runs.finetune.forgetting import ForgettingMeter
from pretune.training.distributed import Ranks, resolve_device


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingResult(Analysis):
    """Pre-training loss before and after a run, and the change of its weights."""

    objective: str
    data: str
    before: dict[str, float]  # metrics of the objective, "loss" among them
    after: dict[str, float]
    changes: WeightChanges

    @property
    def difference(self) -> float:
        """Loss after minus loss before."""
        return self.after["loss"] - self.before["loss"]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per layer and kind of weights."""
        return self.changes.to_rows()

    def to_dict(self) -> dict[str, Any]:
        """Return losses and changes as plain data."""
        return {
            **self.changes.to_dict(),
            "kind": "forgetting",
            "objective": self.objective,
            "data": self.data,
            "loss": {"before": self.before, "after": self.after, "difference": self.difference},
        }

    def __repr__(self) -> str:
        loss = f"{self.before['loss']:.4f} to {self.after['loss']:.4f}"
        return f"ForgettingResult({self.objective} loss {loss}, weights {self.changes.distance:.2%})"


@check_arguments()
def analyze_forgetting(
    run: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    base: str | os.PathLike[str] | None = None,
    device: str | None = None,
) -> ForgettingResult:
    """Measure the pre-training loss of a run and of the model it started from, on the same masked text.

    Args:
        run: Directory of `pretune finetune`, or of `pretune pretrain --from`.
        data: Directory of `pt.prepare`, with the model's tokenizer; None: that of the model it started from.
        base: The model it started from, if it was moved.
        device: By default a GPU if available.

    Raises:
        UsageError: Not such a run, or its model has no pre-training loss. DataError: no data.
    """
    directory = resolve_path(os.fspath(run))
    start = find_base(directory) if base is None else resolve_path(os.fspath(base))
    prepared_data = data if data is not None else find_data(directory)
    if prepared_data is None:
        raise DataError(f"{directory}: no prepared text of the model it started from; pass --data DATA")
    initial_model = _load_initial(directory, start)
    body, method = _load_final(directory, initial_model, None if base is None else start)
    ranks = Ranks(torch.device(resolve_device(device)))
    meter = ForgettingMeter(body, initial_model, os.fspath(prepared_data), ranks, None, method, start)
    record = meter.compare()
    return ForgettingResult(
        objective=record["objective"],
        data=record["data"],
        before=record["before"],
        after=record["after"],
        changes=compare_weights(
            initial_model, meter.merge_body(), names=(str(start), str(directory)), is_merged=meter.merge is not None
        ),
    )


def _load_initial(directory: Path, start: Path) -> LanguageModel:
    """Load the model that a run started from, with the settings of its base, but without new layers."""
    tree = RunDir(directory).read_settings()
    if "base" not in tree:
        return load_base_model(BaseConfig(path=str(start)), seed=0)
    settings = config.from_dict(BaseConfig, {**tree["base"], "path": str(start), "extra_layers": 0}, "base")
    return load_base_model(settings, seed=int(tree["train"]["seed"]))


def _load_final(directory: Path, initial_model: LanguageModel, base: Path | None) -> tuple[LanguageModel, AnyMethod]:
    """Load the language model of a run with the heads of its pre-training, and the method of its adapter."""
    model, method = methods.load(directory, base=base if (directory / ADAPTER_FILE).is_file() else None)
    language_model = get_language_model(model)
    _restore_heads(language_model, initial_model)
    return language_model, method or Full()


def _restore_heads(model: LanguageModel, initial_model: LanguageModel) -> None:
    """Give a model the pre-training heads that its task does not need, in place; tokens of the task are removed."""
    missing_parts = [
        part for part in (*PARTS, "span") if getattr(model, part) is None and getattr(initial_model, part) is not None
    ]
    if "head" not in missing_parts:
        return
    for part in missing_parts:
        setattr(model, part, copy.deepcopy(getattr(initial_model, part)))
    vocab = initial_model.spec.vocab
    updates: dict[str, Any] = {part: getattr(initial_model.spec, part) for part in missing_parts}
    if model.spec.vocab > vocab and isinstance(model.tokens, nn.Embedding):
        model.tokens.weight = nn.Parameter(model.tokens.weight.detach()[:vocab].clone())
        updates["vocab"] = vocab
    model.spec = replace(model.spec, **updates)
