"""The course of a run: what is read in each of its phases, for how many steps, and by what it is judged."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pretune.core import log
from pretune.core.errors import DataError
from pretune.data.length_schedule import Phase
from pretune.data.samples import check_enough_tokens
from pretune.data.stream import BatchStream
from pretune.runs.config import PretrainConfig, TrainConfig
from pretune.runs.estimate import estimate_steps_on_cores
from pretune.runs.training_data import TrainingData
from pretune.training.distributed import Ranks
from pretune.training.train_state import TrainState

EVAL_TOKENS = {"cuda": 500_000, "cpu": 50_000}
"""Held-out tokens that a loss is measured on, where nothing else is asked for …"""
EVAL_BATCHES_PER_STEP = 0.3
"""… and batches that all evaluations of a run read, by its steps. To read one takes a third of what it takes to learn
from it, so this is a tenth of the time."""
EVALUATIONS_PER_RUN = 10
"""In a run of known length, where no distance is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPhases:
    """Opened and checked: what is wrong with the data, or does not fit together, is told before any compute."""

    source: TrainingData
    phases: tuple[Phase, ...]
    streams: tuple[BatchStream, ...]  # of each phase
    steps: int | None  # None: the clock decides
    validation: tuple[BatchStream, int] | None  # held-out batches, and how many of them are read

    @classmethod
    def open(cls, settings: PretrainConfig, source: TrainingData, ranks: Ranks) -> "DataPhases":
        """Of a run by so many ranks."""
        phases = settings.data.schedule.phases
        streams = tuple(_build_stream(settings, source, ranks, "train", phase.length) for phase in phases)
        for stream, phase in zip(streams, phases, strict=True):
            check_enough_tokens(stream.samples, phase.length)
        steps = _count_steps(settings, streams)
        if steps is not None:
            settings.train.schedule.compute_factor(0, steps)  # whether it fits
        held = _build_validation(settings, source, ranks, steps)
        return cls(source=source, phases=phases, streams=streams, steps=steps, validation=held)

    def get_batches(self, phase: int, state: TrainState) -> "OffsetStream":
        """Those of a phase, by the steps of the run."""
        return OffsetStream(self.streams[phase], state.phases[phase])

    def count_epochs(self, state: TrainState) -> dict[str, float]:
        """How often each source has been read so far, by its name."""
        first = self.streams[0].samples
        names, total = first.shards.index.sources, np.zeros(len(first.shards.index.sources))
        for stream, begun, end in zip(self.streams, state.phases, [*state.phases[1:], state.step], strict=False):
            if end > begun:
                epoch, at = stream.locate_step(end - begun - 1)
                total = total + stream.mixture.count_epochs(epoch + (at + 1) / len(stream.get_steps(epoch)))
        read = np.bincount(first.sources, minlength=len(names)) > 0
        return {name: round(float(total[at]), 4) for at, name in enumerate(names) if read[at]}

    def compute_shares(self) -> dict[str, float]:
        """The share of each source in the tokens that are read, where sources are mixed."""
        mixture = self.streams[0].mixture
        if len(mixture.groups) < 2:
            return {}
        names = self.streams[0].samples.shards.index.sources
        return {name: float(share) for name, share in zip(names, mixture.shares, strict=True) if share}

    def find_samples(self, state: TrainState, step: int) -> list[int]:
        """The numbers of the samples that a step reads."""
        phase = max(i for i, first in enumerate(state.phases) if first <= step)
        found = self.streams[phase].read_sequences(step - state.phases[phase])[0].samples
        return [] if found is None else found.tolist()


@dataclass(frozen=True, slots=True)
class OffsetStream:
    """A stream whose first step comes later: that of a phase."""

    stream: BatchStream
    first_step: int

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Any:
        """The batch of a step of the run."""
        return self.stream.batch(step - self.first_step, part=part, parts=parts)


def _build_stream(settings: PretrainConfig, source: TrainingData, ranks: Ranks, split: str, length: int) -> BatchStream:
    return source.build_stream(
        split,
        length=length,
        tokens=settings.train.batch_tokens,
        ranks=ranks.world,
        seed=settings.train.seed,
        fixed=ranks.device.type == "cuda",
    )


def compute_eval_interval(train: TrainConfig, steps: int | None) -> int:
    """Steps between two evaluations; 0 where there are none but the first and the last."""
    return train.eval_every or (0 if steps is None else max(steps // EVALUATIONS_PER_RUN, 1))


def _build_validation(
    settings: PretrainConfig, source: TrainingData, ranks: Ranks, steps: int | None
) -> tuple[BatchStream, int] | None:
    split, train = source.data.index.splits.get("valid"), settings.train
    if split is None or not split.tokens or train.eval_tokens == 0:
        return None
    try:
        stream = _build_stream(settings, source, ranks, "valid", settings.data.schedule.phases[-1].length)
    except DataError as fault:  # too little of it, for pairs
        log.warn(f"held-out text: {fault}")
        return None
    rows = stream.shape.rows * (stream.shape.length + (stream.shape.source or 0))
    on_cpu = ranks.device.type != "cuda"
    wanted = train.eval_tokens or EVAL_TOKENS["cpu" if on_cpu else "cuda"]
    count = min(math.ceil(wanted / rows), len(stream.get_steps(0)))
    if train.eval_tokens is not None or (steps is None and not on_cpu):
        return stream, count
    length = steps or estimate_steps_on_cores(settings, source.tokenizer, torch.get_num_threads() * ranks.world)
    every = compute_eval_interval(train, steps)
    times = 2 if not every else 1 + math.ceil(length / every)
    return stream, min(count, max(int(EVAL_BATCHES_PER_STEP * length / times), 1))


def _count_steps(settings: PretrainConfig, streams: tuple[BatchStream, ...]) -> int | None:
    """How many steps a run has; None where the clock decides."""
    train = settings.train
    if train.budget is not None:
        return None
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return max(round(train.tokens / train.batch_tokens), 1)
    shares = [phase.share for phase in settings.data.schedule.phases]
    # A run reads a share of its epochs at each length.
    per_epoch = [len(stream.get_steps(0)) for stream in streams]
    steps = sum(share * count for share, count in zip(shares, per_epoch, strict=True))
    return max(round((train.epochs or 1.0) * steps), 1)
