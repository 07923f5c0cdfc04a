"""From an objective and a text to an example: a real lesson, laid out as a batch, and what the loss asks of a model."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pretune.core import config
from pretune.core.errors import UsageError, nearest
from pretune.data.batch_shape import Shape
from pretune.data.counters import Counters
from pretune.data.layout import lay_out
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.data.stream import Lesson
from pretune.nn.attention_mask import Sight as Way
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import MODEL_SHAPES, ModelShape, Objective
from pretune.objectives.masked import MaskedLesson, hidden
from pretune.objectives.mixture import MixtureLesson
from pretune.objectives.seq2seq import Spans
from pretune.objectives.span_corruption import SpanCorruptionLesson
from pretune.runs.show_batch.describe import Lessoned, tell
from pretune.runs.show_batch.texts import TASK, Segments, places_of, repeated, sequence, usual, variants
from pretune.runs.show_batch.token_text import Spelling, pieces, words
from pretune.runs.show_batch.types import Drawn, Example
from pretune.text.tokenizer import Tokenizer

TRIES = 64
"""So many samples are drawn where sequences differ in kind, so that one of each kind is found."""

WAYS = {
    Way.BOTH: "read in both directions",
    Way.LEFT: "read from left to right",
    Way.RIGHT: "read from right to left",
    Way.PREFIX: "read as sequence to sequence",
}


def example(
    name: str,
    *,
    texts: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    shape: str | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    hide: Sequence[str] = (),
) -> Example:
    """What an objective makes of a text, for a model of a shape; without a tokenizer, words are the tokens.

    Some words may be named that are to be hidden, where the objective would draw them.
    """
    objective = config.replace(OBJECTIVES.get(name)(), settings or {})
    chosen = _shape(shape, objective)
    given = tuple(texts) or usual(objective)
    shown = variants(name, objective, given)
    if len(given) == 1 and not texts and objective.pairs == "apart":
        shown += variants(name, objective, TASK)
    read = [*dict.fromkeys(text for _, segments, _ in shown for text in segments)]
    spelling = words(read, objective, chosen) if tokenizer is None else pieces(tokenizer)
    lesson = objective.open(spelling.vocabulary, chosen)
    maker = _Maker(name, objective, lesson, spelling, chosen, seed)
    drawn = [one for title, segments, label in shown for one in maker.drawn(title, segments, label, hide)]
    return Example(
        objective=name,
        title=(sys.modules[type(objective).__module__].__doc__ or name).partition("\n")[0],
        about=OBJECTIVES.describe(name),
        settings=config.to_dict(objective),
        shape=chosen,
        seed=seed,
        text=given,
        drawn=tuple(drawn),
        notes=tuple(_notes(spelling, chosen, lesson, hide)),
    )


def _shape(shape: str | None, objective: Objective) -> ModelShape:
    """The shape of a name, by default the first that an objective trains."""
    if shape is None:
        return objective.shapes[0]
    for known in MODEL_SHAPES:
        if shape == known:
            return known
    raise UsageError(f"unknown shape '{shape[:60]}'{nearest(shape, MODEL_SHAPES)} (known: {', '.join(MODEL_SHAPES)})")


class _Maker:
    """What all sequences of an example share."""

    def __init__(
        self, name: str, objective: Objective, lesson: Lesson, spelling: Spelling, shape: ModelShape, seed: int
    ) -> None:
        self.name, self.objective, self.lesson, self.spelling = name, objective, lesson, spelling
        self.shape, self.seed = shape, seed

    def drawn(self, title: str, segments: Segments, label: int, hide: Sequence[str]) -> list[Drawn]:
        """The lessons of a text: one, or one of each kind that sequences may be of."""
        one = sequence(self.spelling, self.shape, segments, label, self.objective.pairs)
        if hide:
            places = [places_of(self.spelling, one, words) for words in hide]
            rng = Counters.of(self.seed, one, copies=self.lesson.copies)
            return [self._told(title, one, self._hidden(one, places, rng))]
        many = repeated(one, TRIES)
        taught = self.lesson.corrupt(many, Counters.of(self.seed, many, copies=self.lesson.copies))
        return [
            self._told("; ".join(filter(None, (title, what))), one, taught.take(np.array([which])))
            for what, which in self._kinds(taught)
        ]

    def _kinds(self, taught: Sequences) -> list[tuple[str, int]]:
        """The first sequence of each kind, and what it is; where all are alike, the first."""
        kinds: dict[tuple[int, int], tuple[str, int]] = {}
        reads = taught.source or taught
        marks = self.lesson.marks if isinstance(self.lesson, MixtureLesson) else ()
        for which in range(len(taught)):
            way = -1 if taught.view is None else int(taught.view[which])
            first = int(reads.tokens[reads.offsets[which]])
            mark = first if first in marks else -1
            told = [WAYS[Way(way)]] if way >= 0 else []
            told += [f"behind the mark {self.spelling.token(mark)}"] if mark >= 0 else []
            kinds.setdefault((way, mark), ("; ".join(told), which))
        return [kinds[kind] for kind in sorted(kinds)]

    def _hidden(self, one: Sequences, places: list[list[int]], rng: Counters) -> Sequences:
        """The lesson in which words that are named are hidden, instead of those that chance would have."""
        spans = sorted(places)
        flat = np.array([place for span in spans for place in span])
        if len(np.unique(flat)) < len(flat):
            raise UsageError("--hide names the same words twice; give each once, spans in one piece")
        if isinstance(self.lesson, MaskedLesson):
            return hidden(one, flat, self.lesson.disguise, rng)
        if isinstance(self.lesson, SpanCorruptionLesson):
            assert one.special is not None
            index = np.flatnonzero(~one.special)
            first = np.searchsorted(index, [span[0] for span in spans])
            length = np.array([len(span) for span in spans])
            made = self.lesson.written(one, index, Spans(first, length, np.array([len(spans)])))
            return self.lesson.sides.teach(*made)
        raise UsageError(f"{self.name} cannot be told what to hide; --hide goes with masked and span_corruption")

    def _told(self, title: str, one: Sequences, taught: Sequences) -> Drawn:
        batch = lay_out(taught, np.zeros(1, dtype=np.int64), _room(taught))
        return tell(Lessoned(title, self.objective, self.lesson, self.spelling, self.shape, one, batch))


def _room(taught: Sequences) -> Shape:
    """One row that a sequence fills."""

    def size(lengths: Ints) -> int:
        return max(int(lengths[0]), 1)

    return Shape(
        rows=1,
        length=size(taught.lengths),
        source=None if taught.source is None else size(taught.source.lengths),
    )


def _notes(spelling: Spelling, shape: ModelShape, lesson: Lesson, hide: Sequence[str]) -> list[str]:
    found = []
    if spelling.words:
        found.append("Words are the tokens here, and the vocabulary is the text's; --tokenizer DIR shows real pieces.")
    if shape == "generator-discriminator":
        found.append(
            "No generator is trained here: what it would draw for the blanks is any word of the vocabulary. One that "
            "happens to be right counts as original."
        )
    if isinstance(lesson, SpanCorruptionLesson) and not hide:
        found.append(
            "As in the released code a sequence ends in a span, and a short one has no other; for more of them: "
            "--set rate=0.4 --set mean=2, or --hide WORDS."
        )
    if isinstance(lesson, MixtureLesson):
        found.append(f"Each sequence gets one of the {len(lesson.lessons)} parts by chance; one of each mark is shown.")
    return found
