"""Cost estimate of a run, from its settings and the size of its data, and its length, known before its first step.

The learning rate schedule needs the number of steps. A run of `train.tokens` tokens has as many as its batches need to
hold them, which have room for about `train.batch_tokens`, as rows divide them, and are not full. Packing plans give the
exact numbers, so that a dry run and the run agree.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pretune.adaptation.teacher import DistillationFlops, check_teacher
from pretune.data.prepared_data import PreparedData
from pretune.data.stream import Corruption, TokenCounter, count_run_tokens
from pretune.models import catalog
from pretune.models.cost import CO2_KG_PER_KWH
from pretune.models.devices import DEVICES, Device
from pretune.models.hf.checkpoint import inspect_checkpoint
from pretune.models.spec import Model
from pretune.objectives.base import Vocabulary
from pretune.objectives.distill import Distill
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import explain_rate
from pretune.runs.training_data import build_train_streams, count_steps, floor_rows, open_training_data
from pretune.text.tokenizer import Tokenizer
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import CORE_WATTS, UNKNOWN_WATTS, build_flops_counter, find_device

_SEQUENCES = 1000
"""Batch size that is large enough for exact shares."""
LAPTOP_CORES = 8
"""Cores of the laptop in the table of devices."""
THIS_MACHINE = "this machine"
MEASURE_SECONDS, MEASURE_REPEATS = 0.02, 5
"""Duration and number of speed measurements; the fastest counts, since the machine may be busy."""


def estimate_pretrain(settings: PretrainConfig, device: str = "cpu") -> dict[str, Any]:
    """Estimate parameters, FLOPs and cost on this machine and on known devices; with a budget, the tokens it covers.

    Steps and tokens are those of the run; tokens count both sides of an encoder-decoder. FLOPs assume full sequences.
    """
    spec = catalog.convert_to_shape(settings.model, settings.objective.shapes)
    data = PreparedData.open(settings.data.path)
    per_token = compute_training_flops(settings, spec, Tokenizer.load(data.tokenizer))
    steps, tokens = measure_length(settings)
    flops = None if tokens is None else tokens * per_token
    return {
        "rate": explain_rate(settings),
        "parameters": spec.params().total,
        "flops_per_token": per_token,
        "steps": steps,
        "tokens": tokens,
        "flops": flops,
        "devices": estimate_costs(device, per_token, flops, settings.train.budget),
    }


def detect_device(device: str) -> Device:
    """Return this machine's device: a known GPU, otherwise one with the measured matrix multiplication speed."""
    torch_device = torch.device(device)
    name = torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else torch_device.type
    if (entry := find_device(name)) is not None:
        return entry
    on_gpu = torch_device.type == "cuda"
    kind, size, watts = ("bf16", 4096, UNKNOWN_WATTS) if on_gpu else ("fp32", 384, CORE_WATTS * torch.get_num_threads())
    return Device(
        name=name,
        flops={kind: measure_flops(torch_device, torch.bfloat16 if on_gpu else torch.float32, size)},
        memory=0.0,  # unused
        watts=watts,
        utilisation=DEVICES["rtx4090" if on_gpu else "laptop-cpu"].utilisation,
    )


