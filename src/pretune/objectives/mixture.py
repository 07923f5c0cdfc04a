"""A mixture: each sequence gets one of several objectives, by chance and weight.

Papers: Raffel et al. (2020, section 3.5.2) mix tasks; Tay et al. (2023), UL2, mix denoisers, which is the default here
(see `denoisers`). Input: what the parts ask for. The choice is drawn for each sequence and epoch, and for nothing else;
mixtures may be parts of mixtures. All parts must train one shape of model by its vocabulary head alone. Siblings: all.

    weight 0.4  span_corruption   <R> a <X> d -> <X> b c <Y>
    weight 0.6  prefix            <S> a b -> c d

A part may have a mark: a token before its input that says which it is, so that the model can be asked for it later.
Marks are the last sentinels of the vocabulary, which the parts then do without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from pretune.core.config import spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE, Batch, Loss
from pretune.data.counters import Counters
from pretune.data.ragged import Ints, bounds, spread
from pretune.data.sequences import Sequences
from pretune.data.stream import Lesson
from pretune.objectives.causal import Causal
from pretune.objectives.denoising import Denoising
from pretune.objectives.masked import Masked
from pretune.objectives.masked_seq2seq import MaskedSeq2seq
from pretune.objectives.multitask_masked import MultitaskMasked
from pretune.objectives.objective import (
    MODEL_SHAPES,
    ModelShape,
    Reader,
    Vocabulary,
    check_shape,
    spare,
    vocabulary_count,
)
from pretune.objectives.prefix import UNEQUAL, Prefix
from pretune.objectives.seq2seq import known
from pretune.objectives.span_corruption import SpanCorruption

_HUGE = 10**6


@spec
class Part:
    """One objective of a mixture."""

    objective: "Causal | Prefix | SpanCorruption | Denoising | MaskedSeq2seq | Masked | MultitaskMasked | Mixture"
    weight: float = 1.0
    mark: int | None = None  # the sentinel before its input, counted from the last: 0, 1, …

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise UsageError(f"the weight of a part of a mixture must be above 0, found {self.weight}")
        if self.mark is not None and self.mark < 0:
            raise UsageError(f"marks count from 0, found {self.mark}; leave it empty for none")


def denoisers(*, marks: bool = True) -> tuple[Part, ...]:
    """The seven denoisers of UL2 (table 1 and section 4.5): regular, extreme (long spans, or half hidden), sequential.

    The sequential one has a fifth of the sequences and splits them evenly, where the paper's hides a quarter on
    average; the others share the rest equally. Marks are 0 for regular, 1 for sequential, 2 for extreme.
    """
    spans = [(0, 0.15, 3.0), (0, 0.15, 8.0), (2, 0.5, 3.0), (2, 0.5, 8.0), (2, 0.15, 64.0), (2, 0.5, 64.0)]
    found = [
        Part(objective=SpanCorruption(rate=rate, mean=mean, prefix=True), weight=0.8 / 6, mark=mark if marks else None)
        for mark, rate, mean in spans
    ]
    return (*found, Part(objective=Prefix(), weight=0.2, mark=1 if marks else None))


@spec
class Mixture:
    """One of several objectives for each sequence, by default the denoisers of UL2."""

    parts: tuple[Part, ...] = field(default_factory=denoisers)

    pairs: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise UsageError("a mixture needs one part or more, found none")
        if not self.shapes:
            told = "; ".join(f"{type(p.objective).__name__}: {', '.join(p.objective.shapes)}" for p in self.parts)
            raise UsageError(f"the parts of a mixture train no shape of model in common ({told}); leave some out")

    @property
    def shapes(self) -> tuple[ModelShape, ...]:
        return tuple(shape for shape in MODEL_SHAPES if all(shape in part.objective.shapes for part in self.parts))

    @property
    def words(self) -> bool:
        return any(part.objective.words for part in self.parts)

    @property
    def sentences(self) -> bool:
        return any(part.objective.sentences for part in self.parts)

    def open(self, vocabulary: Vocabulary, shape: ModelShape) -> "MixtureLesson":
        check_shape("mixture", shape, self.shapes)
        used = max((part.mark + 1 for part in self.parts if part.mark is not None), default=0)
        left = len(vocabulary.sentinels) - used
        if left < 0:
            raise UsageError(f"a mixture with {used} marks needs as many sentinels, this tokenizer has {left + used}")
        rest = replace(vocabulary, sentinels=vocabulary.sentinels[:left])
        lessons = tuple(part.objective.open(rest, shape) for part in self.parts)
        if any(lesson.copies is not None for lesson in lessons):
            raise UsageError("a part of a mixture cannot have copies (static masking); leave them empty")
        marks = tuple(None if part.mark is None else vocabulary.sentinels[-1 - part.mark] for part in self.parts)
        weights = np.array([part.weight for part in self.parts])
        return MixtureLesson(lessons, marks, tuple((weights / weights.sum()).tolist()))

    def evaluation(self) -> Self:
        """As it is: parts that differ in how hard they are would become one."""
        return self

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": vocabulary_count(batch)}

    def loss(self, model: Reader, batch: Batch) -> Loss:
        return model.loss(model.states(batch), batch)


@dataclass(frozen=True, slots=True)
class MixtureLesson:
    """A lesson for each sequence."""

    lessons: tuple[Lesson, ...]
    marks: tuple[int | None, ...]
    shares: tuple[float, ...]
    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        found = [lesson.lengths(n) for lesson in self.lessons]
        source = [side + (mark is not None) for (side, _), mark in zip(found, self.marks, strict=True)]
        target = [side for _, side in found if side is not None]
        return np.max(source, axis=0), np.max(target, axis=0) if target else None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        chosen = np.searchsorted(np.cumsum(self.shares)[:-1], rng.uniform(0), side="right")
        places = [np.flatnonzero(chosen == number) for number in range(len(self.lessons))]
        made = [
            lesson.corrupt(sequences.take(which), rng.take(which).under(number))
            for number, (lesson, which) in enumerate(zip(self.lessons, places, strict=True))
        ]
        sources = [part.source for part in made if part.source is not None]
        if not sources:
            return replace(woven(made, places, self.marks), **known(sequences))
        read = woven(made, places, (None,) * len(made))
        return replace(read, source=woven(sources, places, self.marks), **known(sequences))

    def targets(self, tokens: int, sequences: int) -> int:
        if sequences < 1:
            return 0
        # What each part expects shows in a huge batch, where what it spares is nothing; the rest is six deviations.
        most = np.array([lesson.targets(tokens, sequences) for lesson in self.lessons], dtype=np.float64)
        mean = np.array([lesson.targets(_HUGE * tokens, _HUGE * sequences) for lesson in self.lessons]) / _HUGE
        sides = [lesson.lengths(np.array([tokens // sequences])) for lesson in self.lessons]
        sizes = np.array([int((source if target is None else target)[0]) for source, target in sides]) * self.shares
        shares = sizes / max(sizes.sum(), 1e-9)  # of the tokens
        chance = float((mean - mean @ shares) ** 2 @ shares) * UNEQUAL / sequences  # of which part it is
        return spare(float(mean @ shares), float(((most - mean) / 6) ** 2 @ shares) + chance, int(most.max()))


def woven(parts: Sequence[Sequences], places: Sequence[Ints], marks: Sequence[int | None]) -> Sequences:
    """The sequences of each part at its places, behind its mark; what one part has, others have as nothing."""
    lengths = np.zeros(sum(map(len, places)), dtype=np.int64)
    for part, which, mark in zip(parts, places, marks, strict=True):
        lengths[which] = part.lengths + (mark is not None)
    offsets = bounds(lengths)
    flat: dict[str, Any] = {
        name: np.full(int(offsets[-1]), fill) for name, fill in _NOTHING.items() if _any(parts, name)
    }
    each: dict[str, Any] = {name: np.zeros_like(lengths) for name in ("prefix", "view") if _any(parts, name)}
    for part, which, mark in zip(parts, places, marks, strict=True):
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


_NOTHING = {"tokens": 0, "targets": IGNORE, "segments": 0}
"""What a mark carries besides itself, and a part that lacks what others have."""


def _any(parts: Sequence[Sequences], name: str) -> bool:
    return any(getattr(part, name) is not None for part in parts)
