"""`TaskEncoder`: examples of a task as sequences for a model, in whatever way its head learns from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.encoder_decoder import build_encoder_decoder_inputs
from pretune.adaptation.heads.generation import Generation
from pretune.core.errors import DataError, UsageError
from pretune.data.ragged import Ints
from pretune.data.virtual_tokens import reserve
from pretune.inference.text_model import get_tokenizer
from pretune.tasks.encode import choice, sequence, span, tagging, text_to_text
from pretune.tasks.encode.base import EncodingRules
from pretune.tasks.encode.items import Items, compact
from pretune.tasks.encode.token_pool import build_frame
from pretune.tasks.example import Example
from pretune.tasks.task import Kind, Task
from pretune.text.tokenizer import Tokenizer

DEFAULT_LENGTHS: dict[Kind, int] = {"choice": 256, "span": 384, "generation": 512}
"""The usual length of a sequence by kind, where the model allows it; of all others it is `DEFAULT_LENGTH`."""
DEFAULT_LENGTH = 128
MAX_DEFAULT_LENGTH = 512
"""What the usual length may become where texts are long."""
LENGTH_SAMPLE, MAX_TRUNCATED_SHARE = 500, 0.05
"""So many examples are looked at, and this share of them may be cut."""
MAX_TEXT_TOKENS, MAX_LABEL_TOKENS = 64, 16
"""Tokens of an answer that is written: a text, and the name of a label."""

_ENCODERS: dict[str, Callable[..., Items]] = {
    "classification": sequence.encode,
    "pair": sequence.encode,
    "regression": sequence.encode,
    "tagging": tagging.encode,
    "span": span.encode,
    "choice": choice.encode,
}


@dataclass(frozen=True, slots=True)
class TaskEncoder:
    """A task's rules with the head that reads them, and slots for the vectors of a prompt."""

    rules: EncodingRules
    head: TaskHead
    slots: int = 0

    @classmethod
    def from_task(
        cls,
        task: Task,
        model: ModelWithHead,
        tokenizer: Tokenizer | None = None,
        *,
        max_length: int | None = None,
        stride: int = 128,
        slots: int = 0,
        scale: tuple[float, float] | None = None,
        new_tokens: int | None = None,
        examples: Sequence[Example] = (),
    ) -> Self:
        """For a model with its head; lengths that are not given are the kind's usual ones, within the model's.

        With `examples` the usual length becomes twice or four times as much where more than a few of them would be cut.
        """
        tokenizer = tokenizer or get_tokenizer(model)
        spec, written_out = model.model.spec, isinstance(model.spec, Generation)
        stacks = (model.model.encoder, model.model.decoder)
        slots_ahead = slots + max(
            stack.prefix_length if stack else 0 for stack in stacks
        )  # keys of a prefix take positions
        if tokenizer.vocab > spec.vocab:
            raise UsageError(
                f"the tokenizer has {tokenizer.vocab} tokens and the model {spec.vocab}; give the model's own tokenizer"
            )
        scale = scale or task.scale
        if scale is not None and not scale[0] < scale[1]:
            raise UsageError(f"a scale goes from a number to a larger one, found {scale[0]} to {scale[1]}")
        rules = EncodingRules(
            task=task,
            spec=spec,
            tokenizer=tokenizer,
            frame=build_frame(tokenizer, spec),
            max_length=_resolve_length(task, spec.max_length, max_length, slots_ahead, written_out),
            stride=stride,
            new_tokens=_resolve_new_tokens(task, spec.max_length, new_tokens) if written_out else 0,
            scale=scale,
            has_lm_loss=isinstance(model.spec, Classification) and model.spec.language > 0,
        )
        made = cls(rules, model.spec, slots)
        most = min(spec.max_length - slots_ahead if spec.max_length else MAX_DEFAULT_LENGTH, MAX_DEFAULT_LENGTH)
        while max_length is None and examples and made.rules.max_length < most and made._truncates_many(examples):
            made = replace(made, rules=replace(made.rules, max_length=min(2 * made.rules.max_length, most)))
        return made

    def _truncates_many(self, examples: Sequence[Example]) -> bool:
        """Whether more than a few examples, of some of them, are cut."""
        some = examples[:: max(len(examples) // LENGTH_SAMPLE, 1)]
        return self.encode(some, training=False).counts.truncated_share > MAX_TRUNCATED_SHARE

    @property
    def task(self) -> Task:
        """What is encoded."""
        return self.rules.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or tags, in order."""
        return self.task.labels

    @property
    def is_generative(self) -> bool:
        """Whether answers are text that the model writes."""
        return isinstance(self.head, Generation)

    def encode(self, examples: Sequence[Example], *, training: bool = True) -> Items:
        """The examples as items; with `training` also what is to be learnt, which every example must then have."""
        if not examples:
            raise DataError(f"task '{self.task.name}': no examples to encode; give at least one")
        if self.is_generative:
            return self._finalise(text_to_text.encode(self.rules, examples, training=training))
        found = _ENCODERS[self.task.kind](self.rules, examples, training=training)
        return self._finalise(replace(found, sequences=build_encoder_decoder_inputs(found.sequences, self.rules.spec)))

    def _finalise(self, items: Items) -> Items:
        """With slots, and without what no batch asks for."""
        marks = items.alignment
        sequences = replace(items.sequences, special=None)
        if self.slots:
            if marks is not None and sequences.source is None:
                marks = _shift_alignment(marks, sequences.offsets, self.slots)
            sequences = reserve(sequences, self.slots)
        longest = items.counts.longest + self.slots
        return replace(
            items, sequences=compact(sequences), alignment=marks, counts=replace(items.counts, longest=longest)
        )  # fmt: skip


def _shift_alignment(alignment: Ints, offsets: Ints, slots: int) -> Ints:
    """Marks with nothing at the slots before each sequence."""
    return np.insert(alignment, np.repeat(offsets[:-1], slots), -1)


def _resolve_length(
    task: Task, max_positions: int | None, max_length: int | None, slots: int, is_generative: bool
) -> int:
    usual = DEFAULT_LENGTHS["generation"] if is_generative else DEFAULT_LENGTHS.get(task.kind, DEFAULT_LENGTH)
    most = None if max_positions is None else max_positions - slots
    if max_length is None:
        max_length = usual if most is None else min(usual, most)
    if most is not None and max_length > most:
        taken = f" and {slots} virtual ones" if slots else ""
        raise UsageError(f"max_length {max_length}{taken}: this model's positions end at {max_positions}; lower it")
    if max_length < 2:
        raise UsageError(f"max_length {max_length} must be at least 2")
    return max_length


def _resolve_new_tokens(task: Task, max_positions: int | None, new_tokens: int | None) -> int:
    named = task.kind != "generation" and task.template is not None and (task.template.targets or task.scale)
    found: Any = new_tokens if new_tokens is not None else MAX_LABEL_TOKENS if named else MAX_TEXT_TOKENS
    if found < 1:
        raise UsageError(f"an answer of {found} tokens; it needs at least 1")
    return int(found) if max_positions is None else min(int(found), max(max_positions - 4, 1))
