"""What a run will take, before anything is built: from its settings and the size of its data."""

import time
from typing import Any

import numpy as np
import torch

from pretune.data.prepare import Data
from pretune.models import trained_model
from pretune.models.cost import DEVICES, GRID
from pretune.models.devices import DOLLARS_PER_KWH, Device
from pretune.objectives.base import Vocabulary
from pretune.runs.config import Settings
from pretune.runs.defaults import explain_rate
from pretune.runs.duration import roughly
from pretune.text.tokenizer import Tokenizer
from pretune.training.batch_stats import Tally
from pretune.training.energy import CORE_WATTS, UNKNOWN_WATTS, known
from pretune.training.flops import flops_of

_MANY = 1000
"""Sequences of a batch that is large enough for shares to be exact."""
CORES = 8
"""Of the laptop in the table of devices."""
HERE = "this machine"
SECONDS, REPEATS = 0.02, 5
"""Time of a measurement of this machine's speed, and their number; the fastest counts, for others may be at work."""


def forecast(settings: Settings, device: str = "cpu") -> dict[str, Any]:
    """Parameters, FLOPs, and what the run takes on this machine's device and on each that we know; against the clock,
    how far it comes there.

    All sequences are taken to be full; tokens are those of both sides of an encoder-decoder.
    """
    spec = trained_model.shaped(settings.model, settings.objective.shapes)
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
        "devices": {
            one: on_device(found, per_token, flops, settings.train.budget)
            for one, found in {HERE: this_machine(device), **DEVICES}.items()
        },
    }


def this_machine(device: str) -> Device:
    """The device of this machine: a GPU as the table has it, else by how fast it multiplies matrices now."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    if (entry := known(name)) is not None:
        return entry
    on_gpu = where.type == "cuda"
    kind, size, watts = ("bf16", 4096, UNKNOWN_WATTS) if on_gpu else ("fp32", 384, CORE_WATTS * torch.get_num_threads())
    return Device(
        name=name,
        flops={kind: multiplied(where, torch.bfloat16 if on_gpu else torch.float32, size)},
        memory=0.0,  # nobody asks for it
        watts=watts,
        dollars_per_hour=watts / 1000 * DOLLARS_PER_KWH,
        owned=True,
        utilisation=DEVICES["rtx4090" if on_gpu else "laptop-cpu"].utilisation,
    )


def multiplied(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """FLOPs per second of products of square matrices, measured in a tenth of a second."""
    one = torch.ones(size, size, device=device, dtype=dtype)
    rates: list[float] = []
    for _ in range(REPEATS + 1):  # the first one warms up
        begun, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begun < SECONDS:
            torch.mm(one, one)
            count += 1
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        rates.append(2 * size**3 * count / (time.perf_counter() - begun))
    return max(rates)


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
    spec = trained_model.shaped(settings.model, settings.objective.shapes)
    a_step = training_flops(settings, spec, tokenizer) * settings.train.batch_tokens
    return (settings.train.budget or 0.0) * laptop.rate * cores / CORES / a_step


def training_flops(settings: Settings, spec: trained_model.AnySpec, tokenizer: Tokenizer) -> float:
    """FLOPs of training on a token, over the phases of the run."""
    vocabulary = Vocabulary.of(tokenizer, start=settings.model.special.start)
    lesson = settings.objective.open(vocabulary, spec.shape)
    count, total = flops_of(*trained_model.models(spec)), 0.0
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