def measure_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Measure the FLOP/s of square matrix products for a tenth of a second; those of a CPU as if it were idle."""
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    on_gpu = device.type == "cuda"
    clock, threads = (time.perf_counter, 1) if on_gpu else (time.process_time, torch.get_num_threads())
    rates: list[float] = []
    for _ in range(MEASURE_REPEATS + 1):  # the first one warms up
        start, count = clock(), 0
        while count == 0 or clock() - start < MEASURE_SECONDS * threads:
            torch.mm(matrix, matrix)
            count += 1
            if on_gpu:
                torch.cuda.synchronize(device)
        rates.append(2 * size**3 * count * threads / (clock() - start))
    return max(rates)


def estimate_costs(
    device: str, per_token: float, flops: float | None, budget: float | None = None
) -> dict[str, dict[str, float]]:
    """Return the cost of `flops` on this machine and on known devices, or the tokens of `budget` seconds there."""
    costs: dict[str, dict[str, float]] = {}
    for name, entry in {THIS_MACHINE: detect_device(device), **DEVICES}.items():
        seconds = budget or 0.0 if flops is None else flops / entry.rate
        kwh = seconds * entry.watts / 3.6e6
        costs[name] = {
            "seconds": seconds,
            "tokens": seconds * entry.rate / per_token,
            "kwh": kwh,
            "co2e_kg": kwh * CO2_KG_PER_KWH,
            "dollars": seconds / 3600 * entry.dollars_per_hour,
        }
    return costs


def estimate_steps_on_cores(settings: PretrainConfig, tokenizer: Tokenizer, cores: int) -> float:
    """Estimate the steps of a run with a budget on this number of cores."""
    laptop = DEVICES["laptop-cpu"]
    spec = catalog.convert_to_shape(settings.model, settings.objective.shapes)
    step_flops = compute_training_flops(settings, spec, tokenizer) * settings.train.batch_tokens
    return (settings.train.budget or 0.0) * laptop.rate * cores / LAPTOP_CORES / step_flops


def compute_training_flops(
    settings: PretrainConfig, spec: catalog.AnySpec, tokenizer: Tokenizer, teacher: Model | None = None
) -> float:
    """Return the training FLOPs per token, averaged over the phases of the run.

    A generator and the forward passes of a teacher are included; `teacher` is its spec, by default that on disk.
    """
    vocabulary = Vocabulary.from_tokenizer(tokenizer, start=settings.model.special.start)
    corruption = settings.objective.bind(vocabulary, spec.shape)
    count, total = _build_flops_counter(settings, spec, teacher), 0.0
    for phase in settings.data.schedule.phases:
        n, m = _compute_row_lengths(corruption, phase.length)
        stats = BatchStats(
            sequences=_SEQUENCES,
            tokens=_SEQUENCES * n,
            squares=_SEQUENCES * n * n,
            targets=min(corruption.targets(_SEQUENCES * n, _SEQUENCES), _SEQUENCES * n),
            source=_SEQUENCES * m,
            source_squares=_SEQUENCES * m * m,
            products=_SEQUENCES * m * n,
        )
        total += phase.share * count(stats) / stats.total_tokens
    return total


def estimate_batch_tokens(settings: PretrainConfig, spec: catalog.AnySpec, tokenizer: Tokenizer) -> float:
    """Estimate the tokens of a batch without data, averaged over the phases of the run: those of full rows."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer, start=settings.model.special.start)
    corruption, total = settings.objective.bind(vocabulary, spec.shape), 0.0
    for phase in settings.data.schedule.phases:
        row = sum(_compute_row_lengths(corruption, phase.length))
        total += phase.share * row * floor_rows(max(settings.train.batch_tokens // row, 1))
    return total


def _compute_row_lengths(corruption: Corruption, length: int) -> tuple[int, int]:
    """Return the tokens of a full sequence of this length after corruption: in the decoder, or alone, and a source."""
    source, target = (None if side is None else int(side[0]) for side in corruption.lengths(np.array([length])))
    return (target, source or 0) if target is not None else (source or 0, 0)


def _build_flops_counter(
    settings: PretrainConfig, spec: catalog.AnySpec, teacher: Model | None
) -> Callable[[BatchStats], float]:
    """Return the counter of FLOPs; with a teacher, that of both, once their specs are checked."""
    distill = settings.objective
    if not isinstance(distill, Distill):
        return build_flops_counter(*catalog.list_models(spec))
    teacher = teacher or inspect_checkpoint(distill.require_teacher())[0]
    check_teacher(distill, settings.model, teacher, distill.require_teacher(), settings.data.max_length)
    return DistillationFlops.from_objective(distill, settings.model, teacher)


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
