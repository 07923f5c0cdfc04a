"""Real training steps on a processor, timed before a run: their speed depends on caches, and on who else is at work.

Matrix products and copies tell sizes apart; two seconds of real steps tell how many tokens the time holds.
"""

import math
import time

import torch

from pretune.models import catalog
from pretune.runs.config import PretrainConfig
from pretune.runs.training_data import build_train_streams, open_training_data
from pretune.training.config import configure_model
from pretune.training.optim import build_parameter_groups
from pretune.training.step import ModelWithLoss, count_tokens

TIMED_TOKENS = 4096
"""Maximum tokens of a timed step."""
TIMED_SECONDS = 2.0
"""Time after which no further step begins, but two at least."""


def measure_token_seconds(config: PretrainConfig) -> float:
    """Return the seconds of a token in steps of a config on a processor; the first step warms up."""
    config = config.replace({"train.batch_tokens": min(config.train.batch_tokens, TIMED_TOKENS)})
    stream = build_train_streams(config, open_training_data(config))[0]
    tokens, seconds, start = 0, 0.0, time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        model = catalog.build_any(catalog.convert_to_shape(config.model, config.objective.shapes))
        configure_model(model, config.train, torch.device("cpu"))
        module = ModelWithLoss(model, config.objective).train()
        optimizer = config.train.optimizer.build(build_parameter_groups(model))
        for step, batch in enumerate(stream.iter_batches()):
            step_start = time.perf_counter()
            module(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step:
                tokens, seconds = tokens + int(count_tokens(batch)), seconds + time.perf_counter() - step_start
            if step and time.perf_counter() - start > TIMED_SECONDS:
                break
    return seconds / tokens if tokens else math.nan
