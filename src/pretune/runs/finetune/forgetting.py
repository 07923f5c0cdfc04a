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
from pretune.adaptation.methods import AnyMethod, positions
from pretune.core.errors import DataError, UsageError
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel
from pretune.objectives.base import Objective
from pretune.runs.config import read_objective
from pretune.runs.training_data import Reading, Source
from pretune.training.distributed import Ranks
from pretune.training.loss_module import Trainee
from pretune.training.optim import parts
from pretune.training.validation import evaluate

LENGTH, TOKENS, BATCH = 128, 100_000, 8192
"""Of the sequences that are read, of all of them together, and of a batch."""
BY_SHAPE = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "span_corruption"}
"""What a model of a shape is asked, where its paper's objective needs a partner that is not there."""


class Memory:
    """A body that is trained by a method, and what it was before; `compare` says what became of it."""

    def __init__(
        self,
        body: LanguageModel,
        plain: LanguageModel,
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
        self.objective = objective_of(body)
        self.merge = None if isinstance(method, Full | Frozen | Gradual) or not method.merges else method.merge
        tokenizer: Any = plain.tokenizer  # the body's may have tokens for the task besides
        longest = body.spec.longest
        room = LENGTH if longest is None else min(LENGTH, longest - positions(method))  # a prefix stands before it
        reading = Reading(path=data, max_length=room)
        self.source = Source.open(reading, self.objective, body.shape, start=body.spec.special.start, longest=longest)
        if self.source.tokenizer.sha256 != tokenizer.sha256:
            raise DataError(f"{data}: not prepared with this model's tokenizer; prepare the text with its directory")
        split = "valid" if "valid" in self.source.data.index.splits else "train"
        self.stream = self.source.stream(split, length=reading.max_length, tokens=BATCH, ranks=1, seed=0, fixed=False)
        self.count = min(math.ceil(TOKENS / BATCH), len(self.stream.steps(0)))
        self.before = self._loss(plain.to(ranks.device))
        self.weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in plain.named_parameters()}

    def compare(self) -> dict[str, Any]:
        """The loss before and after, and the distance, in all and by part, relative to how long the weights were."""
        after, merged = self._loss(self.body), self._merged()
        moved = {
            name: _squares(now.detach().cpu(), self.weights.get(name))
            for name, now in merged.named_parameters()
            if name in self.weights or self.merge is not None
        }
        divided = {part: [name for name in names if name in moved] for part, names in parts(merged).items()}
        return {
            "objective": type(self.objective).__name__,
            "data": str(Path(self.source.reading.path)),
            "before": self.before,
            "after": after,
            "difference": after["loss"] - self.before["loss"],
            "distance": _relative([*moved.values()]),
            "by_part": {part: _relative([moved[name] for name in names]) for part, names in divided.items() if names},
        }

    def _merged(self) -> LanguageModel:
        """The body with what was learnt in its weights, where that can be."""
        if self.merge is None:
            return self.body
        made = copy.deepcopy(self.body)
        self.merge(made)
        return made

    def _loss(self, model: LanguageModel) -> dict[str, float]:
        trainee = Trainee(model, self.objective.evaluation())
        found = evaluate(trainee, self.stream, self.count, self.ranks, precision=self.precision)
        assert found is not None
        return found


def objective_of(body: LanguageModel) -> Objective:
    """What a model was pre-trained with, as its paper did, or as models of its shape are."""
    family = FAMILIES.get(body.spec.family) if body.spec.family in FAMILIES else None
    if family is not None and family.training is not None:
        found = read_objective(dict(family.training.objective))
        if body.shape in found.shapes and found.pairs in (None, "kept"):
            return found
    if body.shape not in BY_SHAPE:
        raise UsageError(
            f"--forgetting is not for a model of the shape '{body.shape}' (allowed: {', '.join(BY_SHAPE)})"
        )
    return read_objective(BY_SHAPE[body.shape])


def _squares(now: Tensor, old: Tensor | None) -> tuple[float, float]:
    """What it moved and how long it was, squared; what was not there was zero."""
    before = torch.zeros_like(now) if old is None else old
    now = now[: len(before)] if now.dim() and len(now) > len(before) else now  # rows of tokens for the task
    return float((now.double() - before.double()).square().sum()), float(before.double().square().sum())


def _relative(squares: list[tuple[float, float]]) -> float:
    moved, long = (math.fsum(values) for values in zip(*squares, strict=True))
    return math.sqrt(moved / long) if long else 0.0
