"""How the examples of a run are read: by one encoder, or where several tasks are learnt together by one for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pretune.adapt.adapted import Adapted
from pretune.core.errors import DataError
from pretune.recipes.finetune.opening import Opened, owned
from pretune.tasks.answer import Prediction, predict
from pretune.tasks.encode import Items, TaskEncoder, mixed
from pretune.tasks.example import Example


@dataclass(frozen=True, slots=True)
class Reader:
    """A task with the encoder of its examples."""

    opened: Opened
    encoder: TaskEncoder

    def encode(self, examples: Sequence[Example]) -> Items:
        """The items of a task, or of several with one head."""
        if not self.opened.members:
            return self.encoder.encode(examples)
        parts: list[Items] = []
        for encoder, mine in zip(self._encoders(), owned(self.opened, examples), strict=True):
            if not mine:
                raise DataError(
                    f"task '{encoder.task.name}': none of {len(examples)} labels is of it; raise task.labels"
                )
            parts.append(encoder.encode([examples[at] for at in mine]))
        return mixed(parts)

    def predict(self, model: Adapted, examples: Sequence[Example], precision: torch.dtype | None) -> list[Prediction]:
        """One prediction for each example, in order."""
        with torch.compiler.set_stance("force_eager"):  # lengths differ; each would be compiled anew
            if not self.opened.members:
                return predict(model, self.encoder, examples, precision=precision)
            found: dict[int, Prediction] = {}
            for encoder, mine in zip(self._encoders(), owned(self.opened, examples), strict=True):
                some = [examples[at] for at in mine]
                found |= zip(mine, predict(model, encoder, some, precision=precision) if some else [], strict=True)
            return [found[at] for at in range(len(examples))]

    def _encoders(self) -> list[TaskEncoder]:
        """Those of the members: the same but for the task."""
        rules = [
            replace(self.encoder.rules, task=member.task, scale=member.task.scale) for member in self.opened.members
        ]
        return [replace(self.encoder, rules=one) for one in rules]
