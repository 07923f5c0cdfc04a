"""What a run will take, before anything is built: from its settings and the size of its data."""

import time
from typing import Any

import numpy as np
import torch

from pretune.data.prepare import PreparedData
from pretune.models import trained_model
from pretune.models.cost import CO2_KG_PER_KWH, DEVICES
from pretune.models.devices import DOLLARS_PER_KWH, Device
from pretune.objectives.base import Vocabulary
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import explain_rate
from pretune.runs.duration import estimate_steps
from pretune.text.tokenizer import Tokenizer
from pretune.training.batch_stats import BatchStats
from pretune.training.energy import CORE_WATTS, UNKNOWN_WATTS, find_device
from pretune.training.flops import build_flops_counter

_SEQUENCES = 1000
"""Sequences of a batch that is large enough for shares to be exact."""
LAPTOP_CORES = 8
"""Of the laptop in the table of devices."""
THIS_MACHINE = "this machine"
MEASURE_SECONDS, MEASURE_REPEATS = 0.02, 5
"""Time of a measurement of this machine's speed, and their number; the fastest counts, for others may be at work."""


def estimate_pretrain(settings: PretrainConfig, device: str = "cpu") -> dict[str, Any]:
    """Parameters, FLOPs, and what the run takes on this machine's device and on each that we know; against the clock,
    how far it comes there.

    All sequences are taken to be full; tokens are those of both sides of an encoder-decoder.
    """
    spec = trained_model.convert_to_shape(settings.model, settings.objective.shapes)
    data = PreparedData.open(settings.data.path)
    per_token = compute_training_flops(settings, spec, Tokenizer.load(data.tokenizer))
    steps = estimate_steps(settings.train, data.tokens)
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
            one: estimate_cost(found, per_token, flops, settings.train.budget)
            for one, found in {THIS_MACHINE: detect_device(device), **DEVICES}.items()
        },
    }


def detect_device(device: str) -> Device:
    """The device of this machine: a GPU as the table has it, else by how fast it multiplies matrices now."""
    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    if (entry := find_device(name)) is not None:
        return entry
    on_gpu = where.type == "cuda"
    kind, size, watts = ("bf16", 4096, UNKNOWN_WATTS) if on_gpu else ("fp32", 384, CORE_WATTS * torch.get_num_threads())
    return Device(
        name=name,
        flops={kind: measure_flops(where, torch.bfloat16 if on_gpu else torch.float32, size)},
        memory=0.0,  # nobody asks for it
        watts=watts,
        dollars_per_hour=watts / 1000 * DOLLARS_PER_KWH,
        is_owned=True,
        utilisation=DEVICES["rtx4090" if on_gpu else "laptop-cpu"].utilisation,
    )


def measure_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """FLOPs per second of products of square matrices, measured in a tenth of a second."""
    one = torch.ones(size, size, device=device, dtype=dtype)
    rates: list[float] = []
    for _ in range(MEASURE_REPEATS + 1):  # the first one warms up
        begun, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begun < MEASURE_SECONDS:
            torch.mm(one, one)
            count += 1
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        rates.append(2 * size**3 * count / (time.perf_counter() - begun))
    return max(rates)


def estimate_cost(device: Device, per_token: float, flops: float | None, budget: float | None) -> dict[str, float]:
    """What so many FLOPs take on a device, or how far it comes in so many seconds."""
    seconds = budget or 0.0 if flops is None else flops / device.rate
    kwh = seconds * device.watts / 3.6e6
    return {
        "seconds": seconds,
        "tokens": seconds * device.rate / per_token,
        "kwh": kwh,
        "co2e_kg": kwh * CO2_KG_PER_KWH,
        "dollars": seconds / 3600 * device.dollars_per_hour,
    }


def estimate_steps_on_cores(settings: PretrainConfig, tokenizer: Tokenizer, cores: int) -> float:
    """How many steps a run against the clock may come to on so many cores."""
    laptop = DEVICES["laptop-cpu"]
    spec = trained_model.convert_to_shape(settings.model, settings.objective.shapes)
    a_step = compute_training_flops(settings, spec, tokenizer) * settings.train.batch_tokens
    return (settings.train.budget or 0.0) * laptop.rate * cores / LAPTOP_CORES / a_step


def compute_training_flops(settings: PretrainConfig, spec: trained_model.AnySpec, tokenizer: Tokenizer) -> float:
    """FLOPs of training on a token, over the phases of the run."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer, start=settings.model.special.start)
    lesson = settings.objective.bind(vocabulary, spec.shape)
    count, total = build_flops_counter(*trained_model.list_models(spec)), 0.0
    for phase in settings.data.schedule.phases:
        source, target = (None if side is None else int(side[0]) for side in lesson.lengths(np.array([phase.length])))
        n, m = (target, source or 0) if target is not None else (source or 0, 0)
        seen = BatchStats(
            sequences=_SEQUENCES,
            tokens=_SEQUENCES * n,
            squares=_SEQUENCES * n * n,
            targets=min(lesson.targets(_SEQUENCES * n, _SEQUENCES), _SEQUENCES * n),
            source=_SEQUENCES * m,
            source_squares=_SEQUENCES * m * m,
            products=_SEQUENCES * m * n,
        )
        total += phase.share * count(seen) / seen.total_tokens
    return total
