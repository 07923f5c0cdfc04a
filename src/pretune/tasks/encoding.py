"""Encoding of examples, the part shared by all task types: tokens, special tokens, truncation, and the result.

    pool = TokenPool.from_texts(tokenizer, ["a fine film", "not really"])
    pool.lay_out(template, start, length, second, second_length)     # [CLS] a fine film [SEP] not really [SEP]

All operations are vectorized over texts. A special token spelled out in a text is tokenized as text, so that data
cannot inject special tokens. The encoding of each type is in `types`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.core.log import join_names
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import PER_TOKEN, Ints, Sequences, compute_offsets, compute_starts, join, spread
from pretune.models.spec import Model
from pretune.tasks.example import Example, Examples, format_example
from pretune.tasks.task import Task
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate, split_room
from pretune.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]
T = TypeVar("T")


class PooledSequences(NamedTuple):
    """Sequences, and the position of each token in the pool; -1 for special tokens."""

    sequences: Sequences
    pool_index: Ints  # [T]


@dataclass(frozen=True, slots=True)
class TokenPool:
    """The tokens of D texts, T in total."""

    ids: Ints  # [T]
    offsets: Ints  # [D + 1]
    starts: Ints  # [T] first character of each token in its text
    blank_token: int  # token of an empty text if the template adds none

    @classmethod
    def from_texts(cls, tokenizer: Tokenizer, texts: Sequence[str]) -> "TokenPool":
        """Tokenize texts."""
        encoding = tokenizer.encode_batch(texts, literal=True)
        blank = next((tokenizer.special[role] for role in ("unk", "pad", "eos") if role in tokenizer.special), 0)
        ids, starts = (np.asarray(column, dtype=np.int64) for column in (encoding.ids, encoding.starts))
        return cls(ids=ids, offsets=encoding.offsets, starts=starts, blank_token=blank)

    @property
    def lengths(self) -> Ints:
        """Tokens of each text `[D]`."""
        return np.diff(self.offsets)

    def lay_out(
        self,
        template: TokenTemplate,
        start: Ints,
        length: Ints,
        second: Ints | None = None,
        second_length: Ints | None = None,
    ) -> PooledSequences:
        """Lay out ranges of the pool, or pairs of them, in a template; a pair without a second text is one text."""
        if second is None or second_length is None:
            pieces = template.wrap(start, length)
        else:
            pieces = template.wrap_pair(start, length, second, second_length)
        index = np.where(np.repeat(pieces.special, pieces.length), -1, spread(pieces.start, pieces.length))
        sequences = Sequences.from_pieces(pieces, self.ids[index[index >= 0]], segments=True)
        return self._fill_empty(PooledSequences(sequences, index))

    def _fill_empty(self, layout: PooledSequences) -> PooledSequences:
        """Add one token to every sequence that would be empty."""
        lengths = layout.sequences.lengths
        if (lengths > 0).all():
            return layout
        positions = layout.sequences.offsets[:-1][lengths == 0]
        tokens = np.insert(layout.sequences.tokens, positions, self.blank_token)
        sequences = Sequences(
            tokens=tokens,
            offsets=compute_offsets(np.maximum(lengths, 1)),
            special=np.insert(cast(NDArray[np.bool_], layout.sequences.special), positions, True),
            segments=np.insert(cast(Ints, layout.sequences.segments), positions, 0),
        )
        return PooledSequences(sequences, np.insert(layout.pool_index, positions, -1))


def deduplicate(texts: Sequence[T]) -> tuple[list[T], Ints]:
    """Return the distinct texts, and the index of each text among them: passages occur with many questions.

    >>> deduplicate(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    numbers: dict[T, int] = {}
    text_ids = [numbers.setdefault(text, len(numbers)) for text in texts]
    return [*numbers], np.array(text_ids, dtype=np.int64)


def build_task_template(tokenizer: Tokenizer, spec: Model) -> TokenTemplate:
    """Return the template of texts: the tokenizer's; for a decoder start, delimiter and end (Radford et al., 2018).

    A decoder is read at its end token: a `cls` token other than the start, or else the end-of-document token, which
    also replaces the others if the vocabulary has no separate tokens.
    """
    template = tokenizer.template
    if spec.shape != "decoder":
        return template
    special_ids = tokenizer.special
    start = next((special_ids[role] for role in ("bos", "cls", "eos") if role in special_ids), None)
    ends = [special_ids[role] for role in ("cls", "eos", "sep") if role in special_ids]
    end = next((token for token in ends if token != start), ends[0] if ends else None)
    delimiter = next((special_ids[role] for role in ("sep", "eos", "bos") if role in special_ids), None)
    prefix = [(token, 0) for token, _ in template.prefix] or ([] if start is None else [(start, 0)])
    suffix = [(token, 0) for token, _ in template.suffix] or ([] if end is None else [(end, 0)])
    middle = [] if delimiter is None else [(delimiter, 0)]
    return TokenTemplate(
        single=(*prefix, (TEXT_A, 0), *suffix), pair=(*prefix, (TEXT_A, 0), *middle, (TEXT_B, 0), *suffix)
    )


def compute_room(template: TokenTemplate, length: int, *, pair: bool) -> int:
    """Return the number of text tokens that fit into a sequence of `length`."""
    num_special = template.pair_special_count if pair else template.special_count
    if length <= num_special:
        raise UsageError(f"max_length must be > {num_special} (special tokens), got {length}")
    return length - num_special


@spec
class Counts:
    """Statistics of an encoding; everything that is lost is counted here."""

    examples: int = 0
    sequences: int = 0
    tokens: int = 0  # of both sides, including special ones
    longest: int = 0  # tokens of the longest sequence
    cut: int = 0  # truncated examples
    lost: int = 0  # tokens lost by truncation
    empty: int = 0  # examples (of a choice: options) with special tokens only
    words_lost: int = 0  # words of a tagging task without a token: truncated, or empty after tokenization
    answers_lost: int = 0  # answers that are in no window of their passage
    options_left: int = 0  # wrong options of a choice that are not used in training

    @property
    def truncated_share(self) -> float:
        """Share of truncated examples."""
        return self.cut / max(self.examples, 1)

    def __add__(self, counts: "Counts") -> "Counts":
        sums = {part.name: getattr(self, part.name) + getattr(counts, part.name) for part in fields(self)}
        return Counts(**{**sums, "longest": max(self.longest, counts.longest)})


def count_truncated(lost: Ints, text_lengths: Ints) -> Counts:
    """Return the counts of examples, from the tokens that each lost, and from the tokens of their texts."""
    return Counts(
        examples=len(lost), cut=int((lost > 0).sum()), lost=int(lost.sum()), empty=int((text_lengths == 0).sum())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """S sequences in I items; an item is laid out in one row, and is usually one sequence.

    In training the options of a choice are one item. A long passage is several items of one example.
    """

    sequences: Sequences
    sizes: Ints  # [I] sequences of each item
    examples: Ints  # [S] example of each sequence
    counts: Counts
    # [T] the word of which a token is the first, or its index in the passage; else -1
    alignment: Ints | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def has_features(self) -> bool:
        """True if the sequences have cached features of a frozen model."""
        return self.sequences.sequence_features is not None or self.sequences.token_features is not None

    @property
    def lengths(self) -> tuple[Ints, Ints | None]:
        """Tokens of each item `[I]`, and on the encoder's side."""
        source = self.sequences.source
        return self._sum_by_item(self.sequences.lengths), None if source is None else self._sum_by_item(source.lengths)

    def take(self, items: Ints) -> Sequences:
        """Return the sequences of some items, in the given order, with their example as sample."""
        index = items
        if len(self.sizes) < len(self.examples):
            index = spread(compute_starts(self.sizes)[items], self.sizes[items])
        return replace(self.sequences.take(index), samples=self.examples[index])

    def _sum_by_item(self, lengths: Ints) -> Ints:
        return np.diff(compute_offsets(lengths)[compute_offsets(self.sizes)])


def build_items(
    sequences: Sequences,
    counts: Counts,
    *,
    examples: Ints | None = None,
    sizes: Ints | None = None,
    alignment: Ints | None = None,
) -> Items:
    """Build items of sequences; by default one item and one example per sequence."""
    sides = [sequences] if sequences.source is None else [sequences, sequences.source]
    return Items(
        sequences=compact(sequences),
        sizes=np.ones(len(sequences), dtype=np.int64) if sizes is None else sizes,
        examples=np.arange(len(sequences)) if examples is None else examples,
        counts=replace(
            counts,
            sequences=len(sequences),
            tokens=sum(len(side.tokens) for side in sides),
            longest=max(int(side.lengths.max(initial=0)) for side in sides),
        ),
        alignment=alignment,
    )


def compact(sequences: Sequences) -> Sequences:
    """Return the sequences with int32 fields: half the memory, as they are kept for a run and sent to workers."""
    int32_fields: dict[str, Any] = {}
    for name in PER_TOKEN:
        values = getattr(sequences, name)
        if values is not None and values.dtype == np.int64:
            int32_fields[name] = cast(Ints, values.astype(np.int32))
    source = None if sequences.source is None else compact(sequences.source)
    return replace(sequences, **int32_fields, source=source)


def mix_items(parts: Sequence[Items]) -> Items:
    """Join several tasks with one head; each is a source, weighted by a mixture."""
    if not parts:
        raise UsageError("a mixture needs at least one task, got none")
    sides = {part.sequences.source is None for part in parts}
    if len(sides) > 1:
        raise UsageError("tasks with different heads cannot be mixed; choose tasks with the same head")
    sequences = [
        replace(part.sequences, special=None, sources=np.full(len(part.sequences), number))
        for number, part in enumerate(parts)
    ]
    first_examples = compute_starts(np.array([part.counts.examples for part in parts]))
    return Items(
        sequences=join(sequences),
        sizes=np.concatenate([part.sizes for part in parts]),
        examples=np.concatenate([part.examples + shift for part, shift in zip(parts, first_examples, strict=True)]),
        counts=sum((part.counts for part in parts[1:]), start=parts[0].counts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLogits:
    """The logits whose sum stands for a prediction: of one sequence, at rows (tokens, or 0) and columns."""

    sequence: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    name: str  # of the label, the word or the answer


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
    slots: int = 0  # virtual tokens of a prompt before each sequence
    target_spellings: tuple[str, ...] = ()  # targets of the task's template as the tokenizer decodes them

    def tokenize(self, texts: Sequence[str]) -> TokenPool:
        """Tokenize texts."""
        return TokenPool.from_texts(self.tokenizer, texts)

    def spell(self, answer: str) -> str:
        """Return an answer as it is generated: encoded, truncated and decoded.

        A tokenizer may change the spelling: lower case, other spaces around punctuation.
        """
        ids = self.tokenizer.encode(answer, add_special_tokens=False, literal=True)
        return self.tokenizer.decode(ids[: self.max_new_tokens], special=False).strip()

    def fit(self, pool: TokenPool, first: Ints, second: Ints | None = None) -> tuple[PooledSequences, Ints]:
        """Truncate texts of the pool, or pairs, and lay them out; return also the number of tokens each lost."""
        template = self.sequence_template
        room = compute_room(template, self.max_length, pair=second is not None)
        first_starts, first_lengths = pool.offsets[:-1][first], pool.lengths[first]
        if second is None:
            first_kept = np.minimum(first_lengths, room)
            return pool.lay_out(template, first_starts, first_kept), first_lengths - first_kept
        second_starts, second_lengths = pool.offsets[:-1][second], pool.lengths[second]
        first_kept, second_kept = split_room(first_lengths, second_lengths, room)
        lost = first_lengths - first_kept + second_lengths - second_kept
        return pool.lay_out(template, first_starts, first_kept, second_starts, second_kept), lost

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


def read_classes(task: Task, examples: Examples) -> Ints:
    """Return the label of each example, checked."""
    classes = np.empty(len(examples), dtype=np.int64)
    for number, example in enumerate(examples):
        label = example.label
        if label is None:
            raise missing_value_error(task, number, example, "no label")
        options = len(example.choices) or len(task.labels)
        if not 0 <= label < options or label != int(label):
            raise DataError(
                f"task '{task.name}': label of example {number} ({format_example(example)}) must be from 0 to "
                f"{options - 1}{_format_labels(task)}, got {label}"
            )
        classes[number] = int(label)
    return classes


def number_tags(task: Task, names: Mapping[str, int], number: int, example: Example, noun: str = "tag") -> list[int]:
    """Return the tags of an example as numbers of the task's labels, checked."""
    for tag in example.tags:
        if tag not in names:
            raise DataError(
                f"task '{task.name}': {noun} of example {number} ({format_example(example)}) must be one of "
                f"{', '.join(names)[:200]}, got {tag[:40]!r}"
            )
    return [names[tag] for tag in example.tags]


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


def _format_labels(task: Task) -> str:
    return f" ({join_names(task.labels, 10)})" if task.labels else ""
