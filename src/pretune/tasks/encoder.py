"""`TaskEncoder`: the examples of a task as sequences for a model and its head; and the head of a task for a model.

model = adapt(pt.load("runs/base"), build_head(task, base.spec, base.tokenizer))
encoder = TaskEncoder.from_task(task, model)
items = encoder.encode(parts.train)                # items.counts: truncation statistics
stream = TaskStream(items, batch=32, seed=0)       # for `training.dataloader`
"""

import sys
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.heads.base import TaskHead, build_encoder_decoder_inputs, use_stored_pooling
from pretune.adaptation.heads.sequence import Classification, LabelHead, ScoreHead
from pretune.adaptation.heads.token import Generation
from pretune.core.errors import DataError, UsageError
from pretune.data.sequences import reserve
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.tasks.encoding import EncodingRules, Items, build_task_template, compact
from pretune.tasks.example import Examples
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.text_to_text import GENERATION, encode_text_to_text, has_template, spell_targets
from pretune.text.tokenizer import Tokenizer

MAX_DEFAULT_LENGTH = 512
"""Maximum of the default length if texts are long."""
LENGTH_SAMPLE, MAX_TRUNCATED_SHARE = 500, 0.05
"""Examples that are sampled to choose the default length, and the share of them that may be truncated."""
MAX_LABEL_TOKENS = 16
"""Maximum tokens of a generated label."""


def build_head(
    task: Task,
    model: LanguageModel | Model,
    tokenizer: Any = None,
    *,
    text_to_text: bool | None = None,
    lm_loss_weight: float = 0.0,
) -> TaskHead:
    """Return the resolved head of a task for a model (or a spec); reject a model that cannot have it.

    With `text_to_text` the answer is generated, by the task's template. That is the default for an encoder-decoder
    whose vocabulary has sentinels (it was pre-trained to generate) if the task has a template. `lm_loss_weight` is the
    weight of the auxiliary language modeling loss of a classification (Radford et al., 2018).
    """
    spec = model.spec if isinstance(model, LanguageModel) else model
    if tokenizer is None and isinstance(model, LanguageModel) and model.tokenizer is not None:
        tokenizer = get_tokenizer(model)
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer(tokenizer)
    if text_to_text is None:
        text_to_text = bool(
            spec.shape == "encoder-decoder" and spec.head and task.template and tokenizer and tokenizer.sentinels
        )
    if text_to_text and not has_template(task):
        raise UsageError(f"task '{task.name}' has no template, so it cannot be text-to-text")
    head: TaskHead = Generation() if text_to_text else get_type(task).inputs.build_head(task)
    if lm_loss_weight and not text_to_text:
        if not isinstance(head, Classification):
            raise UsageError(f"a language modeling loss needs a classification task; '{task.name}' is {task.kind}")
        head = replace(head, lm_loss_weight=lm_loss_weight)
    if isinstance(model, LanguageModel):
        head = use_stored_pooling(head, model)
    return head.resolve(spec)


