"""Encoders of a run's examples: one, or one for each task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pretune.adaptation.adapted import ModelWithHead, select_head
from pretune.adaptation.heads.multi_task import MultiTask
from pretune.core.errors import DataError
from pretune.data.sampling import SmoothedMixing
from pretune.inference.text_model import count_unknown, describe_unknown
from pretune.runs.finetune.adapted_model import build_encoder
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.task_data import TaskData, index_by_member
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Counts, Items, mix_items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import predict
from pretune.tasks.stream import MultiTaskStream, TaskStream

MAX_UNKNOWN_SHARE = 0.05
"""Share of unknown tokens that triggers a warning; text in the vocabulary's language has well below 1%."""
SAMPLE_EXAMPLES = 1000
"""Number of examples on which unknown tokens are counted."""


@dataclass(frozen=True, slots=True)
class TaskEncoders:
    """Task data with the encoders of its examples; with `has_separate_heads`, each task has a head."""

    task_data: TaskData
    encoders: tuple[TaskEncoder, ...]
    has_separate_heads: bool = False

    @classmethod
    def from_model(
        cls, tuning: FinetuneConfig, task_data: TaskData, model: ModelWithHead, train: list[Example]
    ) -> "TaskEncoders":
        """Build the encoders for a model with its head."""
        if not isinstance(model.spec, MultiTask):
            encoder = build_encoder(tuning, task_data.task, model, train)
            rules = [replace(encoder.rules, task=member.task, scale=member.task.scale) for member in task_data.members]
            return cls(task_data, tuple(replace(encoder, rules=member_rules) for member_rules in rules) or (encoder,))
        member_examples = [[train[place] for place in mine] for mine in index_by_member(task_data, train)]
        encoders = [
            build_encoder(
                tuning, member.task, select_head(model, number), member_examples[number] or member.parts.train
            )
            for number, member in enumerate(task_data.members)
        ]
        return cls(task_data, tuple(encoders), has_separate_heads=True)

    @property
    def is_generative(self) -> bool:
        """True if answers are generated, which is slow."""
        return any(encoder.is_generative for encoder in self.encoders)

    def encode(self, examples: Sequence[Example]) -> tuple[Items, ...]:
        """Return the items of each task."""
        if not self.task_data.members:
            return (self.encoders[0].encode(examples),)
        parts: list[Items] = []
        for encoder, mine in zip(self.encoders, index_by_member(self.task_data, examples), strict=True):
            if not mine:
                raise DataError(
                    f"task '{encoder.task.name}': none of {len(examples)} training examples belongs to it; "
                    "increase task.train_examples"
                )
            parts.append(encoder.encode([examples[place] for place in mine]))
        return tuple(parts)

    def find_unknown_tokens(self, examples: Sequence[Example]) -> list[str]:
        """Return a note if many tokens are unknown: text of another language or script."""
        subset = examples[:: max(len(examples) // SAMPLE_EXAMPLES, 1)]
        texts = [text for example in subset for text in (example.text, example.pair or "", *example.choices) if text]
        rules = self.encoders[0].rules
        ids = rules.tokenize(texts).ids
        count = count_unknown(rules.tokenizer, ids)
        if count < MAX_UNKNOWN_SHARE * len(ids):
            return []
        return [f"train: {describe_unknown(count, len(ids))}; use a model whose vocabulary covers this language"]

    def build_stream(
        self, items: Sequence[Items], tuning: FinetuneConfig, *, fixed_shape: bool = False
    ) -> TaskStream | MultiTaskStream:
        """Return the batches of a run: of one task, of all tasks mixed, or of alternating tasks with a head each."""
        fit, temperature = tuning.train, tuning.tune.temperature
        if self.has_separate_heads:
            streams = [
                TaskStream(task_items, batch=fit.batch, seed=fit.seed, fixed_shape=fixed_shape) for task_items in items
            ]
            return MultiTaskStream(streams, temperature=temperature, seed=fit.seed)
        several = len(items) > 1
        mixing = SmoothedMixing(alpha=1 / temperature) if several else None
        combined_items = mix_items(items) if several else items[0]
        return TaskStream(combined_items, batch=fit.batch, seed=fit.seed, fixed_shape=fixed_shape, mixing=mixing)

    def predict(
        self, model: ModelWithHead, examples: Sequence[Example], precision: torch.dtype | None
    ) -> list[Prediction]:
        """Return one prediction for each example, in order."""
        with torch.compiler.set_stance("force_eager"):  # each length would be compiled again
            if not self.task_data.members:
                return predict(model, self.encoders[0], examples, precision=precision)
            predictions: dict[int, Prediction] = {}
            for number, (encoder, mine) in enumerate(
                zip(self.encoders, index_by_member(self.task_data, examples), strict=True)
            ):
                member_examples = [examples[place] for place in mine]
                view = select_head(model, number) if self.has_separate_heads else model
                predictions |= zip(
                    mine,
                    predict(view, encoder, member_examples, precision=precision) if member_examples else [],
                    strict=True,
                )
            return [predictions[place] for place in range(len(examples))]


def sum_counts(items: Sequence[Items]) -> Counts:
    """Sum the encoding counts of all tasks."""
    return sum((task_items.counts for task_items in items[1:]), start=items[0].counts)
