"""Mixture of objectives: each sequence gets one of several, sampled by weight.

Papers: Raffel et al. (2020, section 3.5.2) mix labelled tasks with text; Tay et al. (2023), UL2, mix denoisers. Input:
that of the parts. Parallel documents go to the parts that read pairs, all others to the rest; among these the part is
sampled per sequence and epoch. The data decide how many of each kind are read (`pretune.data.sampling`). Mixtures can
be nested. All parts must train a common shape of model, with the vocabulary head alone. The default is UL2 for
documents (see `build_denoisers`) and `supervised` for pairs. Siblings: all.

    documents   weight 0.4  span_corruption   <R> a <X> d -> <X> b c <Y>
                weight 0.6  prefix            <S> a b -> c d
    pairs       weight 1    supervised        a -> b

Causal and `masked_next` parts make the hybrid of GPT-BERT (Charpentier and Samuel, 2024): one decoder that generates,
and reads from both sides.

A part may have a mode token (`mark`) before its input, which selects its behaviour at inference time. Mode tokens are
the last sentinels of the vocabulary; the parts do not use these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretune.core.config import NonEmpty, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters, SampleLengths
from pretune.data.sequences import Bools, Ints, Sequences, compute_offsets, spread
from pretune.data.stream import Corruption
from pretune.objectives.base import MODEL_SHAPES, ModelShape, Objective, Vocabulary, bound_target_slots
from pretune.objectives.causal import CausalLM
from pretune.objectives.denoising import Denoising
from pretune.objectives.masked import MaskedLM
from pretune.objectives.masked_next import MaskedNextToken
from pretune.objectives.masked_seq2seq import MaskedSeq2seq
from pretune.objectives.multitask_masked import MultitaskMaskedLM
from pretune.objectives.prefix import LENGTH_DISPERSION, PrefixLM
from pretune.objectives.seq2seq import get_sample_info
from pretune.objectives.span_corruption import SpanCorruption
from pretune.objectives.supervised import SupervisedSeq2seq

SimpleObjective = (
    CausalLM
    | PrefixLM
    | SpanCorruption
    | Denoising
    | MaskedSeq2seq
    | MaskedLM
    | MaskedNextToken
    | MultitaskMaskedLM
    | SupervisedSeq2seq
)

_LARGE_BATCH_FACTOR = 10**6


PENALTIES = ("activation_penalty", "temporal_penalty")
"""Penalties of an objective that belong to all of its tokens, and so not to a part of a mixture."""


@spec
class Part:
    """One objective of a mixture."""

    objective: "SimpleObjective | Mixture"
    weight: Positive[float] = 1.0
    mark: NonNegative[int] | None = None  # mode token: the sentinel before its input, counted from the last: 0, 1, …

    @property
    def reads_pairs(self) -> bool:
        return self.objective.pairs == "apart"

    @property
    def reads_documents(self) -> bool:
        return self.objective.reads_documents if isinstance(self.objective, Mixture) else not self.reads_pairs


def build_denoisers(*, with_mode_tokens: bool = True) -> tuple[Part, ...]:
    """Return the seven denoisers of UL2 (table 1, section 4.5): regular, extreme (long spans or 50 %), sequential.

    The sequential denoiser gets a fifth of the sequences and splits them uniformly (the paper's masks a quarter on
    average); the others share the rest equally. Mode tokens: 0 regular, 1 sequential, 2 extreme.
    """
    spans = [(0, 0.15, 3.0), (0, 0.15, 8.0), (2, 0.5, 3.0), (2, 0.5, 8.0), (2, 0.15, 64.0), (2, 0.5, 64.0)]
    mode_marks = (0, 1, 2) if with_mode_tokens else (None, None, None)
    parts = [
        Part(objective=SpanCorruption(rate=rate, mean=mean, prefix=True), weight=0.8 / 6, mark=mode_marks[mode])
        for mode, rate, mean in spans
    ]
    return (*parts, Part(objective=PrefixLM(), weight=0.2, mark=mode_marks[1]))


@spec
class Mixture(Objective):
    """One of several objectives for each sequence; by default UL2's denoisers, and text-to-text for pairs (T5).

    The validation loss has the parts of training: those that differ only in difficulty would collapse into one.
    """

    parts: Annotated[tuple[Part, ...], NonEmpty()] = field(
        default_factory=lambda: (*build_denoisers(), Part(objective=SupervisedSeq2seq(prefix=True)))
    )

    def __post_init__(self) -> None:
        if not self.shapes:
            shapes = "; ".join(f"{p.objective.name}: {', '.join(p.objective.shapes)}" for p in self.parts)
            raise UsageError(f"the parts of a mixture have no common model shape ({shapes}); remove some parts")
        for part in self.parts:
            for name in PENALTIES:
                if getattr(part.objective, name, 0.0):
                    raise UsageError(f"a part of a mixture has no {name}; set it to 0, or train without a mixture")

    @property
    def shapes(self) -> tuple[ModelShape, ...]:
        return tuple(shape for shape in MODEL_SHAPES if all(shape in part.objective.shapes for part in self.parts))

    @property
    def pairs(self) -> Literal["apart"] | None:
        return "apart" if any(part.reads_pairs for part in self.parts) else None

    @property
    def inner(self) -> tuple[Objective, ...]:
        return tuple(part.objective for part in self.parts)

    @property
    def reads_documents(self) -> bool:
        """True if a part reads single documents (not pairs)."""
        return any(part.reads_documents for part in self.parts)

    def keep_document_parts(self) -> "Mixture":
        """Return the mixture of the parts that read single documents."""
        parts = [part for part in self.parts if part.reads_documents]
        inner = (
            (p, p.objective.keep_document_parts() if isinstance(p.objective, Mixture) else p.objective) for p in parts
        )
        return Mixture(parts=tuple(replace(part, objective=objective) for part, objective in inner))

    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> "MixtureCorruption":
        token_count = max((part.mark + 1 for part in self.parts if part.mark is not None), default=0)
        left = len(vocabulary.sentinels) - token_count
        if left < 0:
            raise UsageError(
                f"a mixture with {token_count} mode tokens needs {token_count} sentinels, this tokenizer has "
                f"{left + token_count}; train one with --style sentinels, or set the marks to null"
            )
        rest = replace(vocabulary, sentinels=vocabulary.sentinels[:left])
        corruptions = tuple(part.objective.bind(rest, shape) for part in self.parts)
        if any(corruption.copies is not None for corruption in corruptions):
            raise UsageError("a mixture part cannot use static masking; set its copies to null")
        mode_tokens = tuple(None if part.mark is None else vocabulary.sentinels[-1 - part.mark] for part in self.parts)
        documents = tuple(part.weight if part.reads_documents else 0.0 for part in self.parts)
        pairs = tuple(part.weight if part.reads_pairs else 0.0 for part in self.parts)
        return MixtureCorruption(corruptions, mode_tokens, documents, pairs)


@dataclass(frozen=True, slots=True)
class MixtureCorruption(Corruption):
    """One corruption per sequence, sampled by the weights of the parts for documents or for pairs."""

    corruptions: tuple[Corruption, ...]
    mode_tokens: tuple[int | None, ...]
    document_weights: tuple[float, ...]
    pair_weights: tuple[float, ...]

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        bounds = [corruption.lengths(n) for corruption in self.corruptions]
        return self._find_max_lengths(bounds, range(len(bounds)))

    @property
    def has_random_lengths(self) -> bool:
        weights = [chances for chances in (self.document_weights, self.pair_weights) if any(chances)]
        has_choice = any(len(self._find_possible_parts(chances)) > 1 for chances in weights)
        return has_choice or any(corruption.has_random_lengths for corruption in self.corruptions)

    def predict_lengths(self, lengths: SampleLengths, rng: Counters | None) -> tuple[Ints, Ints | None]:
        """Return the bounds of the sampled part of each sequence; without counters, the maximum over possible parts."""
        is_pair = lengths.second_lengths > 0
        if rng is None:
            bounds = [corruption.predict_lengths(lengths, None) for corruption in self.corruptions]
            part_source, part_target = self._find_max_lengths(bounds, self._find_possible_parts(self.document_weights))
            source, target = self._find_max_lengths(bounds, self._find_possible_parts(self.pair_weights))
            source = np.where(is_pair, source, part_source)
            return source, None if part_target is None or target is None else np.where(is_pair, target, part_target)
        part_ids, sides = self._draw_parts(is_pair, rng), 1
        source, target = np.zeros_like(lengths.first_lengths), np.zeros_like(lengths.first_lengths)
        for number, (corruption, mode_token) in enumerate(zip(self.corruptions, self.mode_tokens, strict=True)):
            index = np.flatnonzero(part_ids == number)
            part_source, part_target = corruption.predict_lengths(lengths.take(index), rng.take(index).derive(number))
            source[index] = part_source + (mode_token is not None)
            if part_target is not None:
                sides, target[index] = 2, part_target
        return source, target if sides == 2 else None

    @property
    def has_random_counts(self) -> bool:
        return self.has_random_lengths or any(corruption.has_random_counts for corruption in self.corruptions)

    def count_tokens(self, lengths: SampleLengths, rng: Counters) -> Ints:
        """Return the tokens of the sampled part of each sequence, mode token included."""
        part_ids, counts = self._draw_parts(lengths.second_lengths > 0, rng), np.zeros_like(lengths.first_lengths)
        for number, (corruption, mode_token) in enumerate(zip(self.corruptions, self.mode_tokens, strict=True)):
            index = np.flatnonzero(part_ids == number)
            part_counts = corruption.count_tokens(lengths.take(index), rng.take(index).derive(number))
            counts[index] = part_counts + (mode_token is not None)
        return counts

    def _find_max_lengths(
        self, lengths: Sequence[tuple[Ints, Ints | None]], parts: Sequence[int]
    ) -> tuple[Ints, Ints | None]:
        """Return the maximum bounds of some parts, mode tokens included."""
        source = [lengths[part][0] + (self.mode_tokens[part] is not None) for part in parts]
        target = [side for side in (lengths[part][1] for part in parts) if side is not None]
        return np.max(source, axis=0), np.max(target, axis=0) if target else None

    def _find_possible_parts(self, chances: Sequence[float]) -> list[int]:
        """Return the parts with a weight above 0, or all if every weight is 0."""
        return [number for number, chance in enumerate(chances) if chance or not any(chances)]

    def choose_parts(self, sequences: Sequences, rng: Counters) -> Ints:
        """Sample the part of each sequence [S], among those for documents or for pairs."""
        is_pair = np.zeros(len(sequences), dtype=np.bool_) if sequences.sides is None else sequences.sides > 0
        return self._draw_parts(is_pair, rng)

    def _draw_parts(self, is_pair: Bools, rng: Counters) -> Ints:
        chance = rng.uniform(0)
        return np.where(is_pair, draw_parts(self.pair_weights, chance), draw_parts(self.document_weights, chance))

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        part_ids = self.choose_parts(sequences, rng)
        places = [np.flatnonzero(part_ids == number) for number in range(len(self.corruptions))]
        outputs = [
            corruption.corrupt(sequences.take(index), rng.take(index).derive(number))
            for number, (corruption, index) in enumerate(zip(self.corruptions, places, strict=True))
        ]
        sources = [part.source for part in outputs if part.source is not None]
        if not sources:
            return replace(merge_parts(outputs, places, self.mode_tokens), **get_sample_info(sequences))
        decoder = merge_parts(outputs, places, (None,) * len(outputs))
        return replace(decoder, source=merge_parts(sources, places, self.mode_tokens), **get_sample_info(sequences))

    def targets(self, tokens: int, sequences: int) -> int:
        if sequences < 1:
            return 0
        # The bound for a huge batch gives the mean of each part, as its margin vanishes; the rest is six deviations.
        max_targets = np.array([part.targets(tokens, sequences) for part in self.corruptions], dtype=np.float64)
        if any(self.pair_weights):
            return int(max_targets.max())  # the number of pairs and the lengths of their targets depend on the data
        large_tokens, large_sequences = _LARGE_BATCH_FACTOR * tokens, _LARGE_BATCH_FACTOR * sequences
        means = [corruption.targets(large_tokens, large_sequences) for corruption in self.corruptions]
        mean = np.array(means) / _LARGE_BATCH_FACTOR
        sides = [corruption.lengths(np.array([tokens // sequences])) for corruption in self.corruptions]
        sizes = np.array([int((source if target is None else target)[0]) for source, target in sides])
        sizes = sizes * self.document_weights
        shares = sizes / max(sizes.sum(), 1e-9)  # of the tokens
        # Variance of the choice of parts.
        chance = float((mean - mean @ shares) ** 2 @ shares) * LENGTH_DISPERSION / sequences
        variance = float(((max_targets - mean) / 6) ** 2 @ shares) + chance
        return bound_target_slots(float(mean @ shares), variance, int(max_targets.max()))


def draw_parts(chances: Sequence[float], chance: NDArray[np.floating[Any]]) -> Ints:
    """Sample part numbers [S] by weight; parts of weight 0 never, unless all weights are 0."""
    weights = np.array(chances if any(chances) else [1.0] * len(chances))
    bounds = np.cumsum(weights / weights.sum())[: np.flatnonzero(weights)[-1]]
    return np.searchsorted(bounds, chance, side="right")


def merge_parts(parts: Sequence[Sequences], places: Sequence[Ints], mode_tokens: Sequence[int | None]) -> Sequences:
    """Merge the sequences of the parts at their places, behind mode tokens; missing fields are filled."""
    lengths = np.zeros(sum(map(len, places)), dtype=np.int64)
    for part, rows, mode_token in zip(parts, places, mode_tokens, strict=True):
        lengths[rows] = part.lengths + (mode_token is not None)
    offsets = compute_offsets(lengths)
    flat: dict[str, Any] = {
        name: np.full(int(offsets[-1]), fill) for name, fill in _FILL_VALUES.items() if _has_field(parts, name)
    }
    per_sequence: dict[str, Any] = {
        name: np.zeros_like(lengths) for name in ("prefix", "view") if _has_field(parts, name)
    }
    for part, rows, mode_token in zip(parts, places, mode_tokens, strict=True):
        first = offsets[:-1][rows]
        if mode_token is not None:
            flat["tokens"][first] = mode_token
            first = first + 1
        index = spread(first, part.lengths)
        for name, values in flat.items():
            if getattr(part, name) is not None:
                values[index] = getattr(part, name)
        if part.prefix is not None:
            per_sequence["prefix"][rows] = part.prefix + (mode_token is not None)
        if part.view is not None:
            per_sequence["view"][rows] = part.view
    return Sequences(offsets=offsets, **flat, **per_sequence)


_FILL_VALUES = {"tokens": 0, "targets": IGNORE_INDEX, "segments": 0}
"""Values of the fields at mode tokens, and for parts without the field."""


def _has_field(parts: Sequence[Sequences], name: str) -> bool:
    return any(getattr(part, name) is not None for part in parts)
