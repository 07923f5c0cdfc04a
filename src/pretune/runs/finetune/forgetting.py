"""Forgetting: pre-training loss on validation text before and after fine-tuning, and the change of the weights.

Before is the pre-trained model without additions of a method (prefix, 4-bit weights, new blocks). After is the trained
model; what can be merged counts as a change of the weights, and a new bias started at zero. The loss is of the
objective that the model was pre-trained with, as far as its run is here; else of its paper's, or its shape's.

    result = pt.analyze_forgetting("runs/sst2")                     # on validation text of the model it started from
    result.before, result.after, result.difference, result.changes.distance

A finished run is a fine-tuned one, or one pre-trained further from another model (`--from`). A fine-tuned run without a
vocabulary head gets that of its base: no task trains it.
"""

import contextlib
import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretune.adaptation import methods
from pretune.adaptation.freeze import Frozen, Full, Gradual
from pretune.adaptation.methods import AnyMethod, count_positions
from pretune.adaptation.peft.io import ADAPTER_FILE
from pretune.analysis.held_out import find_base, find_data, iterate_runs
from pretune.analysis.pictures import Analysis
from pretune.analysis.weight_change import WeightChanges, compare_weights, split_layers
from pretune.core import config
from pretune.core.api import check_arguments
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.inference.text_model import get_language_model
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel
from pretune.models.spec import PARTS
from pretune.objectives.base import Objective
from pretune.runs.config import DataConfig, read_objective
from pretune.runs.finetune.adapted_model import load_base_model
from pretune.runs.finetune.config import BaseConfig
from pretune.runs.training_data import TrainingData
from pretune.training.distributed import Ranks, resolve_device
from pretune.training.records import Forgetting
from pretune.training.step import ModelWithLoss
from pretune.training.validation import compute_validation_loss

MAX_LENGTH, EVAL_TOKENS, BATCH_TOKENS = 128, 100_000, 8192
"""Maximum sequence length, tokens of an evaluation, tokens of a batch."""
OBJECTIVE_BY_SHAPE = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "span_corruption"}
"""Default objectives by shape, where the paper's objective needs a partner model."""


class ForgettingMeter:
    """Measures the loss and weight change of a body that a method trains; `start` is the directory of its base."""

    def __init__(
        self,
        body: LanguageModel,
        base: LanguageModel,
        data: str,
        ranks: Ranks,
        precision: torch.dtype | None,
        method: AnyMethod,
        start: str | os.PathLike[str],
    ) -> None:
        if body.spec.head is None:
            raise UsageError(
                "forgetting is the change of a pre-training loss; this model has no language-modelling head"
            )
        self.body, self.ranks, self.precision = body.to(ranks.device), ranks, precision  # including heads
        self.objective = find_objective(body, Path(start))
        self.merge = None if isinstance(method, Full | Frozen | Gradual) or not method.is_mergeable else method.merge
        tokenizer: Any = base.tokenizer  # the body's may have added task tokens
        longest, room = body.spec.max_length, MAX_LENGTH
        if longest is not None:
            room = min(room, longest - count_positions(method))  # without the positions of a prefix
        reading = DataConfig(path=data, max_length=room)
        self.source = TrainingData.open(
            reading, self.objective, body.shape, start=body.spec.special.start, max_positions=longest
        )
        if self.source.tokenizer.sha256 != tokenizer.sha256:
            raise DataError(f"{data}: prepared with another tokenizer; prepare the text with the model's")
        split = "valid" if "valid" in self.source.data.index.splits else "train"
        self.stream = self.source.build_stream(
            split, length=reading.max_length, tokens=BATCH_TOKENS, ranks=1, seed=0, has_fixed_slots=False
        )
        self.batch_count = min(math.ceil(EVAL_TOKENS / BATCH_TOKENS), len(self.stream.get_steps(0)))
        self.initial_loss = self._compute_loss(base.to(ranks.device))
        self.initial_weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in base.named_parameters()}

    def compare(self) -> Forgetting:
        """Return the loss before and after, and the relative weight change, in total and by part."""
        final_loss, merged_body = self._compute_loss(self.body), self.merge_body()
        squares = {
            name: _compute_squares(parameter.detach().cpu(), self.initial_weights.get(name))
            for name, parameter in merged_body.named_parameters()
            if name in self.initial_weights or self.merge is not None
        }
        names_by_part = {
            part: [name for name in names if name in squares] for part, names in split_layers(merged_body).items()
        }
        return {
            "objective": self.objective.name,
            "data": str(Path(self.source.data_config.path)),
            "before": self.initial_loss,
            "after": final_loss,
            "difference": final_loss["loss"] - self.initial_loss["loss"],
            "distance": _compute_distance([*squares.values()]),
            "by_part": {
                part: _compute_distance([squares[name] for name in names])
                for part, names in names_by_part.items()
                if names
            },
        }

    def merge_body(self) -> LanguageModel:
        """Return the body with the adapter merged, if possible."""
        if self.merge is None:
            return self.body
        merged_body = copy.deepcopy(self.body)
        self.merge(merged_body)
        return merged_body

    def _compute_loss(self, model: LanguageModel) -> dict[str, float]:
        loss_module = ModelWithLoss(model, self.objective.to_evaluation())
        metrics = compute_validation_loss(
            loss_module, self.stream, self.batch_count, self.ranks, precision=self.precision
        )
        assert metrics is not None
        return metrics


def find_objective(body: LanguageModel, start: Path | None = None) -> Objective:
    """Return the objective of the run that pre-trained the model, of its paper, or the default of its shape."""
    family = FAMILIES.get(body.spec.family) if body.spec.family in FAMILIES else None
    candidates = [
        None if start is None else _read_run_objective(start),
        None if family is None or family.training is None else dict(family.training.objective),
    ]
    for objective in (read_objective(tree) for tree in candidates if tree is not None):
        if body.shape in objective.shapes and objective.pairs in (None, "kept"):
            return objective
    if body.shape not in OBJECTIVE_BY_SHAPE:
        raise UsageError(
            f"forgetting is not measured for the shape '{body.shape}' (allowed: {', '.join(OBJECTIVE_BY_SHAPE)})"
        )
    return read_objective(OBJECTIVE_BY_SHAPE[body.shape])


def _read_run_objective(directory: Path) -> Mapping[str, object] | str | None:
    """Return the objective of a pre-training run, or of the one that a fine-tuned run started from; None if unknown."""
    with contextlib.suppress(CheckpointError, UsageError):
        trees = (RunDir(run).read_settings() for run in iterate_runs(directory))
        return next((tree["objective"] for tree in trees if "objective" in tree), None)
    return None


def _compute_squares(weight: Tensor, initial_weight: Tensor | None) -> tuple[float, float]:
    """Return the squared change and squared norm of a weight; a missing initial weight counts as zero."""
    initial = torch.zeros_like(weight) if initial_weight is None else initial_weight
    if weight.dim() and len(weight) > len(initial):
        weight = weight[: len(initial)]  # without rows of task tokens
    return float((weight.double() - initial.double()).square().sum()), float(initial.double().square().sum())


def _compute_distance(squares: list[tuple[float, float]]) -> float:
    distance, norm = (math.fsum(values) for values in zip(*squares, strict=True))
    return math.sqrt(distance / norm) if norm else 0.0


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
