"""A mixture: each sequence gets one of several objectives, by chance and weight.

Papers: Raffel et al. (2020, section 3.5.2) mix labelled tasks with text; Tay et al. (2023), UL2, mix denoisers. Input:
what the parts ask for. A document of two sides goes to the parts that read such, any other to those that do not; among
them the choice is drawn for each sequence and epoch, and for nothing else. How many of each kind are read is up to the
data (`pretune.data.mixing`). Mixtures may be parts of mixtures. All parts must train one shape of model by its
vocabulary head alone. The default is UL2 for documents (see `build_denoisers`), and `supervised` for pairs. Siblings: all.

    documents   weight 0.4  span_corruption   <R> a <X> d -> <X> b c <Y>
                weight 0.6  prefix            <S> a b -> c d
    pairs       weight 1    supervised        a -> b

A part may have a mark: a token before its input that says which it is, so that the model can be asked for it later.
Marks are the last sentinels of the vocabulary, which the parts then do without.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.counters import Counters
from pretune.data.epoch_order import SampleLengths
from pretune.data.ragged import Bools, Ints, compute_offsets, spread
from pretune.data.sequences import Sequences
from pretune.data.stream import Corruption, has_random_lengths, predict_lengths
from pretune.objectives.base import MODEL_SHAPES, BaseCorruption, ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.causal import CausalLM
from pretune.objectives.denoising import Denoising
from pretune.objectives.masked import MaskedLM
from pretune.objectives.masked_seq2seq import MaskedSeq2seq
from pretune.objectives.multitask_masked import MultitaskMaskedLM
from pretune.objectives.prefix import LENGTH_DISPERSION, PrefixLM
from pretune.objectives.seq2seq import get_sample_info
from pretune.objectives.span_corruption import SpanCorruption
from pretune.objectives.supervised import SupervisedSeq2seq

_LARGE_BATCH_FACTOR = 10**6


@spec
class Part:
    """One objective of a mixture."""

    objective: "CausalLM | PrefixLM | SpanCorruption | Denoising | MaskedSeq2seq | MaskedLM | MultitaskMaskedLM | SupervisedSeq2seq | Mixture"
    weight: float = 1.0
    mark: int | None = None  # the sentinel before its input, counted from the last: 0, 1, …

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise UsageError(f"the weight of a part of a mixture must be above 0, found {self.weight}")
        if self.mark is not None and self.mark < 0:
            raise UsageError(f"marks count from 0, found {self.mark}; leave it empty for none")

    @property
    def reads_pairs(self) -> bool:
        return self.objective.pairs == "apart"

    @property
    def reads_documents(self) -> bool:
        return self.objective.reads_documents if isinstance(self.objective, Mixture) else not self.reads_pairs


def build_denoisers(*, with_mode_tokens: bool = True) -> tuple[Part, ...]:
    """The seven denoisers of UL2 (table 1 and section 4.5): regular, extreme (long spans, or half hidden), sequential.

    The sequential one has a fifth of the sequences and splits them evenly, where the paper's hides a quarter on
    average; the others share the rest equally. Marks are 0 for regular, 1 for sequential, 2 for extreme.
    """
    spans = [(0, 0.15, 3.0), (0, 0.15, 8.0), (2, 0.5, 3.0), (2, 0.5, 8.0), (2, 0.15, 64.0), (2, 0.5, 64.0)]
    found = [
        Part(
            objective=SpanCorruption(rate=rate, mean=mean, prefix=True),
            weight=0.8 / 6,
            mark=mark if with_mode_tokens else None,
        )
        for mark, rate, mean in spans
    ]
    return (*found, Part(objective=PrefixLM(), weight=0.2, mark=1 if with_mode_tokens else None))


@spec
class Mixture(Objective):
    """One of several objectives for each sequence; by default UL2's denoisers, and text to text for pairs (T5)."""

    parts: tuple[Part, ...] = field(
        default_factory=lambda: (*build_denoisers(), Part(objective=SupervisedSeq2seq(prefix=True)))
    )

    def __post_init__(self) -> None:
        if not self.parts:
            raise UsageError("a mixture needs one part or more, found none")
        if not self.shapes:
            told = "; ".join(f"{p.objective.name}: {', '.join(p.objective.shapes)}" for p in self.parts)
            raise UsageError(f"the parts of a mixture train no shape of model in common ({told}); leave some out")

    @property
    def shapes(self) -> tuple[ModelShape, ...]:
        return tuple(shape for shape in MODEL_SHAPES if all(shape in part.objective.shapes for part in self.parts))

    @property
    def pairs(self) -> Literal["apart"] | None:
        return "apart" if any(part.reads_pairs for part in self.parts) else None

    @property
    def reads_documents(self) -> bool:
        """Whether a part reads documents of one side."""
        return any(part.reads_documents for part in self.parts)

    def keep_document_parts(self) -> "Mixture":
        """The mixture for documents of one side: the parts that read such."""
        parts = [part for part in self.parts if part.reads_documents]
        inner = (
            (p, p.objective.keep_document_parts() if isinstance(p.objective, Mixture) else p.objective) for p in parts
        )
        return Mixture(parts=tuple(replace(part, objective=objective) for part, objective in inner))

    @property
    def words(self) -> bool:
        return any(part.objective.words for part in self.parts)

    @property
    def sentences(self) -> bool:
        return any(part.objective.sentences for part in self.parts)

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MixtureCorruption":
        used = max((part.mark + 1 for part in self.parts if part.mark is not None), default=0)
        left = len(vocabulary.sentinels) - used
        if left < 0:
            raise UsageError(
                f"a mixture with {used} marks needs as many sentinels, this tokenizer has {left + used}; train one "
                "with --style sentinels, or leave the marks empty"
            )
        rest = replace(vocabulary, sentinels=vocabulary.sentinels[:left])
        lessons = tuple(part.objective.bind(rest, shape) for part in self.parts)
        if any(lesson.copies is not None for lesson in lessons):
            raise UsageError("a part of a mixture cannot have copies (static masking); leave them empty")
        marks = tuple(None if part.mark is None else vocabulary.sentinels[-1 - part.mark] for part in self.parts)
        documents = tuple(part.weight if part.reads_documents else 0.0 for part in self.parts)
        pairs = tuple(part.weight if part.reads_pairs else 0.0 for part in self.parts)
        return MixtureCorruption(lessons, marks, documents, pairs)

    def to_evaluation(self) -> Self:
        """As it is: parts that differ in how hard they are would become one."""
        return self


