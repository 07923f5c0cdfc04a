"""From prepared data to the batches of a run: samples, frame, rows, and the phases of a length schedule."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pretune.core.config import kind, spec
from pretune.core.errors import DataError, UsageError
from pretune.data.frame import A, Frame
from pretune.data.lengths import LengthSchedule, Phase
from pretune.data.mixing import Smoothed, Weighted
from pretune.data.pairs import SegmentPairs
from pretune.data.prepare import Data
from pretune.data.samples import Blocks, Documents, Samples, Sentences
from pretune.data.shape import Shape
from pretune.data.shards import Shards
from pretune.data.stream import Lesson, Stream
from pretune.objectives.objective import ModelShape, Objective, Vocabulary
from pretune.text.tokenizer import Tokenizer

SampleName = Literal["documents", "sentences", "blocks", "pairs"]
HELD_OUT_SEED = 0
"""Held-out text is cut, packed and corrupted the same way in every run."""


@spec
class Reading:
    """What is read, and how it is cut."""

    path: str
    samples: SampleName = "documents"
    max_length: int = 512  # of a sequence, special tokens included
    short: tuple[float, int] | None = None  # so large a share of the run is spent on sequences of this length first
    mixing: Weighted | Smoothed | None = None

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise UsageError(f"data.max_length {self.max_length} must be at least 2")

    @property
    def schedule(self) -> LengthSchedule:
        """The phases of a run."""
        if self.short is None or self.short[1] >= self.max_length:
            return LengthSchedule(phases=(Phase(share=1.0, length=self.max_length),))
        share, length = self.short
        return LengthSchedule(
            phases=(Phase(share=share, length=length), Phase(share=1 - share, length=self.max_length))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data opened for an objective and a model's shape."""

    reading: Reading
    data: Data
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    objective: Objective
    shape: ModelShape
    longest: int | None = None  # what the model's positions allow

    @classmethod
    def open(
        cls,
        reading: Reading,
        objective: Objective,
        shape: ModelShape,
        *,
        start: int | None = None,
        longest: int | None = None,
    ) -> "Source":
        """Open the data; what is wrong with it, or does not go with the objective, is told before any compute."""
        data = Data.open(reading.path)
        if data.slice is not None:
            raise DataError(f"{reading.path}: slice {data.slice} only; join the slices with `pretune prepare --merge`")
        tokenizer = Tokenizer.load(data.tokenizer)
        if tokenizer.sha256 != data.index.tokenizer_sha256:
            raise DataError(f"{data.tokenizer}: not the tokenizer that the tokens were made with; prepare them again")
        vocabulary = Vocabulary.of(tokenizer, start=start)
        objective.open(vocabulary, shape)
        return cls(
            reading=reading,
            data=data,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            objective=objective,
            shape=shape,
            longest=longest,
        )

    @property
    def frame(self) -> Frame:
        """The tokenizer's layout; for a decoder a document also has its end, and where it stands alone its start."""
        return framed(self.tokenizer, self.vocabulary, self.shape, blocks=self.reading.samples == "blocks")

    def samples(self, split: str, length: int, objective: Objective) -> Samples:
        """The samples of a split, of at most so many tokens."""
        shards = Shards.open(self.data.path, split)
        if objective.pairs or self.reading.samples == "pairs":
            kept = objective.pairs in (None, "kept")
            broken: Literal["other", "swapped"] = "swapped" if objective.pairs == "swapped" else "other"
            pairs = SegmentPairs(limit=length, broken=broken, share=0.0 if kept else 0.5).open(shards, self.frame)
            if split == "train" and not pairs.paired:
                raise DataError(
                    f"{self.data}: no two sentences of a document fit into {length} tokens; {kind(objective)} reads "
                    "pairs; prepare whole documents, or choose an objective without pairs"
                )
            return pairs
        if self.reading.samples == "blocks":
            return Blocks(length=length).open(shards, self.frame)
        each = Documents if self.reading.samples == "documents" else Sentences
        return each(limit=length).open(shards, self.frame)

    def stream(
        self, split: str, *, length: int, tokens: int, ranks: int, seed: int, fixed: bool, cache: Path | None = None
    ) -> Stream:
        """The batches of a split: rows of `length`, about `tokens` tokens each, whatever the number of ranks.

        With `fixed` every batch has the same number of target slots and cells, so that a model compiles once.
        """
        held = split != "train"
        objective = self.objective.evaluation() if held else self.objective
        lesson = objective.open(self.vocabulary, self.shape)
        samples = self.samples(split, length, objective)
        shape = _rows(lesson, length, tokens, ranks, both=self.shape == "encoder-decoder")
        most = max(shape.length, shape.source or 0)
        if self.longest is not None and most > self.longest:
            raise UsageError(
                f"sequences of up to {most} tokens, and the positions of this model end at {self.longest}; lower "
                "data.max_length"
            )
        return Stream(
            samples,
            shape,
            seed=HELD_OUT_SEED if held else seed,
            lesson=lesson,
            mixing=None if held else self.reading.mixing,
            words=objective.words,
            sentences=objective.sentences,
            cache=cache,
            fixed=fixed,
        )


def framed(tokenizer: Tokenizer, vocabulary: Vocabulary, shape: ModelShape, *, blocks: bool = False) -> Frame:
    """What stands around a text: the tokenizer's layout; around a decoder's document also its end and its start.

    In blocks documents follow one another, and each has its end alone.
    """
    found = Frame.of(tokenizer.template)
    if shape not in ("decoder", "two-way"):
        return found
    single, start, end = [*found.single], vocabulary.start, vocabulary.find("eos")
    if end is not None and single[-1][0] == A:
        single.append((end, 0))
    if start is not None and single[0][0] == A and not blocks:
        single.insert(0, (start, 0))
    return Frame(single=tuple(single), pair=found.pair)


def _rows(lesson: Lesson, length: int, tokens: int, ranks: int, *, both: bool) -> Shape:
    """Rows that hold about `tokens` tokens, those of both sides of an encoder-decoder together."""
    source, target = lesson.lengths(np.array([length]))
    sides = (int(source[0]), None) if target is None else (int(target[0]), int(source[0]))
    if both and sides[1] is None:
        raise UsageError("this objective gives an encoder-decoder nothing to read; choose another")
    rows = even(max(tokens // (sides[0] + (sides[1] or 0)), 1))
    if rows % ranks:
        raise UsageError(
            f"{rows} rows of {length} tokens cannot be shared out to {ranks} ranks; change train.batch_tokens"
        )
    return Shape(rows=rows, length=sides[0], source=sides[1])


def even(rows: int) -> int:
    """So many rows or a few less, such that they can be cut in halves several times.

    >>> [even(rows) for rows in (1, 7, 37, 100, 1000)]
    [1, 7, 36, 96, 960]
    """
    unit = 1
    while unit < 64 and unit * 16 <= rows:
        unit *= 2
    return rows // unit * unit
