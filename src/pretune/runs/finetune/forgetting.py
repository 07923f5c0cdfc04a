"""What fine-tuning takes away: the pre-training loss on held-out text before and after, and how far weights moved.

Before is the model as it was pre-trained, without what a method puts into it (a prefix, weights of 4 bits, new blocks).
After is all of it as it was trained; what can be merged into the weights has moved them, and a new bias was zero.
"""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretune.adaptation.freeze import Frozen, Full
from pretune.adaptation.gradual_unfreezing import Gradual
from pretune.adaptation.methods import AnyMethod, count_positions
from pretune.core.errors import DataError, UsageError
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel
from pretune.objectives.base import Objective
from pretune.runs.config import read_objective
from pretune.runs.training_data import DataConfig, TrainingData
from pretune.training.distributed import Ranks
from pretune.training.loss_module import ModelWithLoss
from pretune.training.optim import split_parts
from pretune.training.validation import compute_validation_loss

MAX_LENGTH, EVAL_TOKENS, BATCH_TOKENS = 128, 100_000, 8192
"""Of the sequences that are read, of all of them together, and of a batch."""
OBJECTIVE_BY_SHAPE = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "span_corruption"}
"""What a model of a shape is asked, where its paper's objective needs a partner that is not there."""


class ForgettingMeter:
    """A body that is trained by a method, and what it was before; `compare` says what became of it."""

    def __init__(
        self,
        body: LanguageModel,
        base: LanguageModel,
        data: str,
        ranks: Ranks,
        precision: torch.dtype | None,
        method: AnyMethod,
    ) -> None:
        if body.spec.head is None:
            raise UsageError(
                "--forgetting: this model has no vocabulary head, so it has no pre-training loss; leave it out"
            )
        self.body, self.ranks, self.precision = body.to(ranks.device), ranks, precision  # its heads too
        self.objective = find_objective(body)
        self.merge = None if isinstance(method, Full | Frozen | Gradual) or not method.is_mergeable else method.merge
        tokenizer: Any = base.tokenizer  # the body's may have tokens for the task besides
        longest = body.spec.max_length
        room = (
            MAX_LENGTH if longest is None else min(MAX_LENGTH, longest - count_positions(method))
        )  # a prefix stands before it
        reading = DataConfig(path=data, max_length=room)
        self.source = TrainingData.open(
            reading, self.objective, body.shape, start=body.spec.special.start, max_positions=longest
        )
        if self.source.tokenizer.sha256 != tokenizer.sha256:
            raise DataError(f"{data}: not prepared with this model's tokenizer; prepare the text with its directory")
        split = "valid" if "valid" in self.source.data.index.splits else "train"
        self.stream = self.source.build_stream(
            split, length=reading.max_length, tokens=BATCH_TOKENS, ranks=1, seed=0, has_fixed_slots=False
        )
        self.batch_count = min(math.ceil(EVAL_TOKENS / BATCH_TOKENS), len(self.stream.get_steps(0)))
        self.initial_loss = self._compute_loss(base.to(ranks.device))
        self.initial_weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in base.named_parameters()}

    def compare(self) -> dict[str, Any]:
        """The loss before and after, and the distance, in all and by part, relative to how long the weights were."""
        after, merged = self._compute_loss(self.body), self._merge_body()
        moved = {
            name: _compute_squares(now.detach().cpu(), self.initial_weights.get(name))
            for name, now in merged.named_parameters()
            if name in self.initial_weights or self.merge is not None
        }
        divided = {part: [name for name in names if name in moved] for part, names in split_parts(merged).items()}
        return {
            "objective": self.objective.name,
            "data": str(Path(self.source.data_config.path)),
            "before": self.initial_loss,
            "after": after,
            "difference": after["loss"] - self.initial_loss["loss"],
            "distance": _compute_distance([*moved.values()]),
            "by_part": {
                part: _compute_distance([moved[name] for name in names]) for part, names in divided.items() if names
            },
        }

    def _merge_body(self) -> LanguageModel:
        """The body with what was learnt in its weights, where that can be."""
        if self.merge is None:
            return self.body
        made = copy.deepcopy(self.body)
        self.merge(made)
        return made

    def _compute_loss(self, model: LanguageModel) -> dict[str, float]:
        trainee = ModelWithLoss(model, self.objective.to_evaluation())
        found = compute_validation_loss(trainee, self.stream, self.batch_count, self.ranks, precision=self.precision)
        assert found is not None
        return found


def find_objective(body: LanguageModel) -> Objective:
    """What a model was pre-trained with, as its paper did, or as models of its shape are."""
    family = FAMILIES.get(body.spec.family) if body.spec.family in FAMILIES else None
    if family is not None and family.training is not None:
        found = read_objective(dict(family.training.objective))
        if body.shape in found.shapes and found.pairs in (None, "kept"):
            return found
    if body.shape not in OBJECTIVE_BY_SHAPE:
        raise UsageError(
            f"--forgetting is not for a model of the shape '{body.shape}' (allowed: {', '.join(OBJECTIVE_BY_SHAPE)})"
        )
    return read_objective(OBJECTIVE_BY_SHAPE[body.shape])


def _compute_squares(weight: Tensor, initial_weight: Tensor | None) -> tuple[float, float]:
    """What it moved and how long it was, squared; what was not there was zero."""
    before = torch.zeros_like(weight) if initial_weight is None else initial_weight
    weight = (
        weight[: len(before)] if weight.dim() and len(weight) > len(before) else weight
    )  # rows of tokens for the task
    return float((weight.double() - before.double()).square().sum()), float(before.double().square().sum())


def _compute_distance(squares: list[tuple[float, float]]) -> float:
    moved, long = (math.fsum(values) for values in zip(*squares, strict=True))
    return math.sqrt(moved / long) if long else 0.0
