"""From an objective and a text to an example: a real lesson, laid out as a batch, and what the loss asks of a model."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pretune.core import config
from pretune.core.errors import UsageError, suggest
from pretune.data.batch_shape import BatchShape
from pretune.data.counters import Counters
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.data.stream import Corruption
from pretune.nn.attention_mask import MaskKind as Way
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import MODEL_SHAPES, ModelShape, Objective
from pretune.objectives.masked import MaskedCorruption, mask_tokens
from pretune.objectives.mixture import MixtureCorruption
from pretune.objectives.seq2seq import NoiseSpans
from pretune.objectives.span_corruption import SentinelCorruption
from pretune.runs.show_batch.describe import CorruptedSequence, describe_sequence
from pretune.runs.show_batch.texts import (
    TASK,
    Segments,
    build_sequence,
    build_variants,
    find_positions,
    repeat_sequence,
    select_default_texts,
)
from pretune.runs.show_batch.token_text import TokenRenderer, build_piece_renderer, build_word_renderer
from pretune.runs.show_batch.types import BatchExample, ShownSequence
from pretune.text.tokenizer import Tokenizer

SAMPLE_COUNT = 64
"""So many samples are drawn where sequences differ in kind, so that one of each kind is found."""

DIRECTION_NAMES = {
    Way.BIDIRECTIONAL: "read in both directions",
    Way.CAUSAL: "read from left to right",
    Way.ANTICAUSAL: "read from right to left",
    Way.PREFIX: "read as sequence to sequence",
}


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
    """What an objective makes of a text, for a model of a shape; without a tokenizer, words are the tokens.

    Some words may be named that are to be hidden, where the objective would draw them.
    """
    objective = config.replace(OBJECTIVES.get(name)(), settings or {})
    chosen = _resolve_shape(shape, objective)
    given = tuple(texts) or select_default_texts(objective)
    shown = build_variants(name, objective, given)
    if len(given) == 1 and not texts and objective.pairs == "apart":
        shown += build_variants(name, objective, TASK)
    read = [*dict.fromkeys(text for _, segments, _ in shown for text in segments)]
    spelling = build_word_renderer(read, objective, chosen) if tokenizer is None else build_piece_renderer(tokenizer)
    lesson = objective.bind(spelling.vocabulary, chosen)
    maker = _ExampleBuilder(name, objective, lesson, spelling, chosen, seed)
    drawn = [one for title, segments, label in shown for one in maker.build_sequences(title, segments, label, hide)]
    return BatchExample(
        objective=name,
        title=(sys.modules[type(objective).__module__].__doc__ or name).partition("\n")[0],
        about=OBJECTIVES.describe(name),
        settings=config.to_dict(objective),
        shape=chosen,
        seed=seed,
        text=given,
        drawn=tuple(drawn),
        notes=tuple(_build_notes(spelling, chosen, lesson, hide)),
    )


def _resolve_shape(shape: str | None, objective: Objective) -> ModelShape:
    """The shape of a name, by default the first that an objective trains."""
    if shape is None:
        return objective.shapes[0]
    for known in MODEL_SHAPES:
        if shape == known:
            return known
    raise UsageError(f"unknown shape '{shape[:60]}'{suggest(shape, MODEL_SHAPES)} (known: {', '.join(MODEL_SHAPES)})")


class _ExampleBuilder:
    """What all sequences of an example share."""

    def __init__(
        self,
        name: str,
        objective: Objective,
        corruption: Corruption,
        renderer: TokenRenderer,
        shape: ModelShape,
        seed: int,
    ) -> None:
        self.name, self.objective, self.corruption, self.renderer = name, objective, corruption, renderer
        self.shape, self.seed = shape, seed

    def build_sequences(self, title: str, segments: Segments, label: int, hide: Sequence[str]) -> list[ShownSequence]:
        """The lessons of a text: one, or one of each kind that sequences may be of."""
        one = build_sequence(self.renderer, self.shape, segments, label, self.objective.pairs)
        if hide:
            places = [find_positions(self.renderer, one, words) for words in hide]
            rng = Counters.from_sequences(self.seed, one, copies=self.corruption.copies)
            return [self._describe(title, one, self._hide_words(one, places, rng))]
        many = repeat_sequence(one, SAMPLE_COUNT)
        taught = self.corruption.corrupt(many, Counters.from_sequences(self.seed, many, copies=self.corruption.copies))
        return [
            self._describe("; ".join(filter(None, (title, what))), one, taught.take(np.array([which])))
            for what, which in self._find_kinds(taught)
        ]

    def _find_kinds(self, sequences: Sequences) -> list[tuple[str, int]]:
        """The first sequence of each kind, and what it is; where all are alike, the first."""
        kinds: dict[tuple[int, int], tuple[str, int]] = {}
        reads = sequences.source or sequences
        marks = self.corruption.mode_tokens if isinstance(self.corruption, MixtureCorruption) else ()
        for which in range(len(sequences)):
            way = -1 if sequences.view is None else int(sequences.view[which])
            first = int(reads.tokens[reads.offsets[which]])
            mark = first if first in marks else -1
            told = [DIRECTION_NAMES[Way(way)]] if way >= 0 else []
            told += [f"behind the mark {self.renderer.format_token(mark)}"] if mark >= 0 else []
            kinds.setdefault((way, mark), ("; ".join(told), which))
        return [kinds[kind] for kind in sorted(kinds)]

    def _hide_words(self, original: Sequences, places: list[list[int]], rng: Counters) -> Sequences:
        """The lesson in which words that are named are hidden, instead of those that chance would have."""
        spans = sorted(places)
        flat = np.array([place for span in spans for place in span])
        if len(np.unique(flat)) < len(flat):
            raise UsageError("--hide names the same words twice; give each once, spans in one piece")
        if isinstance(self.corruption, MaskedCorruption):
            return mask_tokens(original, flat, self.corruption.replacement, rng)
        if isinstance(self.corruption, SentinelCorruption):
            assert original.special is not None
            index = np.flatnonzero(~original.special)
            first = np.searchsorted(index, [span[0] for span in spans])
            length = np.array([len(span) for span in spans])
            made = self.corruption.replace_spans(original, index, NoiseSpans(first, length, np.array([len(spans)])))
            return self.corruption.layout.combine(*made)
        raise UsageError(f"{self.name} cannot be told what to hide; --hide goes with masked and span_corruption")

    def _describe(self, title: str, original: Sequences, sequences: Sequences) -> ShownSequence:
        batch = lay_out(sequences, np.zeros(1, dtype=np.int64), _build_shape(sequences))
        return describe_sequence(
            CorruptedSequence(title, self.objective, self.corruption, self.renderer, self.shape, original, batch)
        )


def _build_shape(sequences: Sequences) -> BatchShape:
    """One row that a sequence fills."""

    def size(lengths: Ints) -> int:
        return max(int(lengths[0]), 1)

    return BatchShape(
        rows=1,
        length=size(sequences.lengths),
        source=None if sequences.source is None else size(sequences.source.lengths),
    )


def _build_notes(renderer: TokenRenderer, shape: ModelShape, corruption: Corruption, hide: Sequence[str]) -> list[str]:
    found = []
    if renderer.has_word_tokens:
        found.append("Words are the tokens here, and the vocabulary is the text's; --tokenizer DIR shows real pieces.")
    if shape == "generator-discriminator":
        found.append(
            "No generator is trained here: what it would draw for the blanks is any word of the vocabulary. One that "
            "happens to be right counts as original."
        )
    if isinstance(corruption, SentinelCorruption) and not hide:
        found.append(
            "As in the released code a sequence ends in a span, and a short one has no other; for more of them: "
            "--set rate=0.4 --set mean=2, or --hide WORDS."
        )
    if isinstance(corruption, MixtureCorruption):
        found.append(
            f"Each sequence gets one of the {len(corruption.corruptions)} parts by chance; one of each mark is shown."
        )
    return found
