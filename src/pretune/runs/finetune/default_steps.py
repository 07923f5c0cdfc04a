"""Default length and evaluation interval of a fine-tuning run."""

import math

from pretune.runs.finetune.config import FinetuneTrainConfig

DEFAULT_EPOCHS, MIN_STEPS, MAX_EPOCHS = 3.0, 300, 30.0
"""Three epochs (Devlin et al., 2019), or more on small data (Mosbach et al., 2021): 300 steps or 30 epochs."""
EVALUATIONS_PER_RUN, LONG_EPOCH_STEPS = 10, 500
"""Epochs of more than LONG_EPOCH_STEPS steps are evaluated EVALUATIONS_PER_RUN times per run instead."""


def count_steps(train_config: FinetuneTrainConfig, steps_per_epoch: int, *, is_parameter_efficient: bool) -> int:
    """Return the number of steps; parameter-efficient methods train twice as long by default."""
    if train_config.steps is not None:
        return train_config.steps
    if train_config.epochs is not None:
        return max(math.ceil(train_config.epochs * steps_per_epoch), 1)
    default_steps = max(DEFAULT_EPOCHS * steps_per_epoch, min(MIN_STEPS, MAX_EPOCHS * steps_per_epoch))
    return math.ceil(default_steps * (2 if is_parameter_efficient else 1))


def compute_eval_interval(steps_per_epoch: int, steps: int) -> int:
    """Return the steps between evaluations: an epoch, or a tenth of the run if epochs are long or very short.

    >>> compute_eval_interval(100, 300), compute_eval_interval(2000, 6000), compute_eval_interval(2, 300)
    (100, 600, 30)
    """
    tenth = max(steps // EVALUATIONS_PER_RUN, 1)
    return tenth if steps_per_epoch > LONG_EPOCH_STEPS or steps_per_epoch < tenth else steps_per_epoch
