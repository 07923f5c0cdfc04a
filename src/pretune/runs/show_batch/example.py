"""Construction of an example: an objective applied to a text, laid out as a batch, with the targets of its loss."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pretune.core import config
from pretune.core.errors import UsageError, suggest
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences
from pretune.data.stream import Corruption
from pretune.nn.attention_mask import MaskKind as Way
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import MODEL_SHAPES, ModelShape, Objective
from pretune.objectives.distill import Distill
from pretune.objectives.masked import MaskedCorruption, mask_tokens
from pretune.objectives.mixture import MixtureCorruption
from pretune.objectives.seq2seq import NoiseSpans
from pretune.objectives.span_corruption import SentinelCorruption
from pretune.runs.show_batch.describe import CorruptedSequence, ShownSequence, describe_sequence
from pretune.runs.show_batch.texts import (
    TASK,
    Segments,
    TokenRenderer,
    build_piece_renderer,
    build_sequence,
    build_variants,
    build_word_renderer,
    find_positions,
    repeat_sequence,
    select_default_texts,
)
from pretune.text.tokenizer import Tokenizer

SAMPLE_COUNT = 64
"""Number of samples drawn to find one sequence of each kind."""

DIRECTION_NAMES = {
    Way.BIDIRECTIONAL: "read in both directions",
    Way.CAUSAL: "read from left to right",
    Way.ANTICAUSAL: "read from right to left",
    Way.PREFIX: "read as sequence to sequence",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExample:
    """An objective applied to a text."""

    objective: str
    title: str  # of the objective
    about: str  # description and paper
    settings: dict[str, Any]
    shape: str
    seed: int
    text: tuple[str, ...]
    sequences: tuple[ShownSequence, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return asdict(self)


def build_example(
    name: str,
    *,
    texts: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    shape: str | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    hide: Sequence[str] = (),
) -> BatchExample:
    """Apply an objective to texts for a model shape; without a tokenizer, words are the tokens.

    `hide` names words to mask instead of random ones.
    """
    named_objective = config.replace(OBJECTIVES.get(name)(), settings or {})
    # A distillation reads what its base objective reads.
    objective = named_objective.base if isinstance(named_objective, Distill) else named_objective
    model_shape = _resolve_shape(shape, objective)
    segments_given = tuple(texts) or select_default_texts(objective)
    variants = build_variants(name, objective, segments_given)
    if len(segments_given) == 1 and not texts and objective.pairs == "apart":
        variants += build_variants(name, objective, TASK)
    read = [*dict.fromkeys(text for _, segments, _ in variants for text in segments)]
    renderer = (
        build_word_renderer(read, objective, model_shape) if tokenizer is None else build_piece_renderer(tokenizer)
    )
    corruption = objective.bind(renderer.vocabulary, model_shape)
    maker = _ExampleBuilder(name, objective, corruption, renderer, model_shape, seed)
    sequences = [
        sequence
        for title, segments, label in variants
        for sequence in maker.build_sequences(title, segments, label, hide)
    ]
    return BatchExample(
        objective=name,
        title=(sys.modules[type(named_objective).__module__].__doc__ or name).partition("\n")[0],
        about=OBJECTIVES.describe(name),
        settings=config.to_dict(named_objective),
        shape=model_shape,
        seed=seed,
        text=segments_given,
        sequences=tuple(sequences),
        notes=tuple(_build_notes(renderer, model_shape, corruption, hide)),
    )


def _resolve_shape(shape: str | None, objective: Objective) -> ModelShape:
    """Return the shape of this name, by default the first that the objective trains."""
    if shape is None:
        return objective.shapes[0]
    for candidate in MODEL_SHAPES:
        if shape == candidate:
            return candidate
    raise UsageError(f"unknown shape '{shape[:60]}'{suggest(shape, MODEL_SHAPES)} (allowed: {', '.join(MODEL_SHAPES)})")


@dataclass(frozen=True, slots=True)
class _ExampleBuilder:
    """Shared parts of all sequences of an example."""

    name: str
    objective: Objective
    corruption: Corruption
    renderer: TokenRenderer
    shape: ModelShape
    seed: int

    def build_sequences(self, title: str, segments: Segments, label: int, hide: Sequence[str]) -> list[ShownSequence]:
        """Return the corrupted sequences of a text: one of each kind."""
        sequence = build_sequence(self.renderer, self.shape, segments, label, self.objective.pairs)
        if hide:
            places = [find_positions(self.renderer, sequence, words) for words in hide]
            rng = Counters.from_sequences(self.seed, sequence, copies=self.corruption.copies)
            return [self._describe(title, sequence, self._hide_words(sequence, places, rng))]
        repeats = repeat_sequence(sequence, SAMPLE_COUNT)
        rng = Counters.from_sequences(self.seed, repeats, copies=self.corruption.copies)
        sequences = self.corruption.corrupt(repeats, rng)
        return [
            self._describe("; ".join(filter(None, (title, kind))), sequence, sequences.take(np.array([index])))
            for kind, index in self._find_kinds(sequences)
        ]

    def _find_kinds(self, sequences: Sequences) -> list[tuple[str, int]]:
        """Return the first sequence of each kind with its description."""
        kinds: dict[tuple[int, int], tuple[str, int]] = {}
        reads = sequences.source or sequences
        mode_tokens = self.corruption.mode_tokens if isinstance(self.corruption, MixtureCorruption) else ()
        for index in range(len(sequences)):
            way = -1 if sequences.view is None else int(sequences.view[index])
            first = int(reads.tokens[reads.offsets[index]])
            mode_token = first if first in mode_tokens else -1
            descriptions = [DIRECTION_NAMES[Way(way)]] if way >= 0 else []
            descriptions += [f"mode token {self.renderer.format_token(mode_token)}"] if mode_token >= 0 else []
            kinds.setdefault((way, mode_token), ("; ".join(descriptions), index))
        return [kinds[kind] for kind in sorted(kinds)]

    def _hide_words(self, original: Sequences, places: list[list[int]], rng: Counters) -> Sequences:
        """Mask the named words instead of random ones."""
        spans = sorted(places)
        flat = np.array([place for span in spans for place in span])
        if len(np.unique(flat)) < len(flat):
            raise UsageError("--hide names overlapping words; pass each word once")
        if isinstance(self.corruption, MaskedCorruption):
            return mask_tokens(original, flat, self.corruption.replacement, rng)
        if isinstance(self.corruption, SentinelCorruption):
            assert original.special is not None
            index = np.flatnonzero(~original.special)
            first = np.searchsorted(index, [span[0] for span in spans])
            length = np.array([len(span) for span in spans])
            sides = self.corruption.replace_spans(original, index, NoiseSpans(first, length, np.array([len(spans)])))
            return self.corruption.layout.combine(*sides)
        raise UsageError(f"--hide does not support {self.name}, only masked and span_corruption")

    def _describe(self, title: str, original: Sequences, sequences: Sequences) -> ShownSequence:
        source = None if sequences.source is None else max(int(sequences.source.lengths[0]), 1)
        shape = BatchShape(rows=1, length=max(int(sequences.lengths[0]), 1), source=source)
        batch = lay_out(sequences, np.zeros(1, dtype=np.int64), shape)
        return describe_sequence(
            CorruptedSequence(title, self.objective, self.corruption, self.renderer, self.shape, original, batch)
        )


def _build_notes(renderer: TokenRenderer, shape: ModelShape, corruption: Corruption, hide: Sequence[str]) -> list[str]:
    notes = []
    if renderer.has_word_tokens:
        notes.append("Tokens are words here, with the text's own vocabulary; use --tokenizer DIR for subwords.")
    if shape == "generator-discriminator":
        notes.append(
            "There is no trained generator here: replacements are random words of the vocabulary. A correct one counts "
            "as original."
        )
    if isinstance(corruption, SentinelCorruption) and not hide:
        notes.append(
            "As in the released code, a sequence ends in a span, and a short one has only that; for more spans: "
            "--set rate=0.4 --set mean=2, or --hide WORDS."
        )
    if isinstance(corruption, MixtureCorruption):
        notes.append(
            f"Each sequence gets one of {len(corruption.corruptions)} objectives at random; one per mode token shown."
        )
    return notes
