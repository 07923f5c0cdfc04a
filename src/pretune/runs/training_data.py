"""From prepared data to the batches of a run: samples, frame, rows, and the phases of a length schedule."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pretune.core import log
from pretune.core.config import get_kind, spec
from pretune.core.errors import DataError, UsageError
from pretune.data.batch_shape import BatchShape
from pretune.data.epoch_order import SampleLengths
from pretune.data.length_schedule import LengthSchedule, Phase
from pretune.data.mixing import Mixing
from pretune.data.mixing import SourceMixture as Shares
from pretune.data.packing import MAX_EXACT_ROW, pack
from pretune.data.pairs import SegmentPairs
from pretune.data.parallel import ParallelPairs, ParallelSamples
from pretune.data.prepare import PreparedData
from pretune.data.samples import Blocks, Documents, Samples, Sentences
from pretune.data.sequence_template import A, SequenceTemplate
from pretune.data.shards import Shards
from pretune.data.stream import (
    BatchStream,
    Corruption,
    LengthPredictingCorruption,
    compute_row_lengths,
    has_random_lengths,
    predict_lengths,
)
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.mixture import Mixture
from pretune.text.tokenizer import Tokenizer

SampleKind = Literal["documents", "sentences", "blocks", "pairs"]
HELD_OUT_SEED = 0
"""Held-out text is cut, packed and corrupted the same way in every run."""
_MIN_FILL, _SAMPLE_SEQUENCES = 0.94, 4096  # so full rows are to be; with so many sequences it is tried
_MAX_ROW_FACTOR = 4  # a few long targets make rows longer by no more than this


@spec(tagged=False)
class DataConfig:
    """What is read, and how it is cut."""

    path: str
    samples: SampleKind = "documents"
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
class TrainingData:
    """Data opened for an objective and a model's shape."""

    data_config: DataConfig
    data: PreparedData
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    objective: Objective
    shape: ModelShape
    max_positions: int | None = None  # what the model's positions allow

    @classmethod
    def open(
        cls,
        data_config: DataConfig,
        objective: Objective,
        shape: ModelShape,
        *,
        start: int | None = None,
        max_positions: int | None = None,
    ) -> "TrainingData":
        """Open the data; what is wrong with it, or does not go with the objective, is told before any compute."""
        data = PreparedData.open(data_config.path)
        if data.slice is not None:
            raise DataError(
                f"{data_config.path}: slice {data.slice} only; join the slices with `pretune prepare --merge`"
            )
        tokenizer = Tokenizer.load(data.tokenizer)
        if tokenizer.sha256 != data.index.tokenizer_sha256:
            raise DataError(f"{data.tokenizer}: not the tokenizer that the tokens were made with; prepare them again")
        vocabulary = Vocabulary.from_tokenizer(tokenizer, start=start)
        objective.bind(vocabulary, shape)
        return cls(
            data_config=data_config,
            data=data,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            objective=objective,
            shape=shape,
            max_positions=max_positions,
        )

    def build_samples(self, split: str, length: int, objective: Objective) -> Samples:
        """The samples of a split, of at most so many tokens."""
        shards = Shards.open(self.data.path, split)
        blocks = self.data_config.samples == "blocks" and objective.pairs is None
        frame = build_template(self.tokenizer, self.vocabulary, self.shape, blocks=blocks)
        if objective.pairs in ("kept", "apart"):
            return self._build_sided_samples(shards, length, objective, frame)
        if objective.pairs or self.data_config.samples == "pairs":
            broken: Literal["other", "swapped"] = "swapped" if objective.pairs == "swapped" else "other"
            share = 0.0 if objective.pairs is None else 0.5
            pairs = SegmentPairs(limit=length, broken=broken, share=share).open(shards, frame)
            if split == "train" and not pairs.pair_count:
                asked = f"{get_kind(objective)} reads pairs" if objective.pairs else "data.samples asks for pairs"
                other = "learn without pairs (--objective masked)" if objective.pairs else "leave data.samples as it is"
                raise DataError(
                    f"{self.data}: no two sentences of a document fit into {length} tokens; {asked}; prepare whole "
                    f"documents, or {other}"
                )
            return pairs
        if blocks:
            return Blocks(length=length).open(shards, frame)
        each = Documents if self.data_config.samples == "documents" else Sentences
        return each(limit=length).open(shards, frame)

    def _build_sided_samples(
        self, shards: Shards, length: int, objective: Objective, frame: SequenceTemplate
    ) -> Samples:
        """Pairs as the corpus has them; where documents of one side are among them, the objective must read those."""
        where, name = f"'{shards.split}' of {self.data}", get_kind(objective)
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
        found = ParallelPairs(limit=length, apart=apart if objective.pairs == "apart" else None).open(shards, frame)
        if found.trimmed_count:
            log.warn(
                f"{found.trimmed_count:,} of {found.pair_count:,} pairs in {where} have more than {length} tokens; the ends of "
                "their sides are left out (data.max_length)"
            )
        return found

    def _fit_objective(self, split: str, objective: Objective) -> Objective:
        """The objective for what a split has: a mixture without its parts for pairs where there are none."""
        if isinstance(objective, Mixture) and objective.reads_documents and not self.data.index.splits[split].pairs:
            return objective.keep_document_parts()
        return objective

    def build_stream(
        self, split: str, *, length: int, tokens: int, ranks: int, seed: int, fixed: bool, cache: Path | None = None
    ) -> BatchStream:
        """The batches of a split: rows of `length`, about `tokens` tokens each, whatever the number of ranks.

        With `fixed` every batch has the same number of target slots and cells, so that a model compiles once.
        """
        held = split != "train"
        mixing = None if held else self.data_config.mixing
        objective = self._fit_objective(split, self.objective.to_evaluation() if held else self.objective)
        samples = self.build_samples(split, length, objective)
        lesson = objective.bind(self.vocabulary, self.shape)
        shape = _choose_shape(samples, lesson, length, tokens, ranks, mixing)
        if self.shape == "encoder-decoder" and shape.source is None:
            raise UsageError("this objective gives an encoder-decoder nothing to read; choose another")
        most = max(shape.length, shape.source or 0)
        if isinstance(samples, ParallelSamples) or _has_variable_lengths(
            samples, lesson
        ):  # so that rows may be longer than any sequence
            most = max(
                int(side.max()) for side in compute_row_lengths(samples, lesson) if side is not None and len(side)
            )
        if self.max_positions is not None and most > self.max_positions:
            raise UsageError(
                f"sequences of up to {most} tokens, and the positions of this model end at {self.max_positions}; lower "
                "data.max_length"
            )
        return BatchStream(
            samples,
            shape,
            seed=HELD_OUT_SEED if held else seed,
            corruption=lesson,
            mixing=mixing,
            words=objective.words,
            sentences=objective.sentences,
            cache=cache,
            fixed_slots=fixed,
        )


