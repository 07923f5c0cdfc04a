"""What a run will take, before anything is built: from its settings and the size of its data."""

from typing import Any

import numpy as np

from pretune.data.prepare import Data
from pretune.models import shapes
from pretune.models.cost import DEVICES, GRID
from pretune.models.devices import Device
from pretune.objectives.objective import Vocabulary
from pretune.recipes.duration import roughly
from pretune.recipes.resolve import explain_rate
from pretune.recipes.settings import Settings
from pretune.text.tokenizer import Tokenizer
from pretune.train.flops import flops_of
from pretune.train.tally import Tally

_MANY = 1000
"""Sequences of a batch that is large enough for shares to be exact."""
CORES = 8
"""Of the laptop in the table of devices."""


def forecast(settings: Settings) -> dict[str, Any]:
    """Parameters, FLOPs, and what the run takes on each device we know; against the clock, how far it comes there.

    All sequences are taken to be full; tokens are those of both sides of an encoder-decoder.
    """
    spec = shapes.shaped(settings.model, settings.objective.shapes)
    data = Data.open(settings.data.path)
    per_token = training_flops(settings, spec, Tokenizer.load(data.tokenizer))
    steps = roughly(settings.train, data.tokens)
    tokens = None if steps is None else steps * settings.train.batch_tokens
    flops = None if tokens is None else tokens * per_token
    return {
        "rate": explain_rate(settings),
        "parameters": spec.params().total,
        "flops_per_token": per_token,
        "steps": steps,
        "tokens": tokens,
        "flops": flops,
        "devices": {one: on_device(found, per_token, flops, settings.train.budget) for one, found in DEVICES.items()},
    }


def on_device(device: Device, per_token: float, flops: float | None, budget: float | None) -> dict[str, float]:
    """What so many FLOPs take on a device, or how far it comes in so many seconds."""
    seconds = budget or 0.0 if flops is None else flops / device.rate
    kwh = seconds * device.watts / 3.6e6
    return {
        "seconds": seconds,
        "tokens": seconds * device.rate / per_token,
        "kwh": kwh,
        "co2e_kg": kwh * GRID,
        "dollars": seconds / 3600 * device.dollars_per_hour,
    }


def steps_on_cores(settings: Settings, tokenizer: Tokenizer, cores: int) -> float:
    """How many steps a run against the clock may come to on so many cores."""
    laptop = DEVICES["laptop-cpu"]
    spec = shapes.shaped(settings.model, settings.objective.shapes)
    a_step = training_flops(settings, spec, tokenizer) * settings.train.batch_tokens
    return (settings.train.budget or 0.0) * laptop.rate * cores / CORES / a_step


def training_flops(settings: Settings, spec: shapes.AnySpec, tokenizer: Tokenizer) -> float:
    """FLOPs of training on a token, over the phases of the run."""
    vocabulary = Vocabulary.of(tokenizer, start=settings.model.special.start)
    lesson = settings.objective.open(vocabulary, spec.shape)
    count, total = flops_of(*shapes.models(spec)), 0.0
    for phase in settings.data.schedule.phases:
        source, target = (None if side is None else int(side[0]) for side in lesson.lengths(np.array([phase.length])))
        n, m = (target, source or 0) if target is not None else (source or 0, 0)
        seen = Tally(
            sequences=_MANY,
            tokens=_MANY * n,
            squares=_MANY * n * n,
            targets=min(lesson.targets(_MANY * n, _MANY), _MANY * n),
            source=_MANY * m,
            source_squares=_MANY * m * m,
            products=_MANY * m * n,
        )
        total += phase.share * count(seen) / seen.read
    return total
