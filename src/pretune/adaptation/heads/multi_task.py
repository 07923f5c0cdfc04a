"""Several tasks on one body, a head for each (Caruana, 1997; Liu et al., 2019, "MT-DNN").

A batch is of one task, and says which (`Batch.task`); `tasks.encode.Alternating` gives such batches. Predictions are
made with one head at a time, which `adapted.one_of` gives: a model of one task, to be asked or saved. Siblings: all
other heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pretune.adaptation.heads.choice import Choice
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.generation import Generation
from pretune.adaptation.heads.regression import Regression
from pretune.adaptation.heads.span import Span
from pretune.adaptation.heads.tagging import Tagging
from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss
from pretune.models.model import LanguageModel
from pretune.models.spec import Model

SingleHead = Classification | Regression | Tagging | Span | Choice | Generation


@dataclass(frozen=True, slots=True)
class Several:
    """Heads in the order of the tasks; each begins with weights of its own."""

    heads: tuple[SingleHead, ...]

    def __post_init__(self) -> None:
        if not self.heads:
            raise UsageError("several tasks are at least one; give their heads")

    def resolve(self, spec: Model) -> "Several":
        return Several(tuple(head.resolve(spec) for head in self.heads))

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        return MultiTaskHeads([head.build(model, seed=seed + number) for number, head in enumerate(self.heads)])

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return self.heads[batch.task].counts(batch)

    def loss(self, model: Any, batch: Batch) -> Loss:
        return self.heads[batch.task].loss(_SingleHeadView(model, model.head.get_head(batch.task)), batch)


class MultiTaskHeads(nn.Module):
    """The modules of several heads, by their number; a task that is written has none."""

    is_single_part = True  # they are one part of a model, though they have numbers

    def __init__(self, parts: list[nn.Module | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({str(number): part for number, part in enumerate(parts) if part is not None})
        self.reads_all_layers = any(
            getattr(part, "reads_all_layers", False) for part in parts
        )  # then all are: they read the same

    def get_head(self, task: int) -> nn.Module | None:
        """The head of a task."""
        return next((part for name, part in self.parts.items() if name == str(task)), None)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """What the head of the batch's task says."""
        part = self.get_head(batch.task)
        if part is None:
            raise UsageError(f"task {batch.task} is written by the vocabulary head; ask `one_of(model, {batch.task})`")
        out: Tensor = part(states, batch)
        return out


class _SingleHeadView:
    """A model as the head of one task sees it."""

    def __init__(self, model: Any, head: nn.Module | None) -> None:
        self.model, self.head, self.states = model.model, head, model.states
