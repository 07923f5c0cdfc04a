"""Batches of a run from prepared data: samples, templates, rows, and the phases of a length schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pretune.core import log
from pretune.core.config import get_kind
from pretune.core.errors import DataError, UsageError
from pretune.data.contiguous import ContiguousStream
from pretune.data.packing import MAX_EXACT_ROW, pack
from pretune.data.pairs import ParallelPairs, ParallelSamples, SegmentPairs
from pretune.data.plan import BatchShape
from pretune.data.prepared_data import PreparedData
from pretune.data.samples import Blocks, BlockSamples, Documents, Samples, Sentences
from pretune.data.sampling import Mixing, SampleLengths
from pretune.data.sampling import SourceMixture as Shares
from pretune.data.sequences import Ints
from pretune.data.shards import DataIndex, Shards
from pretune.data.stream import BatchStream, Corruption, TokenCounter, compute_row_lengths, find_steps
from pretune.models import catalog
from pretune.objectives.base import ModelShape, Objective, Vocabulary, build_template
from pretune.objectives.distill import Distill
from pretune.objectives.mixture import Mixture
from pretune.runs.config import DataConfig, PretrainConfig
from pretune.text.template import TokenTemplate
from pretune.text.tokenizer import Tokenizer

HELD_OUT_SEED = 0
"""Fixed seed, so that validation text is sampled, packed and corrupted identically in every run."""
EVAL_STREAMS = 16
"""Maximum number of contiguous streams of validation text: each begins without a state."""
_MIN_FILL, _SAMPLE_SEQUENCES = 0.94, 4096  # target fill ratio of rows, and the number of sequences it is measured on
_MAX_ROW_FACTOR = 4  # maximum lengthening of rows by a few long targets


class DataFacts(NamedTuple):
    """Facts of prepared data that settings depend on."""

    path: str
    tokens: int
    sources: int  # of the training split

    @classmethod
    def from_prepared_data(cls, data: PreparedData) -> "DataFacts":
        """Return the facts of a directory."""
        return cls(str(data), data.tokens, len(data.index.settings.get("corpus", {}).get("train", ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Prepared data, bound to an objective and a model shape."""

    data_config: DataConfig
    data: PreparedData
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    objective: Objective
    shape: ModelShape
    max_positions: int | None = None  # of the model
    languages: Ints | None = None  # [G, 2] of the two sides of each source, if the model has language embeddings

    @classmethod
    def open(
        cls,
        data_config: DataConfig,
        objective: Objective,
        shape: ModelShape,
        *,
        start: int | None = None,
        max_positions: int | None = None,
        languages: int | None = None,
    ) -> "TrainingData":
        """Open the data; raises if it is invalid or does not fit the objective, or the model's number of languages."""
        data = PreparedData.open(data_config.path)
        if data.slice is not None:
            raise DataError(
                f"{data_config.path}: only slice {data.slice}; merge all slices with `pretune prepare --merge`"
            )
        tokenizer = Tokenizer.load(data.tokenizer)
        if tokenizer.sha256 != data.index.tokenizer_sha256:
            raise DataError(f"{data.tokenizer}: differs from the tokenizer of the shards; prepare the data again")
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
            languages=number_languages(data_config.languages, data.index, languages),
        )

    def build_samples(self, split: str, length: int, objective: Objective) -> Samples:
        """Build the samples of a split, of at most `length` tokens."""
        shards = Shards.open(self.data.path, split)
        blocks = self.data_config.samples in ("blocks", "streams") and objective.pairs is None
        template = build_template(self.tokenizer, self.vocabulary, self.shape, blocks=blocks)
        if objective.pairs in ("kept", "apart"):
            return self._build_sided_samples(shards, length, objective, template)
        if objective.pairs or self.data_config.samples == "pairs":
            negatives: Literal["other", "swapped"] = "swapped" if objective.pairs == "swapped" else "other"
            share = 0.0 if objective.pairs is None else 0.5
            pairs = SegmentPairs(limit=length, broken=negatives, share=share).open(shards, template)
            if split == "train" and not pairs.pair_count:
                requirement, alternative = "data.samples is 'pairs'", "keep the default data.samples"
                if objective.pairs:
                    requirement = f"{get_kind(objective)} needs sentence pairs"
                    alternative = "use an objective without pairs (--objective masked)"
                raise DataError(
                    f"{self.data}: no two sentences of a document fit into {length} tokens; {requirement}; prepare "
                    f"documents of several sentences, or {alternative}"
                )
            return pairs
        if blocks:
            return Blocks(length=length).open(shards, template)
        sampler = Documents if self.data_config.samples == "documents" else Sentences
        return sampler(limit=length).open(shards, template)

    def _build_sided_samples(
        self, shards: Shards, length: int, objective: Objective, template: TokenTemplate
    ) -> Samples:
        """Build pairs of the corpus; documents without a second side need an objective that supports them."""
        location, name = f"'{shards.split}' of {self.data}", get_kind(objective)
        single = len(shards.sources) - shards.pairs
        if not shards.pairs:
            raise DataError(
                f"no document in {location} has two sides, but {name} needs pairs; prepare them with `pretune prepare "
                "pair:FILE,FILE …` or `pretune prepare task:NAME …`"
            )
        if single and objective.pairs == "apart" and not (isinstance(objective, Mixture) and objective.reads_documents):
            raise DataError(
                f"{single:,} documents in {location} have only one side, but {name} needs pairs; prepare only pairs, "
                "or use --objective mixture"
            )
        pair_layout: Literal["framed", "bare"] = "framed" if self.shape == "encoder-decoder" else "bare"
        samples = ParallelPairs(limit=length, apart=pair_layout if objective.pairs == "apart" else None).open(
            shards, template
        )
        if samples.trimmed_count:
            log.warn(
                f"{samples.trimmed_count:,} of {samples.pair_count:,} pairs in {location} have more than {length} "
                "tokens and are truncated (data.max_length)"
            )
        return samples

    def _fit_objective(self, split: str, objective: Objective) -> Objective:
        """Return the objective for a split: a mixture without its pair objectives where the split has no pairs."""
        if isinstance(objective, Mixture) and objective.reads_documents and not self.data.index.splits[split].pairs:
            return objective.keep_document_parts()
        return objective

    def build_stream(
        self,
        split: str,
        *,
        length: int,
        tokens: int,
        ranks: int,
        seed: int,
        has_fixed_slots: bool,
        cache: Path | None = None,
        varies_windows: bool = False,
    ) -> BatchStream:
        """Build the batches of a split: rows of `length`, about `tokens` tokens per batch over all ranks.

        With `has_fixed_slots`, every batch has the same number of target slots and cells, so that a model compiles
        once. The windows of streams vary in training if `varies_windows`.
        """
        is_validation = split != "train"
        mixing = None if is_validation else self.data_config.mixing
        objective = self._fit_objective(split, self.objective.to_evaluation() if is_validation else self.objective)
        samples = self.build_samples(split, length, objective)
        corruption = objective.bind(self.vocabulary, self.shape)
        if self.data_config.samples == "streams":
            assert isinstance(samples, BlockSamples)
            rows = _count_streams(samples, length, tokens, ranks, is_validation=is_validation)
            return ContiguousStream(
                samples,
                BatchShape(rows=rows, length=length),
                seed=HELD_OUT_SEED if is_validation else seed,
                corruption=corruption,
                varies=varies_windows and not is_validation,
            )
        shape = _choose_shape(samples, corruption, length, tokens, ranks, mixing)
        if self.shape == "encoder-decoder" and shape.source is None:
            raise UsageError("this objective gives an encoder-decoder no source; choose another")
        max_row = max(shape.length, shape.source or 0)
        has_spare_room = isinstance(samples, ParallelSamples) or _has_variable_lengths(samples, corruption)
        if has_spare_room:  # rows may be longer than any sequence
            sides = compute_row_lengths(samples, corruption)
            max_row = max(int(side.max()) for side in sides if side is not None and len(side))
        if self.max_positions is not None and max_row > self.max_positions:
            raise UsageError(
                f"sequences have up to {max_row} tokens, but the model only {self.max_positions} positions; decrease "
                "data.max_length"
            )
        return BatchStream(
            samples,
            shape,
            seed=HELD_OUT_SEED if is_validation else seed,
            corruption=corruption,
            mixing=mixing,
            words=objective.words,
            sentences=objective.sentences,
            cache=cache,
            fixed_slots=has_fixed_slots,
            languages=self.languages,
        )


