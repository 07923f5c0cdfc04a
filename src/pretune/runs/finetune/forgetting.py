"""Forgetting: pre-training loss on validation text before and after fine-tuning, and the change of the weights.

Before is the pre-trained model without additions of a method (prefix, 4-bit weights, new blocks). After is the trained
model; what can be merged counts as a change of the weights, and a new bias started at zero. The loss is of the
objective that the model was pre-trained with, as far as its run is here; else of its paper's, or its shape's.
"""

import contextlib
import copy
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretune.adaptation.freeze import Frozen, Full, Gradual
from pretune.adaptation.methods import AnyMethod, count_positions
from pretune.analysis.held_out import iterate_runs
from pretune.analysis.weight_change import split_layers
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.run_dir import RunDir
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel
from pretune.objectives.base import Objective
from pretune.runs.config import read_objective
from pretune.runs.training_data import DataConfig, TrainingData
from pretune.training.distributed import Ranks
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
        longest = body.spec.max_length
        room = (
            MAX_LENGTH if longest is None else min(MAX_LENGTH, longest - count_positions(method))
        )  # without the positions of a prefix
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


def _read_run_objective(directory: Path) -> dict[str, Any] | str | None:
    """Return the objective of a pre-training run, or of the one that a fine-tuned run started from; None if unknown."""
    with contextlib.suppress(CheckpointError, UsageError):
        trees = (RunDir(run).read_settings() for run in iterate_runs(directory))
        return next((tree["objective"] for tree in trees if "objective" in tree), None)
    return None


def _compute_squares(weight: Tensor, initial_weight: Tensor | None) -> tuple[float, float]:
    """Return the squared change and squared norm of a weight; a missing initial weight counts as zero."""
    initial = torch.zeros_like(weight) if initial_weight is None else initial_weight
    weight = (
        weight[: len(initial)] if weight.dim() and len(weight) > len(initial) else weight
    )  # without rows of task tokens
    return float((weight.double() - initial.double()).square().sum()), float(initial.double().square().sum())


def _compute_distance(squares: list[tuple[float, float]]) -> float:
    distance, norm = (math.fsum(values) for values in zip(*squares, strict=True))
    return math.sqrt(distance / norm) if norm else 0.0