def build_template(
    tokenizer: Tokenizer, vocabulary: Vocabulary, shape: ModelShape, *, blocks: bool = False
) -> SequenceTemplate:
    """What stands around a text: the tokenizer's layout; around a decoder's document also its end and its start.

    In blocks documents follow one another, and each has its end alone.
    """
    found = SequenceTemplate.from_template(tokenizer.template)
    if shape not in ("decoder", "two-way"):
        return found
    single, start, end = [*found.single], vocabulary.start, vocabulary.find("eos")
    if end is not None and single[-1][0] == A:
        single.append((end, 0))
    if start is not None and single[0][0] == A and not blocks:
        single.insert(0, (start, 0))
    return SequenceTemplate(single=tuple(single), pair=found.pair)


def _choose_shape(
    samples: Samples, corruption: Corruption, length: int, tokens: int, ranks: int, mixing: Mixing | None
) -> BatchShape:
    """Rows that hold about `tokens` tokens, those of both sides of an encoder-decoder together."""
    if _has_variable_lengths(samples, corruption):
        shape = _fit_shape(samples, corruption, length, tokens, mixing)
    else:
        known = samples.measure_lengths()
        if known.lengths.max(initial=0) < length:  # none is whole: rows hold what one in their frame would come to
            whole = (length, 0, known.special_counts.max(initial=0))
            known = SampleLengths(*(np.append(column, more) for column, more in zip(known, whole, strict=True)))
        source, target = (
            None if side is None else int(side.max()) for side in predict_lengths(corruption, known, None)
        )
        assert source is not None
        rows = floor_rows(max(tokens // (source + (target or 0)), 1))
        shape = BatchShape(rows=rows, length=target or source, source=None if target is None else source)
    if shape.rows % ranks:
        raise UsageError(
            f"{shape.rows} rows of {length} tokens cannot be shared out to {ranks} ranks; change train.batch_tokens"
        )
    return shape


def _has_variable_lengths(samples: Samples, corruption: Corruption) -> bool:
    """Whether only the data, or what is drawn for them, know how long sequences are, and how much is on either side."""
    sides = isinstance(samples, ParallelSamples) and isinstance(corruption, LengthPredictingCorruption)
    return len(samples) > 0 and (sides or has_random_lengths(corruption))


def _fit_shape(samples: Samples, corruption: Corruption, length: int, tokens: int, mixing: Mixing | None) -> BatchShape:
    """Rows that hold the longest sequence whatever is drawn, and as much of each side as the data have of it.

    They are the shortest of some that are filled well.
    """
    longest = [int(side.max()) for side in compute_row_lengths(samples, corruption) if side is not None]
    shares = Shares.from_samples(mixing, samples.sources, samples.lengths(), samples.shards.index.sources)
    drawn = compute_row_lengths(samples, corruption, samples.assign_partners(shares.draw_order(HELD_OUT_SEED, 0)))
    sizes = np.stack([side for side in drawn if side is not None])
    parts = sizes.sum(axis=1) / sizes.sum()  # what each side has of all tokens
    # NOTE: a few long ones do not make all rows much longer.
    least = max(length / parts.max(), *np.minimum(longest / parts, _MAX_ROW_FACTOR * length))
    found: list[tuple[float, BatchShape]] = []
    for wider in (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5):
        room = np.maximum(np.ceil(wider * least * parts).astype(int), longest).tolist()
        rows = round_rows(tokens / sum(room))
        if found and (rows < 8 or max(room) > MAX_EXACT_ROW):
            break
        some, source = sizes[:, :_SAMPLE_SEQUENCES], room[1] if len(room) > 1 else None
        row = pack(some[0], room[0], source=None if source is None else some[1], source_room=source)
        filled = float(some.sum() / (sum(room) * (row.max() + 1)))
        found.append((filled, BatchShape(rows=rows, length=room[0], source=source)))
        if found[-1][0] >= _MIN_FILL:
            break
    return max(found, key=lambda one: one[0])[1]


def round_rows(rows: float) -> int:
    """A number of rows near this one that can be cut in halves several times, or shared out: lengths are found anyway.

    >>> [round_rows(rows) for rows in (0.4, 7.9, 13.1, 23.9, 47.7, 1000)]
    [1, 8, 14, 24, 48, 1024]
    """
    unit = 1
    while unit < 64 and unit * 8 <= rows:
        unit *= 2
    return max(round(rows / unit) * unit, 1)


def floor_rows(rows: int) -> int:
    """So many rows or a few less, such that they can be cut in halves several times.

    >>> [floor_rows(rows) for rows in (1, 7, 13, 37, 100, 1000)]
    [1, 7, 12, 36, 96, 960]
    """
    unit = 2 if rows >= 8 else 1
    while unit < 64 and unit * 16 <= rows:
        unit *= 2
    return rows // unit * unit