def number_languages(names: Sequence[str], index: DataIndex, count: int | None) -> Ints | None:
    """Return the languages [G, 2] of the two sides of each source, numbered in the order of their names.

    Without names every source has its own language; sources of validation text, which come last, have those of the
    training sources, in their order. None for a model without language embeddings (`count` is None).
    Raises `UsageError` if the names do not fit the sources or the model.
    """
    sources = index.sources
    train_count = len(index.settings.get("corpus", {}).get("train", ())) or len(sources)
    if count is None:
        if names:
            raise UsageError("this model has no language embeddings; remove data.languages")
        return None
    if names and len(names) not in (train_count, len(sources)):
        raise UsageError(
            f"data.languages has {len(names)} names for {len(sources)} sources: {', '.join(sources)[:200]}"
        )
    if not names and any(split.pairs for split in index.splits.values()):
        example = ",".join([*["en"] * (train_count - 1), "en-de"])
        raise UsageError(
            "parallel text has two languages: name the language or the pair of each source, such as --set "
            f"data.languages={example} for {', '.join(sources[:train_count])[:200]}"
        )
    names = names or [*map(str, range(train_count))]
    if len(names) < len(sources):
        valid_count = len(sources) - train_count
        if train_count > 1 and valid_count != train_count:
            raise UsageError(
                f"{valid_count} sources of validation text for {train_count} of training text: name the language of "
                f"each, data.languages for {', '.join(sources)[:200]}"
            )
        names = [*names, *(names if train_count > 1 else [*names] * valid_count)]
    sides = [(name.split("-")[0], name.split("-")[-1]) for name in names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for pair in sides for name in pair))}
    if len(numbers) > count:
        raise UsageError(f"the data has {len(numbers)} languages, but the model only {count}; increase model.languages")
    return np.array([[numbers[first], numbers[second]] for first, second in sides], dtype=np.int64)


