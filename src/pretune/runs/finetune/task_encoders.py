"""How the examples of a run are read: by one encoder, or where several tasks are learnt together by one for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pretune.adaptation.adapted import ModelWithHead, select_head
from pretune.adaptation.heads.multi_task import Several
from pretune.core.errors import DataError
from pretune.data.mixing import SmoothedMixing
from pretune.inference.text_model import count_unknown, describe_unknown
from pretune.runs.finetune.adapted_model import build_encoder
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.task_data import TaskData, index_by_member
from pretune.tasks.decode import Prediction, predict
from pretune.tasks.encode import Counts, Items, MultiTaskStream, TaskEncoder, TaskStream, mix_items
from pretune.tasks.example import Example

MAX_UNKNOWN_SHARE = 0.05
"""The share of unknown tokens that is worth a warning; text of the vocabulary's own language has well below 1 %."""
SAMPLE_EXAMPLES = 1000
"""Examples whose tokens are counted for that."""


@dataclass(frozen=True, slots=True)
class TaskEncoders:
    """A task, or several, with the encoders of their examples; with `has_separate_heads` each has a head of its own."""

    task_data: TaskData
    encoders: tuple[TaskEncoder, ...]
    has_separate_heads: bool = False

    @classmethod
    def from_model(
        cls, tuning: FinetuneConfig, task_data: TaskData, model: ModelWithHead, train: list[Example]
    ) -> "TaskEncoders":
        """For a model that has its head."""
        if not isinstance(model.spec, Several):
            one = build_encoder(tuning, task_data.task, model, train)
            rules = [replace(one.rules, task=member.task, scale=member.task.scale) for member in task_data.members]
            return cls(task_data, tuple(replace(one, rules=own) for own in rules) or (one,))
        some = [[train[at] for at in mine] for mine in index_by_member(task_data, train)]
        each = [
            build_encoder(tuning, member.task, select_head(model, number), some[number] or member.parts.train)
            for number, member in enumerate(task_data.members)
        ]
        return cls(task_data, tuple(each), has_separate_heads=True)

    @property
    def is_generative(self) -> bool:
        """Whether answers are text, which takes long to write."""
        return any(encoder.is_generative for encoder in self.encoders)

    def encode(self, examples: Sequence[Example]) -> tuple[Items, ...]:
        """The items of each task."""
        if not self.task_data.members:
            return (self.encoders[0].encode(examples),)
        parts: list[Items] = []
        for encoder, mine in zip(self.encoders, index_by_member(self.task_data, examples), strict=True):
            if not mine:
                raise DataError(
                    f"task '{encoder.task.name}': none of {len(examples)} labels is of it; raise task.train_examples"
                )
            parts.append(encoder.encode([examples[at] for at in mine]))
        return tuple(parts)

    def find_unknown_tokens(self, examples: Sequence[Example]) -> list[str]:
        """A note where a large share of the tokens of some examples is unknown: text of another language or script."""
        some = examples[:: max(len(examples) // SAMPLE_EXAMPLES, 1)]
        texts = [text for one in some for text in (one.text, one.pair or "", *one.choices) if text]
        rules = self.encoders[0].rules
        ids = rules.tokenize(texts).ids
        count = count_unknown(rules.tokenizer, ids)
        if count < MAX_UNKNOWN_SHARE * len(ids):
            return []
        return [
            f"train: {describe_unknown(count, len(ids))}, and little can be learnt from them; take a model whose "
            "vocabulary has this language"
        ]

    def build_stream(
        self, items: Sequence[Items], tuning: FinetuneConfig, *, fixed: bool = False
    ) -> TaskStream | MultiTaskStream:
        """The batches of a run: of one task, of all that are written together, or of one task after another."""
        fit, temperature = tuning.train, tuning.tune.temperature
        if self.has_separate_heads:
            streams = [TaskStream(one, batch=fit.batch, seed=fit.seed, fixed_shape=fixed) for one in items]
            return MultiTaskStream(streams, temperature=temperature, seed=fit.seed)
        several = len(items) > 1
        mixing = SmoothedMixing(alpha=1 / temperature) if several else None
        whole = mix_items(items) if several else items[0]
        return TaskStream(whole, batch=fit.batch, seed=fit.seed, fixed_shape=fixed, mixing=mixing)

    def predict(
        self, model: ModelWithHead, examples: Sequence[Example], precision: torch.dtype | None
    ) -> list[Prediction]:
        """One prediction for each example, in order."""
        with torch.compiler.set_stance("force_eager"):  # lengths differ; each would be compiled anew
            if not self.task_data.members:
                return predict(model, self.encoders[0], examples, precision=precision)
            found: dict[int, Prediction] = {}
            for number, (encoder, mine) in enumerate(
                zip(self.encoders, index_by_member(self.task_data, examples), strict=True)
            ):
                some = [examples[at] for at in mine]
                view = select_head(model, number) if self.has_separate_heads else model
                found |= zip(mine, predict(view, encoder, some, precision=precision) if some else [], strict=True)
            return [found[at] for at in range(len(examples))]


def sum_counts(items: Sequence[Items]) -> Counts:
    """What encoding gave and took away, of all tasks."""
    return sum((one.counts for one in items[1:]), start=items[0].counts)
