"""Conversion of a task's examples to sequences for a model: the part shared by all kinds of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError
from pretune.core.format import join_names
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints, Sequences
from pretune.models.spec import Model
from pretune.tasks.encode.token_pool import PooledSequences, TokenPool, compute_room
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.text.template import TokenTemplate, split_room
from pretune.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingRules:
    """A task, a tokenizer, the model's spec, and the lengths."""

    task: Task
    spec: Model
    tokenizer: Tokenizer
    sequence_template: TokenTemplate
    max_length: int  # of a sequence, including special tokens
    stride: int  # overlap of two windows of a passage, in tokens
    max_new_tokens: int  # maximum length of a generated answer, without special tokens
    scale: tuple[float, float] | None = None  # of a regression
    has_lm_loss: bool = False  # the next token is a target too

    def tokenize(self, texts: Sequence[str]) -> TokenPool:
        """Tokenize texts."""
        return TokenPool.from_texts(self.tokenizer, texts)

    def fit(self, pool: TokenPool, first: Ints, second: Ints | None = None) -> tuple[PooledSequences, Ints]:
        """Truncate texts of the pool, or pairs, and lay them out; return also the number of tokens each lost."""
        first_starts, first_lengths = pool.offsets[:-1][first], pool.lengths[first]
        if second is None:
            first_kept = np.minimum(first_lengths, compute_room(self.sequence_template, self.max_length, pair=False))
            return pool.lay_out(self.sequence_template, first_starts, first_kept), first_lengths - first_kept
        second_starts, second_lengths = pool.offsets[:-1][second], pool.lengths[second]
        first_kept, second_kept = split_room(
            first_lengths, second_lengths, compute_room(self.sequence_template, self.max_length, pair=True)
        )
        return pool.lay_out(
            self.sequence_template, first_starts, first_kept, second_starts, second_kept
        ), first_lengths - first_kept + second_lengths - second_kept

    def set_segments(self, sequences: Sequences) -> Sequences:
        """Return the sequences with segments if the model uses them, else without."""
        segments, table = sequences.segments, self.spec.stacks[0].embed.segments
        if self.spec.shape == "two-stream":  # it has no table: it compares the segments of two tokens
            table = table or 2**31
        max_segment = 0 if segments is None else int(segments.max(initial=0))
        return sequences if 0 < max_segment < (table or 0) else replace(sequences, segments=None)

    def normalize_score(self, value: float) -> float:
        """Normalize a score to [-1, 1] if the task has a scale."""
        if self.scale is None:
            return value
        low, high = self.scale
        return 2 * (value - low) / (high - low) - 1

    def denormalize_score(self, value: float) -> float:
        """Map a model's output to the task's scale, clamped to its ends."""
        if self.scale is None:
            return value
        low, high = self.scale
        return min(max(low + (value + 1) / 2 * (high - low), low), high)


def read_classes(task: Task, examples: Sequence[Example]) -> Ints:
    """Return the label of each example, checked."""
    classes = np.empty(len(examples), dtype=np.int64)
    for number, example in enumerate(examples):
        label = example.label
        if label is None:
            raise missing_value_error(task, number, example, "no label")
        options = len(example.choices) if task.kind == "choice" else len(task.labels)
        if not 0 <= label < options or label != int(label):
            raise DataError(
                f"task '{task.name}': label of example {number} ({format_example(example)}) must be from 0 to "
                f"{options - 1}{_format_labels(task)}, got {label}"
            )
        classes[number] = int(label)
    return classes


def read_scores(rules: EncodingRules, examples: Sequence[Example]) -> NDArray[np.float32]:
    """Return the normalized score of each example."""
    scores = np.empty(len(examples), dtype=np.float32)
    for number, example in enumerate(examples):
        if example.label is None or not np.isfinite(example.label):
            raise missing_value_error(
                rules.task, number, example, "no score" if example.label is None else "no finite score"
            )
        scores[number] = rules.normalize_score(float(example.label))
    return scores


def build_next_token_targets(sequences: Sequences) -> Ints:
    """Return the next token of the same sequence `[T]`, for a language modeling loss."""
    targets = np.append(sequences.tokens[1:], IGNORE_INDEX)
    targets[sequences.offsets[1:] - 1] = IGNORE_INDEX
    return targets


def missing_value_error(task: Task, number: int, example: Example, problem: str) -> DataError:
    """Return the error for an example without a label."""
    return DataError(
        f"task '{task.name}': example {number} ({format_example(example)}) has {problem}; fill it in, or remove the "
        "example"
    )


def format_example(example: Example) -> str:
    """Return an example's id or text for an error message."""
    return f"id {example.id[:40]!r}" if example.id else repr(example.text[:40])


def _format_labels(task: Task) -> str:
    return f" ({join_names(task.labels, 10)})" if task.labels else ""
