"""How the examples of a task become sequences for a model: what all kinds of task share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pretune.core.counted import join_names
from pretune.core.errors import DataError
from pretune.core.types import IGNORE
from pretune.data.ragged import Ints
from pretune.data.sequence_template import Frame
from pretune.data.sequences import Sequences
from pretune.models.spec import Model
from pretune.tasks.encode.token_pool import Laid, Pool, room, shares
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A task, a tokenizer, the model's shape, and the lengths."""

    task: Task
    spec: Model
    tokenizer: Tokenizer
    frame: Frame
    max_length: int  # of a sequence, special tokens included
    stride: int  # tokens that one window of a passage shares with the next
    new_tokens: int  # of an answer that is written, special ones left out
    scale: tuple[float, float] | None = None  # of a regression
    language: bool = False  # whether the next token is a target too

    def pool(self, texts: Sequence[str]) -> Pool:
        """The tokens of texts."""
        return Pool.of(self.tokenizer, texts)

    def fit(self, pool: Pool, first: Ints, second: Ints | None = None) -> tuple[Laid, Ints]:
        """Texts of the pool, or pairs of them, cut to the length and laid out; and how many tokens each lost."""
        a, lengths = pool.offsets[:-1][first], pool.lengths[first]
        if second is None:
            kept = np.minimum(lengths, room(self.frame, self.max_length, pair=False))
            return pool.lay(self.frame, a, kept), lengths - kept
        b, others = pool.offsets[:-1][second], pool.lengths[second]
        kept, more = shares(lengths, others, room(self.frame, self.max_length, pair=True))
        return pool.lay(self.frame, a, kept, b, more), lengths - kept + others - more

    def segmented(self, sequences: Sequences) -> Sequences:
        """The sequences with segments where the model has a place for them, and without otherwise."""
        found, table = sequences.segments, self.spec.stacks[0].embed.segments
        if self.spec.shape == "two-stream":  # which has no table: it asks whether two tokens are in the same one
            table = table or 2**31
        top = 0 if found is None else int(found.max(initial=0))
        return sequences if 0 < top < (table or 0) else replace(sequences, segments=None)

    def whole(self, value: float) -> float:
        """A score of the task as the model learns it: between -1 and 1 where the task has a scale."""
        if self.scale is None:
            return value
        low, high = self.scale
        return 2 * (value - low) / (high - low) - 1

    def score(self, value: float) -> float:
        """What the model says, on the task's scale; beyond its ends it is their value."""
        if self.scale is None:
            return value
        low, high = self.scale
        return min(max(low + (value + 1) / 2 * (high - low), low), high)


def classes(task: Task, examples: Sequence[Example]) -> Ints:
    """The label of each example, checked."""
    found = np.empty(len(examples), dtype=np.int64)
    for number, example in enumerate(examples):
        label = example.label
        if label is None:
            raise missing(task, number, example, "no label")
        options = len(example.choices) if task.kind == "choice" else len(task.labels)
        if not 0 <= label < options or label != int(label):
            raise DataError(
                f"task '{task.name}': example {number} ({name_of(example)}) has the label {label}; "
                f"allowed are 0 to {options - 1}{_names(task)}"
            )
        found[number] = int(label)
    return found


def numbers(rules: Rules, examples: Sequence[Example]) -> NDArray[np.float32]:
    """The score of each example, as the model learns it."""
    found = np.empty(len(examples), dtype=np.float32)
    for number, example in enumerate(examples):
        if example.label is None or not np.isfinite(example.label):
            raise missing(rules.task, number, example, "no score" if example.label is None else "no finite score")
        found[number] = rules.whole(float(example.label))
    return found


def following(sequences: Sequences) -> Ints:
    """[T] the next token of the same sequence, for a language model's loss."""
    targets = np.append(sequences.tokens[1:], IGNORE)
    targets[sequences.offsets[1:] - 1] = IGNORE
    return targets


def missing(task: Task, number: int, example: Example, what: str) -> DataError:
    """The error of an example that cannot be learnt from."""
    return DataError(
        f"task '{task.name}': example {number} ({name_of(example)}) has {what}; fill it in, or leave the example out"
    )


def name_of(example: Example) -> str:
    """An example in an error message."""
    return f"id {example.id[:40]!r}" if example.id else repr(example.text[:40])


def _names(task: Task) -> str:
    return f" ({join_names(task.labels, 10)})" if task.labels else ""
