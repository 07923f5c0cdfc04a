"""Length of a pre-training run, known before its first step: steps, and tokens that the model reads.

The learning rate schedule needs the number of steps. A run of `train.tokens` tokens has as many as its batches need to
hold them, which have room for about `train.batch_tokens`, as rows divide them, and are not full. Packing plans give the
exact numbers, so that a dry run and the run agree.
"""

from pretune.data.stream import BatchStream
from pretune.data.token_counts import TokenCounter, count_run_tokens, find_steps
from pretune.models import catalog
from pretune.objectives.distill import Distill
from pretune.runs.config import PretrainConfig
from pretune.runs.training_data import TrainingData


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


def measure_length(settings: PretrainConfig) -> tuple[int | None, int | None]:
    """Return the steps and the tokens of a run, from its data; None if the budget decides.

    If the number of steps is set, tokens are those of the first epoch, and in proportion after it.
    """
    if settings.train.budget is not None:
        return None, None
    streams = build_train_streams(settings, open_training_data(settings))
    steps = count_steps(settings, streams)
    assert steps is not None
    options = {} if settings.train.steps is None else {"max_epochs": 1}  # there may be any number of epochs
    counters = [TokenCounter(stream, **options) for stream in streams]
    return steps, count_run_tokens(counters, settings.data.schedule.divide(steps))