def _choose_shape(
    samples: Samples, corruption: Corruption, length: int, tokens: int, ranks: int, mixing: Mixing | None
) -> BatchShape:
    """Choose rows of about `tokens` tokens, counting both sides of an encoder-decoder."""
    if _has_variable_lengths(samples, corruption):
        shape = _fit_shape(samples, corruption, length, tokens, mixing)
    else:
        lengths = samples.measure_lengths()
        if lengths.lengths.max(initial=0) < length:  # no sequence is full: rows still hold a full one
            full_sequence = (length, 0, lengths.special_counts.max(initial=0), False)
            lengths = SampleLengths(
                *(np.append(column, value) for column, value in zip(lengths, full_sequence, strict=True))
            )
        source, target = (
            None if side is None else int(side.max()) for side in corruption.predict_lengths(lengths, None)
        )
        assert source is not None
        rows = floor_rows(max(tokens // (source + (target or 0)), 1))
        shape = BatchShape(rows=rows, length=target or source, source=None if target is None else source)
    _check_ranks(shape.rows, length, ranks)
    return shape


def _check_ranks(rows: int, length: int, ranks: int) -> None:
    if rows % ranks:
        raise UsageError(
            f"{rows} rows of {length} tokens are not divisible by {ranks} ranks; change train.batch_tokens"
        )


def _count_streams(samples: BlockSamples, length: int, tokens: int, ranks: int, *, is_validation: bool) -> int:
    """Return the number of streams: as many as windows fit into a batch, in validation a few."""
    rows = floor_rows(max(tokens // length, 1))
    _check_ranks(rows, length, ranks)
    if not is_validation:
        return rows
    rows = min(rows, EVAL_STREAMS, samples.token_count // length)
    return max(rows // ranks, 1) * ranks


def _has_variable_lengths(samples: Samples, corruption: Corruption) -> bool:
    """Return whether sequence lengths depend on the data or on random draws of the corruption."""
    sides = isinstance(samples, ParallelSamples) and corruption.predicts_lengths
    return len(samples) > 0 and (sides or corruption.has_random_lengths)


def _fit_shape(samples: Samples, corruption: Corruption, length: int, tokens: int, mixing: Mixing | None) -> BatchShape:
    """Choose rows that hold the longest possible sequence, divided between the sides as in the data.

    Returns the shortest candidate with a good fill ratio.
    """
    longest = [int(side.max()) for side in compute_row_lengths(samples, corruption) if side is not None]
    shares = Shares.from_samples(mixing, samples.sources, samples.lengths(), samples.shards.index.sources)
    row_lengths = compute_row_lengths(samples, corruption, samples.assign_partners(shares.draw_order(HELD_OUT_SEED, 0)))
    sizes = np.stack([side for side in row_lengths if side is not None])
    parts = sizes.sum(axis=1) / sizes.sum()  # share of each side
    # NOTE: a few long sequences must not make all rows much longer.
    min_room = max(length / parts.max(), *np.minimum(longest / parts, _MAX_ROW_FACTOR * length))
    candidates: list[tuple[float, BatchShape]] = []
    for wider in (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5):
        room = np.maximum(np.ceil(wider * min_room * parts).astype(int), longest).tolist()
        rows = round_rows(tokens / sum(room))
        if candidates and (rows < 8 or max(room) > MAX_EXACT_ROW):
            break
        subset, source = sizes[:, :_SAMPLE_SEQUENCES], room[1] if len(room) > 1 else None
        row = pack(subset[0], room[0], source=None if source is None else subset[1], source_room=source)
        fill_ratio = float(subset.sum() / (sum(room) * (row.max() + 1)))
        candidates.append((fill_ratio, BatchShape(rows=rows, length=room[0], source=source)))
        if candidates[-1][0] >= _MIN_FILL:
            break
    return max(candidates, key=lambda candidate: candidate[0])[1]


def round_rows(rows: float) -> int:
    """Round to a number of rows that can be halved several times or divided among ranks.

    >>> [round_rows(rows) for rows in (0.4, 7.9, 13.1, 23.9, 47.7, 1000)]
    [1, 8, 14, 24, 48, 1024]
    """
    unit = 1
    while unit < 64 and unit * 8 <= rows:
        unit *= 2
    return max(round(rows / unit) * unit, 1)


def floor_rows(rows: int) -> int:
    """Round down to a number of rows that can be halved several times.

    >>> [floor_rows(rows) for rows in (1, 7, 13, 37, 100, 1000)]
    [1, 7, 12, 36, 96, 960]
    """
    unit = 2 if rows >= 8 else 1
    while unit < 64 and unit * 16 <= rows:
        unit *= 2
    return rows // unit * unit


def open_training_data(settings: PretrainConfig) -> TrainingData:
    """Open the data of a run; raises if it is invalid or does not fit the model and its objective."""
    objective = settings.objective
    return TrainingData.open(
        settings.data,
        objective.base if isinstance(objective, Distill) else objective,
        catalog.convert_to_shape(settings.model, objective.shapes).shape,
        start=settings.model.special.start,
        max_positions=settings.model.max_length,
        languages=settings.model.stacks[0].embed.languages,
    )


def build_train_streams(
    settings: PretrainConfig, source: TrainingData, *, ranks: int = 1, has_fixed_slots: bool = False
) -> tuple[BatchStream, ...]:
    """Build the training batches of each phase."""
    return tuple(
        source.build_stream(
            "train",
            length=phase.length,
            tokens=settings.train.batch_tokens,
            ranks=ranks,
            seed=settings.train.seed,
            has_fixed_slots=has_fixed_slots,
            varies_windows=settings.varies_windows,
        )
        for phase in settings.data.schedule.phases
    )


def count_steps(settings: PretrainConfig, streams: tuple[BatchStream, ...]) -> int | None:
    """Return the number of steps; None if the budget decides.

    Of a run of some tokens, it is the smallest whose batches hold them.
    """
    train, schedule = settings.train, settings.data.schedule
    if train.budget is not None:
        return None
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return find_steps([TokenCounter(stream) for stream in streams], schedule.divide, train.tokens)
    # Each phase takes its share of the epochs.
    per_epoch = [len(stream.get_steps(0)) for stream in streams]
    steps = sum(phase.share * count for phase, count in zip(schedule.phases, per_epoch, strict=True))
    return max(round((train.epochs or 1.0) * steps), 1)
