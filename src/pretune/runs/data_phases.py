"""Phases of a run: batches and steps of each, and the validation batches."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pretune.core import log
from pretune.core.errors import DataError
from pretune.core.machine import count_cores
from pretune.data.plan import Phase
from pretune.data.samples import check_enough_tokens
from pretune.data.sequences import Ints
from pretune.data.shards import Shards
from pretune.data.stream import BatchStream
from pretune.runs.config import PretrainConfig
from pretune.runs.estimate import estimate_steps_on_cores
from pretune.runs.training_data import TrainingData, build_train_streams, count_steps
from pretune.training.config import TrainConfig
from pretune.training.distributed import Ranks
from pretune.training.step import TrainState

EVAL_TOKENS = {"cuda": 500_000, "cpu": 50_000}
"""Default number of validation tokens."""
EVAL_BATCHES_PER_STEP = 0.3
"""Default number of validation batches per training step: a forward pass costs a third of a step, so
evaluation takes a tenth of the time."""
EVALUATIONS_PER_RUN = 10
"""Default number of evaluations in a run of known length."""
MAX_WORKERS = 4
UNIGRAM_BLOCK = 2**20
"""Tokens that are counted at once for the unigram loss."""
MAX_UNIGRAM_BLOCKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPhases:
    """Opened and checked data of all phases; raises before any computation if something does not fit."""

    source: TrainingData
    phases: tuple[Phase, ...]
    streams: tuple[BatchStream, ...]  # one per phase
    steps: int | None  # None: the budget decides
    validation: tuple[BatchStream, int] | None  # validation stream and its number of batches

    @classmethod
    def open(
        cls, settings: PretrainConfig, source: TrainingData, ranks: Ranks, planned_steps: int | None = None
    ) -> "DataPhases":
        """Open the data of a run for these ranks; `planned_steps` are those that a resumed run was started with."""
        phases, has_fixed_slots = settings.data.schedule.phases, ranks.device.type == "cuda"
        streams = build_train_streams(settings, source, ranks=ranks.world, has_fixed_slots=has_fixed_slots)
        for stream, phase in zip(streams, phases, strict=True):
            check_enough_tokens(stream.samples, phase.length)
        steps = count_steps(settings, streams) if planned_steps is None else planned_steps
        if steps is not None:
            settings.train.schedule.compute_factor(0, steps)  # raises if it does not fit
        validation = _build_validation(settings, source, ranks, steps)
        return cls(source=source, phases=phases, streams=streams, steps=steps, validation=validation)

    def count_epochs(self, state: TrainState) -> dict[str, float]:
        """Return the epochs of each source so far, by its name."""
        first = self.streams[0].samples
        names, total = first.shards.index.sources, np.zeros(len(first.shards.index.sources))
        for stream, start, end in zip(self.streams, state.phases, [*state.phases[1:], state.step], strict=False):
            if end > start:
                epoch, position = stream.locate_step(end - start - 1)
                total = total + stream.mixture.count_epochs(epoch + (position + 1) / len(stream.get_steps(epoch)))
        read = np.bincount(first.sources, minlength=len(names)) > 0
        return {name: round(float(total[place]), 4) for place, name in enumerate(names) if read[place]}

    def compute_unigram_loss(self) -> float | None:
        """Return the loss of a unigram model of the training data at the validation targets, in nats per token."""
        if self.validation is None:
            return None
        stream, count = self.validation
        targets = (stream.batch(number).targets for number in range(count))
        labels = torch.cat([part.labels for part in targets if part is not None] or [torch.empty(0, dtype=torch.long)])
        target_counts = np.bincount(labels[labels >= 0].numpy(), minlength=self.source.data.vocab)
        return compute_unigram_loss(
            count_unigrams(self.streams[0].samples.shards, len(target_counts)),
            target_counts,
            [token for token in self.source.tokenizer.special_ids if token < len(target_counts)],
        )

    def compute_shares(self) -> dict[str, float]:
        """Return the token share of each source, if sources are mixed."""
        mixture = self.streams[0].mixture
        if len(mixture.groups) < 2:
            return {}
        names = self.streams[0].samples.shards.index.sources
        return {name: float(share) for name, share in zip(names, mixture.shares, strict=True) if share}

    def find_samples(self, state: TrainState, step: int) -> list[int]:
        """Return the sample ids of a step."""
        phase = max(i for i, first in enumerate(state.phases) if first <= step)
        samples = self.streams[phase].read_sequences(step - state.phases[phase])[0].samples
        return [] if samples is None else samples.tolist()


def count_unigrams(shards: Shards, vocab: int) -> Ints:
    """Count the tokens of a split, of a large one in blocks at equal distances."""
    blocks = max(-(-len(shards) // UNIGRAM_BLOCK), 1)
    starts = np.linspace(0, max(len(shards) - UNIGRAM_BLOCK, 0), min(blocks, MAX_UNIGRAM_BLOCKS), dtype=np.int64)
    counts = np.zeros(vocab, dtype=np.int64)
    for start in starts.tolist():
        counts += np.bincount(shards.read_tokens(start, min(start + UNIGRAM_BLOCK, len(shards))), minlength=vocab)
    return counts


def compute_unigram_loss(train_counts: Ints, target_counts: Ints, special_ids: Sequence[int]) -> float | None:
    """Return the mean negative log-probability of targets under unigram counts, plus one for every token.

    Special tokens are in the targets by the form of the objective, not of the text: they have their share of the
    targets. None without targets.
    """
    total = int(target_counts.sum())
    if not total:
        return None
    is_special = np.zeros(len(target_counts), dtype=np.bool_)
    is_special[list(special_ids)] = True
    pseudo_counts = np.where(is_special, 0, train_counts + 1)
    ordinary_share = float(target_counts[~is_special].sum()) / total
    probabilities = np.where(
        is_special, target_counts / total, ordinary_share * pseudo_counts / max(pseudo_counts.sum(), 1)
    )
    is_target = target_counts > 0
    return float(-(target_counts[is_target] * np.log(probabilities[is_target])).sum() / total)


def compute_eval_interval(train: TrainConfig, steps: int | None) -> int:
    """Return the steps between evaluations; 0 for only the first and the last."""
    return train.eval_every or (0 if steps is None else max(steps // EVALUATIONS_PER_RUN, 1))


def _build_validation(
    settings: PretrainConfig, source: TrainingData, ranks: Ranks, steps: int | None
) -> tuple[BatchStream, int] | None:
    split, train = source.data.index.splits.get("valid"), settings.train
    if split is None or not split.tokens or train.eval_tokens == 0:
        return None
    try:
        stream = source.build_stream(
            "valid",
            length=settings.data.schedule.phases[-1].length,
            tokens=train.batch_tokens,
            ranks=ranks.world,
            seed=train.seed,
            has_fixed_slots=ranks.device.type == "cuda",
        )
    except DataError as fault:  # too little text for pairs
        log.warn(f"validation text: {fault}")
        return None
    rows = stream.shape.rows * (stream.shape.length + (stream.shape.source or 0))
    on_cpu = ranks.device.type != "cuda"
    eval_tokens = train.eval_tokens or EVAL_TOKENS["cpu" if on_cpu else "cuda"]
    count = min(math.ceil(eval_tokens / rows), len(stream.get_steps(0)))
    if train.eval_tokens is not None or (steps is None and not on_cpu):
        return stream, count
    length = steps or estimate_steps_on_cores(settings, source.tokenizer, torch.get_num_threads() * ranks.world)
    every = compute_eval_interval(train, steps)
    times = 2 if not every else 1 + math.ceil(length / every)
    return stream, min(count, max(int(EVAL_BATCHES_PER_STEP * length / times), 1))


def count_workers(train: TrainConfig, ranks: Ranks) -> int:
    """Return the number of data workers: none on a CPU, whose cores they would take; else by cores per rank."""
    if train.workers is not None:
        return train.workers
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = max((count_cores() - local) // local, 0)
    return min(MAX_WORKERS, cores) if ranks.device.type == "cuda" else 0
