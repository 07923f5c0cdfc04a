"""How the examples of a run are read: by one encoder, or where several tasks are learnt together by one for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pretune.adaptation.adapted import Adapted, one_of
from pretune.adaptation.heads.multi_task import Several
from pretune.core.errors import DataError
from pretune.data.mixing import Smoothed
from pretune.inference.text_model import count_unknown, describe_unknown
from pretune.runs.finetune.adapted_model import encoder_for
from pretune.runs.finetune.config import Tuning
from pretune.runs.finetune.task_data import Opened, owned
from pretune.tasks.decode import Prediction, predict
from pretune.tasks.encode import Alternating, Counts, Items, TaskEncoder, TaskStream, mixed
from pretune.tasks.example import Example

UNKNOWN = 0.05
"""The share of unknown tokens that is worth a warning; text of the vocabulary's own language has well below 1 %."""
SAMPLE = 1000
"""Examples whose tokens are counted for that."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A task, or several, with the encoders of their examples; with `apart` each has a head of its own."""

    opened: Opened
    encoders: tuple[TaskEncoder, ...]
    apart: bool = False

    @classmethod
    def of(cls, tuning: Tuning, opened: Opened, model: Adapted, train: list[Example]) -> "Reader":
        """For a model that has its head."""
        if not isinstance(model.spec, Several):
            one = encoder_for(tuning, opened.task, model, train)
            rules = [replace(one.rules, task=member.task, scale=member.task.scale) for member in opened.members]
            return cls(opened, tuple(replace(one, rules=own) for own in rules) or (one,))
        some = [[train[at] for at in mine] for mine in owned(opened, train)]
        each = [
            encoder_for(tuning, member.task, one_of(model, number), some[number] or member.parts.train)
            for number, member in enumerate(opened.members)
        ]
        return cls(opened, tuple(each), apart=True)

    @property
    def written(self) -> bool:
        """Whether answers are text, which takes long to write."""
        return any(encoder.written for encoder in self.encoders)

    def encode(self, examples: Sequence[Example]) -> tuple[Items, ...]:
        """The items of each task."""
        if not self.opened.members:
            return (self.encoders[0].encode(examples),)
        parts: list[Items] = []
        for encoder, mine in zip(self.encoders, owned(self.opened, examples), strict=True):
            if not mine:
                raise DataError(
                    f"task '{encoder.task.name}': none of {len(examples)} labels is of it; raise task.labels"
                )
            parts.append(encoder.encode([examples[at] for at in mine]))
        return tuple(parts)

    def unknown(self, examples: Sequence[Example]) -> list[str]:
        """A note where a large share of the tokens of some examples is unknown: text of another language or script."""
        some = examples[:: max(len(examples) // SAMPLE, 1)]
        texts = [text for one in some for text in (one.text, one.pair or "", *one.choices) if text]
        rules = self.encoders[0].rules
        ids = rules.pool(texts).ids
        count = count_unknown(rules.tokenizer, ids)
        if count < UNKNOWN * len(ids):
            return []
        return [
            f"train: {describe_unknown(count, len(ids))}, and little can be learnt from them; take a model whose "
            "vocabulary has this language"
        ]

    def stream(self, items: Sequence[Items], tuning: Tuning, *, fixed: bool = False) -> TaskStream | Alternating:
        """The batches of a run: of one task, of all that are written together, or of one task after another."""
        fit, temperature = tuning.train, tuning.tune.temperature
        if self.apart:
            streams = [TaskStream(one, batch=fit.batch, seed=fit.seed, fixed=fixed) for one in items]
            return Alternating(streams, temperature=temperature, seed=fit.seed)
        several = len(items) > 1
        mixing = Smoothed(alpha=1 / temperature) if several else None
        whole = mixed(items) if several else items[0]
        return TaskStream(whole, batch=fit.batch, seed=fit.seed, fixed=fixed, mixing=mixing)

    def predict(self, model: Adapted, examples: Sequence[Example], precision: torch.dtype | None) -> list[Prediction]:
        """One prediction for each example, in order."""
        with torch.compiler.set_stance("force_eager"):  # lengths differ; each would be compiled anew
            if not self.opened.members:
                return predict(model, self.encoders[0], examples, precision=precision)
            found: dict[int, Prediction] = {}
            for number, (encoder, mine) in enumerate(zip(self.encoders, owned(self.opened, examples), strict=True)):
                some = [examples[at] for at in mine]
                view = one_of(model, number) if self.apart else model
                found |= zip(mine, predict(view, encoder, some, precision=precision) if some else [], strict=True)
            return [found[at] for at in range(len(examples))]


def counted(items: Sequence[Items]) -> Counts:
    """What encoding gave and took away, of all tasks."""
    return sum((one.counts for one in items[1:]), start=items[0].counts)
