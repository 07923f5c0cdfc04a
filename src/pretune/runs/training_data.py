"""From prepared data to the batches of a run: samples, frame, rows, and the phases of a length schedule."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pretune.core import log
from pretune.core.config import kind, spec
from pretune.core.errors import DataError, UsageError
from pretune.data.batch_shape import Shape
from pretune.data.epoch_order import Known
from pretune.data.length_schedule import LengthSchedule, Phase
from pretune.data.mixing import Mixing
from pretune.data.mixing import Mixture as Shares
from pretune.data.packing import LONGEST, pack
from pretune.data.pairs import SegmentPairs
from pretune.data.parallel import Sided, Sides
from pretune.data.prepare import Data
from pretune.data.samples import Blocks, Documents, Samples, Sentences
from pretune.data.sequence_template import A, Frame
from pretune.data.shards import Shards
from pretune.data.stream import Lesson, PlannedLesson, Stream, planned, sided, varies
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.mixture import Mixture
from pretune.text.tokenizer import Tokenizer

SampleName = Literal["documents", "sentences", "blocks", "pairs"]
HELD_OUT_SEED = 0
"""Held-out text is cut, packed and corrupted the same way in every run."""
_FULL, _TRIED = 0.94, 4096  # so full rows are to be; with so many sequences it is tried
_LONG = 4  # a few long targets make rows longer by no more than this


@spec
class Reading:
    """What is read, and how it is cut."""

    path: str
    samples: SampleName = "documents"
    max_length: int = 512  # of a sequence, special tokens included
    short: tuple[float, int] | None = None  # so large a share of the run is spent on sequences of this length first
    mixing: Mixing | None = None

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

    def samples(self, split: str, length: int, objective: Objective) -> Samples:
        """The samples of a split, of at most so many tokens."""
        shards = Shards.open(self.data.path, split)
        blocks = self.reading.samples == "blocks" and objective.pairs is None
        frame = framed(self.tokenizer, self.vocabulary, self.shape, blocks=blocks)
        if objective.pairs in ("kept", "apart"):
            return self._sided(shards, length, objective, frame)
        if objective.pairs or self.reading.samples == "pairs":
            broken: Literal["other", "swapped"] = "swapped" if objective.pairs == "swapped" else "other"
            share = 0.0 if objective.pairs is None else 0.5
            pairs = SegmentPairs(limit=length, broken=broken, share=share).open(shards, frame)
            if split == "train" and not pairs.paired:
                asked = f"{kind(objective)} reads pairs" if objective.pairs else "data.samples asks for pairs"
                other = "learn without pairs (--objective masked)" if objective.pairs else "leave data.samples as it is"
                raise DataError(
                    f"{self.data}: no two sentences of a document fit into {length} tokens; {asked}; prepare whole "
                    f"documents, or {other}"
                )
            return pairs
        if blocks:
            return Blocks(length=length).open(shards, frame)
        each = Documents if self.reading.samples == "documents" else Sentences
        return each(limit=length).open(shards, frame)

    def _sided(self, shards: Shards, length: int, objective: Objective, frame: Frame) -> Samples:
        """Pairs as the corpus has them; where documents of one side are among them, the objective must read those."""
        where, name = f"'{shards.split}' of {self.data}", kind(objective)
        single = len(shards.sources) - shards.pairs
        if not shards.pairs:
            raise DataError(
                f"no document in {where} has two sides, and {name} reads pairs; prepare some with `pretune prepare "
                "pair:FILE,FILE …` or `pretune prepare task:NAME …`"
            )
        if single and objective.pairs == "apart" and not (isinstance(objective, Mixture) and objective.reads_documents):
            raise DataError(
                f"{single:,} documents in {where} have one side only, and {name} reads pairs; prepare pairs alone, or "
                "choose --objective mixture"
            )
        apart: Literal["framed", "bare"] = "framed" if self.shape == "encoder-decoder" else "bare"
        found = Sides(limit=length, apart=apart if objective.pairs == "apart" else None).open(shards, frame)
        if found.trimmed:
            log.warn(
                f"{found.trimmed:,} of {found.pairs:,} pairs in {where} have more than {length} tokens; the ends of "
                "their sides are left out (data.max_length)"
            )
        return found

    def _fitted(self, split: str, objective: Objective) -> Objective:
        """The objective for what a split has: a mixture without its parts for pairs where there are none."""
        if isinstance(objective, Mixture) and objective.reads_documents and not self.data.index.splits[split].pairs:
            return objective.alone()
        return objective

    def stream(
        self, split: str, *, length: int, tokens: int, ranks: int, seed: int, fixed: bool, cache: Path | None = None
    ) -> Stream:
        """The batches of a split: rows of `length`, about `tokens` tokens each, whatever the number of ranks.

        With `fixed` every batch has the same number of target slots and cells, so that a model compiles once.
        """
        held = split != "train"
        mixing = None if held else self.reading.mixing
        objective = self._fitted(split, self.objective.evaluation() if held else self.objective)
        samples = self.samples(split, length, objective)
        lesson = objective.open(self.vocabulary, self.shape)
        shape = _rows(samples, lesson, length, tokens, ranks, mixing)
        if self.shape == "encoder-decoder" and shape.source is None:
            raise UsageError("this objective gives an encoder-decoder nothing to read; choose another")
        most = max(shape.length, shape.source or 0)
        if isinstance(samples, Sided) or _weighed(samples, lesson):  # so that rows may be longer than any sequence
            most = max(int(side.max()) for side in sided(samples, lesson) if side is not None and len(side))
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
            mixing=mixing,
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


def _rows(samples: Samples, lesson: Lesson, length: int, tokens: int, ranks: int, mixing: Mixing | None) -> Shape:
    """Rows that hold about `tokens` tokens, those of both sides of an encoder-decoder together."""
    if _weighed(samples, lesson):
        shape = _fitting(samples, lesson, length, tokens, mixing)
    else:
        known = samples.known()
        if known.lengths.max(initial=0) < length:  # none is whole: rows hold what one in their frame would come to
            whole = (length, 0, known.special.max(initial=0))
            known = Known(*(np.append(column, more) for column, more in zip(known, whole, strict=True)))
        source, target = (None if side is None else int(side.max()) for side in planned(lesson, known, None))
        assert source is not None
        rows = even(max(tokens // (source + (target or 0)), 1))
        shape = Shape(rows=rows, length=target or source, source=None if target is None else source)
    if shape.rows % ranks:
        raise UsageError(
            f"{shape.rows} rows of {length} tokens cannot be shared out to {ranks} ranks; change train.batch_tokens"
        )
    return shape


def _weighed(samples: Samples, lesson: Lesson) -> bool:
    """Whether only the data, or what is drawn for them, know how long sequences are, and how much is on either side."""
    sides = isinstance(samples, Sided) and isinstance(lesson, PlannedLesson)
    return len(samples) > 0 and (sides or varies(lesson))


def _fitting(samples: Samples, lesson: Lesson, length: int, tokens: int, mixing: Mixing | None) -> Shape:
    """Rows that hold the longest sequence whatever is drawn, and as much of each side as the data have of it.

    They are the shortest of some that are filled well.
    """
    longest = [int(side.max()) for side in sided(samples, lesson) if side is not None]
    shares = Shares.of(mixing, samples.sources, samples.lengths(), samples.shards.index.sources)
    drawn = sided(samples, lesson, samples.settle(shares.draws(HELD_OUT_SEED, 0)))
    sizes = np.stack([side for side in drawn if side is not None])
    parts = sizes.sum(axis=1) / sizes.sum()  # what each side has of all tokens
    # NOTE: a few long ones do not make all rows much longer.
    least = max(length / parts.max(), *np.minimum(longest / parts, _LONG * length))
    found: list[tuple[float, Shape]] = []
    for wider in (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5):
        room = np.maximum(np.ceil(wider * least * parts).astype(int), longest).tolist()
        rows = nearest(tokens / sum(room))
        if found and (rows < 8 or max(room) > LONGEST):
            break
        some, source = sizes[:, :_TRIED], room[1] if len(room) > 1 else None
        row = pack(some[0], room[0], source=None if source is None else some[1], source_room=source)
        filled = float(some.sum() / (sum(room) * (row.max() + 1)))
        found.append((filled, Shape(rows=rows, length=room[0], source=source)))
        if found[-1][0] >= _FULL:
            break
    return max(found, key=lambda one: one[0])[1]


def nearest(rows: float) -> int:
    """A number of rows near this one that can be cut in halves several times, or shared out: lengths are found anyway.

    >>> [nearest(rows) for rows in (0.4, 7.9, 13.1, 23.9, 47.7, 1000)]
    [1, 8, 14, 24, 48, 1024]
    """
    unit = 1
    while unit < 64 and unit * 8 <= rows:
        unit *= 2
    return max(round(rows / unit) * unit, 1)


def even(rows: int) -> int:
    """So many rows or a few less, such that they can be cut in halves several times.

    >>> [even(rows) for rows in (1, 7, 13, 37, 100, 1000)]
    [1, 7, 12, 36, 96, 960]
    """
    unit = 2 if rows >= 8 else 1
    while unit < 64 and unit * 16 <= rows:
        unit *= 2
    return rows // unit * unit
