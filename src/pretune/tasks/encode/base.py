"""How the examples of a task become sequences for a model: what all kinds of task share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.core.format import join_names
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Ints
from pretune.data.sequence_template import SequenceTemplate
from pretune.data.sequences import Sequences
from pretune.models.spec import Model
from pretune.tasks.encode.token_pool import PooledSequences, TokenPool, compute_room, split_room
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingRules:
    """A task, a tokenizer, the model's shape, and the lengths."""

    task: Task
    spec: Model
    tokenizer: Tokenizer
    frame: SequenceTemplate
    max_length: int  # of a sequence, special tokens included
    stride: int  # tokens that one window of a passage shares with the next
    new_tokens: int  # of an answer that is written, special ones left out
    scale: tuple[float, float] | None = None  # of a regression
    has_lm_loss: bool = False  # whether the next token is a target too

    def tokenize(self, texts: Sequence[str]) -> TokenPool:
        """The tokens of texts."""
        return TokenPool.from_texts(self.tokenizer, texts)

    def fit(self, pool: TokenPool, first: Ints, second: Ints | None = None) -> tuple[PooledSequences, Ints]:
        """Texts of the pool, or pairs of them, cut to the length and laid out; and how many tokens each lost."""
        a, lengths = pool.offsets[:-1][first], pool.lengths[first]
        if second is None:
            kept = np.minimum(lengths, compute_room(self.frame, self.max_length, pair=False))
            return pool.lay_out(self.frame, a, kept), lengths - kept
        b, others = pool.offsets[:-1][second], pool.lengths[second]
        kept, more = split_room(lengths, others, compute_room(self.frame, self.max_length, pair=True))
        return pool.lay_out(self.frame, a, kept, b, more), lengths - kept + others - more

    def set_segments(self, sequences: Sequences) -> Sequences:
        """The sequences with segments where the model has a place for them, and without otherwise."""
        found, table = sequences.segments, self.spec.stacks[0].embed.segments
        if self.spec.shape == "two-stream":  # which has no table: it asks whether two tokens are in the same one
            table = table or 2**31
        top = 0 if found is None else int(found.max(initial=0))
        return sequences if 0 < top < (table or 0) else replace(sequences, segments=None)

    def normalise_score(self, value: float) -> float:
        """A score of the task as the model learns it: between -1 and 1 where the task has a scale."""
        if self.scale is None:
            return value
        low, high = self.scale
        return 2 * (value - low) / (high - low) - 1

    def denormalise_score(self, value: float) -> float:
        """What the model says, on the task's scale; beyond its ends it is their value."""
        if self.scale is None:
            return value
        low, high = self.scale
        return min(max(low + (value + 1) / 2 * (high - low), low), high)


def read_classes(task: Task, examples: Sequence[Example]) -> Ints:
    """The label of each example, checked."""
    found = np.empty(len(examples), dtype=np.int64)
    for number, example in enumerate(examples):
        label = example.label
        if label is None:
            raise missing_value_error(task, number, example, "no label")
        options = len(example.choices) if task.kind == "choice" else len(task.labels)
        if not 0 <= label < options or label != int(label):
            raise DataError(
                f"task '{task.name}': example {number} ({format_example(example)}) has the label {label}; "
                f"allowed are 0 to {options - 1}{_format_labels(task)}"
            )
        found[number] = int(label)
    return found


def read_scores(rules: EncodingRules, examples: Sequence[Example]) -> NDArray[np.float32]:
    """The score of each example, as the model learns it."""
    found = np.empty(len(examples), dtype=np.float32)
    for number, example in enumerate(examples):
        if example.label is None or not np.isfinite(example.label):
            raise missing_value_error(
                rules.task, number, example, "no score" if example.label is None else "no finite score"
            )
        found[number] = rules.normalise_score(float(example.label))
    return found


def build_next_token_targets(sequences: Sequences) -> Ints:
    """[T] the next token of the same sequence, for a language model's loss."""
    targets = np.append(sequences.tokens[1:], IGNORE_INDEX)
    targets[sequences.offsets[1:] - 1] = IGNORE_INDEX
    return targets


def missing_value_error(task: Task, number: int, example: Example, problem: str) -> DataError:
    """The error of an example that cannot be learnt from."""
    return DataError(
        f"task '{task.name}': example {number} ({format_example(example)}) has {problem}; fill it in, or leave the example out"
    )


def format_example(example: Example) -> str:
    """An example in an error message."""
    return f"id {example.id[:40]!r}" if example.id else repr(example.text[:40])


def _format_labels(task: Task) -> str:
    return f" ({join_names(task.labels, 10)})" if task.labels else ""
