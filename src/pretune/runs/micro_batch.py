"""How a step is cut up for a device, and who makes its batches: what changes speed and memory, and nothing learnt."""

import os
from typing import Literal

import torch
from torch import nn

from pretune.data.batch_shape import Shape
from pretune.models.cost import memory
from pretune.models.spec import Model
from pretune.runs.config import Train
from pretune.training.accumulate import finer
from pretune.training.cuda_graph import Replay
from pretune.training.distributed import Ranks

MICRO_TOKENS = 8192
"""Of a micro-batch on a CPU: more does not make it faster."""
ROOM = 0.85
"""The share of a GPU's memory that may be counted on."""
KEPT = 0.5
"""The share that a recorded step may keep for itself."""
MOST_WORKERS = 4


def micro_batches(
    shape: Shape, model: Model, train: Train, ranks: Ranks, precision: torch.dtype | None, *, least: int
) -> int:
    """Micro-batches per rank and step: as few as memory allows, at least as many as were needed before."""
    rows, row = shape.rows // ranks.world, shape.length + (shape.source or 0)
    room, micro = train.micro_tokens or _room(row, rows * row, model, ranks, precision), 1
    while rows // micro > 1 and (rows // micro * row > room or micro < least):
        micro = finer(micro, rows // micro)
    return micro


def _room(row: int, most: int, model: Model, ranks: Ranks, precision: torch.dtype | None) -> int:
    """Tokens of a micro-batch."""
    if ranks.device.type != "cuda":
        return MICRO_TOKENS
    free = ROOM * torch.cuda.get_device_properties(ranks.device).total_memory
    half: Literal["fp32", "bf16"] = "fp32" if precision is None else "bf16"
    tokens = most
    while tokens > row and memory(model, tokens=tokens, length=row, training=True, precision=half).total > free:
        tokens //= 2
    return tokens


def replay(shape: Shape, model: Model, train: Train, ranks: Ranks, trainee: nn.Module, *, micro: int) -> Replay | None:
    """Passes recorded once and replayed, where that is possible and there is room for it."""
    able = ranks.device.type == "cuda" and ranks.world == 1 and train.parallel == "ddp" and micro == 1
    if not able or train.recompute or train.deterministic or train.graphs is False:
        return None
    row = shape.length + (shape.source or 0)
    whole = memory(model, tokens=shape.rows * row, length=row, training=True, precision="bf16").total
    fits = whole < KEPT * torch.cuda.get_device_properties(ranks.device).total_memory
    return Replay(trainee) if fits or train.graphs else None


def workers(train: Train, ranks: Ranks) -> int:
    """Processes that make batches: none on a CPU, which they would take time from; else by the cores of a rank."""
    if train.workers is not None:
        return train.workers
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = max(((os.cpu_count() or 1) - local) // local, 0)
    return min(MOST_WORKERS, cores) if ranks.device.type == "cuda" else 0