@dataclass(frozen=True, slots=True)
class MixtureCorruption(BaseCorruption):
    """A lesson for each sequence, by the weights that its parts have for documents, or for pairs."""

    corruptions: tuple[Corruption, ...]
    mode_tokens: tuple[int | None, ...]
    document_weights: tuple[float, ...]
    pair_weights: tuple[float, ...]

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return self._find_max_lengths([lesson.lengths(n) for lesson in self.corruptions], range(len(self.corruptions)))

    @property
    def has_random_lengths(self) -> bool:
        drawn = any(
            len(self._find_possible_parts(chances)) > 1
            for chances in (self.document_weights, self.pair_weights)
            if any(chances)
        )
        return drawn or any(has_random_lengths(lesson) for lesson in self.corruptions)

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """The bounds of the part that each gets; without counters the largest of those that it may get."""
        two = lengths.second_lengths > 0
        if rng is None:
            found = [predict_lengths(lesson, lengths, None) for lesson in self.corruptions]
            read, said = self._find_max_lengths(found, self._find_possible_parts(self.document_weights))
            source, target = self._find_max_lengths(found, self._find_possible_parts(self.pair_weights))
            return np.where(two, source, read), None if said is None or target is None else np.where(two, target, said)
        chosen, source, target = (
            self._draw_parts(two, rng),
            np.zeros_like(lengths.first_lengths),
            np.zeros_like(lengths.first_lengths),
        )
        sides = 1
        for number, (lesson, mark) in enumerate(zip(self.corruptions, self.mode_tokens, strict=True)):
            which = np.flatnonzero(chosen == number)
            read, said = predict_lengths(lesson, lengths.take(which), rng.take(which).derive(number))
            source[which] = read + (mark is not None)
            if said is not None:
                sides, target[which] = 2, said
        return source, target if sides == 2 else None

    def _find_max_lengths(
        self, lengths: Sequence[tuple[Ints, Ints | None]], parts: Sequence[int]
    ) -> tuple[Ints, Ints | None]:
        """The largest bounds of some parts, their marks included."""
        source = [lengths[part][0] + (self.mode_tokens[part] is not None) for part in parts]
        target = [side for side in (lengths[part][1] for part in parts) if side is not None]
        return np.max(source, axis=0), np.max(target, axis=0) if target else None

    def _find_possible_parts(self, chances: Sequence[float]) -> list[int]:
        """The parts that may be drawn."""
        return [number for number, chance in enumerate(chances) if chance or not any(chances)]

    def choose_parts(self, sequences: Sequences, rng: Counters) -> Ints:
        """[S] the part of each sequence: by what it is, then by chance."""
        two = np.zeros(len(sequences), dtype=np.bool_) if sequences.sides is None else sequences.sides > 0
        return self._draw_parts(two, rng)

    def _draw_parts(self, is_pair: Bools, rng: Counters) -> Ints:
        chance = rng.uniform(0)
        return np.where(is_pair, draw_parts(self.pair_weights, chance), draw_parts(self.document_weights, chance))

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        chosen = self.choose_parts(sequences, rng)
        places = [np.flatnonzero(chosen == number) for number in range(len(self.corruptions))]
        made = [
            lesson.corrupt(sequences.take(which), rng.take(which).derive(number))
            for number, (lesson, which) in enumerate(zip(self.corruptions, places, strict=True))
        ]
        sources = [part.source for part in made if part.source is not None]
        if not sources:
            return replace(merge_parts(made, places, self.mode_tokens), **get_sample_info(sequences))
        read = merge_parts(made, places, (None,) * len(made))
        return replace(read, source=merge_parts(sources, places, self.mode_tokens), **get_sample_info(sequences))

    def targets(self, tokens: int, sequences: int) -> int:
        if sequences < 1:
            return 0
        # What each part expects shows in a huge batch, where what it spares is nothing; the rest is six deviations.
        most = np.array([lesson.targets(tokens, sequences) for lesson in self.corruptions], dtype=np.float64)
        if any(self.pair_weights):
            return int(most.max())  # how many are pairs, and how long their targets, only the data know
        mean = (
            np.array(
                [
                    lesson.targets(_LARGE_BATCH_FACTOR * tokens, _LARGE_BATCH_FACTOR * sequences)
                    for lesson in self.corruptions
                ]
            )
            / _LARGE_BATCH_FACTOR
        )
        sides = [lesson.lengths(np.array([tokens // sequences])) for lesson in self.corruptions]
        sizes = np.array([int((source if target is None else target)[0]) for source, target in sides])
        sizes = sizes * self.document_weights
        shares = sizes / max(sizes.sum(), 1e-9)  # of the tokens
        chance = float((mean - mean @ shares) ** 2 @ shares) * LENGTH_DISPERSION / sequences  # of which part it is
        return bound_target_slots(
            float(mean @ shares), float(((most - mean) / 6) ** 2 @ shares) + chance, int(most.max())
        )


def draw_parts(chances: Sequence[float], chance: NDArray[np.floating[Any]]) -> Ints:
    """[S] numbers of parts, each as often as its weight says; one without weight never, unless all are."""
    weights = np.array(chances if any(chances) else [1.0] * len(chances))
    bounds = np.cumsum(weights / weights.sum())[: np.flatnonzero(weights)[-1]]
    return np.searchsorted(bounds, chance, side="right")


def merge_parts(parts: Sequence[Sequences], places: Sequence[Ints], mode_tokens: Sequence[int | None]) -> Sequences:
    """The sequences of each part at its places, behind its mark; what one part has, others have as nothing."""
    lengths = np.zeros(sum(map(len, places)), dtype=np.int64)
    for part, which, mark in zip(parts, places, mode_tokens, strict=True):
        lengths[which] = part.lengths + (mark is not None)
    offsets = compute_offsets(lengths)
    flat: dict[str, Any] = {
        name: np.full(int(offsets[-1]), fill) for name, fill in _FILL_VALUES.items() if _has_field(parts, name)
    }
    each: dict[str, Any] = {name: np.zeros_like(lengths) for name in ("prefix", "view") if _has_field(parts, name)}
    for part, which, mark in zip(parts, places, mode_tokens, strict=True):
        first = offsets[:-1][which]
        if mark is not None:
            flat["tokens"][first] = mark
            first = first + 1
        index = spread(first, part.lengths)
        for name, values in flat.items():
            if getattr(part, name) is not None:
                values[index] = getattr(part, name)
        if part.prefix is not None:
            each["prefix"][which] = part.prefix + (mark is not None)
        if part.view is not None:
            each["view"][which] = part.view
    return Sequences(offsets=offsets, **flat, **each)


_FILL_VALUES = {"tokens": 0, "targets": IGNORE_INDEX, "segments": 0}
"""What a mark carries besides itself, and a part that lacks what others have."""


def _has_field(parts: Sequence[Sequences], name: str) -> bool:
    return any(getattr(part, name) is not None for part in parts)