@dataclass(frozen=True, slots=True)
class TaskEncoder:
    """A task's encoding rules, and the head."""

    rules: EncodingRules
    head: TaskHead

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
        max_new_tokens: int | None = None,
        examples: Examples = (),
    ) -> Self:
        """Return the encoder of a task for a model; lengths default to the type's usual ones, within the model's limit.

        With `examples` the default length is doubled, up to twice, if too many of them would be truncated.
        """
        tokenizer = tokenizer or get_tokenizer(model)
        spec, is_generative = model.model.spec, isinstance(model.spec, Generation)
        stacks = (model.model.encoder, model.model.decoder)
        # The keys of a prefix take positions too.
        reserved_positions = slots + max(stack.prefix_length if stack else 0 for stack in stacks)
        max_text_length = sys.maxsize if spec.max_length is None else spec.max_length - reserved_positions
        if tokenizer.vocab > spec.vocab:
            raise UsageError(
                f"the tokenizer has {tokenizer.vocab} tokens, the model {spec.vocab}; use the model's own tokenizer"
            )
        scale = scale or task.scale
        if scale is not None and not scale[0] < scale[1]:
            raise UsageError(f"scale must be (low, high) with low < high, got ({scale[0]}, {scale[1]})")
        rules = EncodingRules(
            task=task,
            spec=spec,
            tokenizer=tokenizer,
            sequence_template=build_task_template(tokenizer, spec),
            max_length=_resolve_length(task, max_text_length, max_length, reserved_positions, is_generative),
            stride=stride,
            max_new_tokens=_resolve_max_new_tokens(task, spec.max_length, max_new_tokens) if is_generative else 0,
            scale=scale,
            slots=slots,
            has_lm_loss=isinstance(model.spec, Classification) and model.spec.lm_loss_weight > 0,
        )
        if is_generative:
            rules = replace(rules, target_spellings=spell_targets(rules))
        encoder = cls(rules, model.spec)
        max_default = min(max_text_length, MAX_DEFAULT_LENGTH)
        while max_length is None and examples and (length := encoder.rules.max_length) < max_default:
            if not encoder._truncates_many(examples):
                break
            encoder = replace(encoder, rules=replace(encoder.rules, max_length=min(2 * length, max_default)))
        return encoder

    def _truncates_many(self, examples: Examples) -> bool:
        """Return True if more than a few of the sampled examples are truncated."""
        sample = examples[:: max(len(examples) // LENGTH_SAMPLE, 1)]
        return self.encode(sample, training=False).counts.truncated_share > MAX_TRUNCATED_SHARE

    @property
    def task(self) -> Task:
        """The encoded task."""
        return self.rules.task

    @property
    def slots(self) -> int:
        """Number of virtual tokens before each sequence."""
        return self.rules.slots

    @property
    def per_token(self) -> bool:
        """True if the head has a row of logits per token, not per sequence."""
        return not isinstance(self.head, LabelHead | ScoreHead)

    @property
    def is_generative(self) -> bool:
        """True if the model generates its answers as text."""
        return isinstance(self.head, Generation)

    def encode(self, examples: Examples, *, training: bool = True) -> Items:
        """Encode examples; with `training` also their labels, which every example must have."""
        if not examples:
            raise DataError(f"task '{self.task.name}': no examples to encode; pass at least one")
        inputs = get_type(self.task).inputs
        if self.is_generative and not inputs.has_own_encoding:
            return self._finalize(encode_text_to_text(self.rules, examples, training=training))
        items = inputs.encode(self.rules, examples, training=training)
        return self._finalize(replace(items, sequences=build_encoder_decoder_inputs(items.sequences, self.rules.spec)))

    def _finalize(self, items: Items) -> Items:
        """Add the slots, and drop the fields that no batch uses."""
        alignment = items.alignment
        sequences = replace(items.sequences, special=None)
        if self.slots:
            if alignment is not None and sequences.source is None:
                alignment = np.insert(alignment, np.repeat(sequences.offsets[:-1], self.slots), -1)
            sequences = reserve(sequences, self.slots)
        longest = items.counts.longest + self.slots
        counts = replace(items.counts, longest=longest)
        return replace(items, sequences=compact(sequences), alignment=alignment, counts=counts)


def find_scale(task: Task, train: Examples) -> tuple[float, float] | None:
    """Return the range of the scores, if the task has scores and no published scale."""
    if task.scale is not None or get_type(task).scoring.gold != "score":
        return None
    values = [float(example.label) for example in train if example.label is not None]
    return min(values), max(values)


def _resolve_length(task: Task, max_text_length: int, max_length: int | None, slots: int, is_generative: bool) -> int:
    inputs = get_type(task).inputs
    default_length = (GENERATION.inputs if is_generative and not inputs.has_own_encoding else inputs).default_length
    if max_length is None:
        max_length = min(default_length, max_text_length)
    if max_length > max_text_length:
        slots_note = f" minus {slots} virtual tokens" if slots else ""
        positions = f"{max_text_length} (positions of this model{slots_note})"
        raise UsageError(f"max_length must be <= {positions}, got {max_length}")
    if max_length < 2:
        raise UsageError(f"max_length must be >= 2, got {max_length}")
    return max_length


def _resolve_max_new_tokens(task: Task, max_positions: int | None, max_new_tokens: int | None) -> int:
    has_short_answers = task.template is not None and (task.template.targets or task.scale)
    default = MAX_LABEL_TOKENS if has_short_answers else get_type(task).inputs.default_new_tokens
    limit = default if max_new_tokens is None else max_new_tokens
    if limit < 1:
        raise UsageError(f"max_new_tokens must be >= 1, got {limit}")
    return limit if max_positions is None else min(limit, max(max_positions - 4, 1))
