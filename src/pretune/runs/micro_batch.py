"""Micro-batches, CUDA graphs and data workers: settings of speed and memory without effect on the result."""

import os
from typing import Literal

import torch
from torch import nn

from pretune.data.batch_shape import BatchShape
from pretune.models.cost import estimate_memory
from pretune.models.spec import Model
from pretune.runs.config import TrainConfig
from pretune.training.cuda_graph import CudaGraphRunner
from pretune.training.distributed import Ranks
from pretune.training.step import increase_micro_batches

MICRO_TOKENS = 8192
"""Tokens of a micro-batch on a CPU, where more is not faster."""
MEMORY_SHARE = 0.85
"""Usable share of a GPU's memory."""
GRAPH_MEMORY_SHARE = 0.5
"""Maximum memory share of a recorded step."""
MAX_WORKERS = 4


def count_micro_batches(
    shape: BatchShape,
    model: Model,
    train: TrainConfig,
    ranks: Ranks,
    precision: torch.dtype | None,
    *,
    min_micro_batches: int,
) -> int:
    """Return the micro-batches per rank and step: as few as memory allows, at least `min_micro_batches`."""
    rows, row = shape.rows // ranks.world, shape.length + (shape.source or 0)
    room, micro = train.micro_tokens or _fit_micro_tokens(row, rows * row, model, ranks, precision), 1
    while rows // micro > 1 and (rows // micro * row > room or micro < min_micro_batches):
        micro = increase_micro_batches(micro, rows // micro)
    return micro


def _fit_micro_tokens(row: int, max_tokens: int, model: Model, ranks: Ranks, precision: torch.dtype | None) -> int:
    """Return the tokens of a micro-batch that fit into memory."""
    if ranks.device.type != "cuda":
        return MICRO_TOKENS
    free = MEMORY_SHARE * torch.cuda.get_device_properties(ranks.device).total_memory
    half: Literal["fp32", "bf16"] = "fp32" if precision is None else "bf16"
    tokens = max_tokens
    while (
        tokens > row and estimate_memory(model, tokens=tokens, length=row, training=True, precision=half).total > free
    ):
        tokens //= 2
    return tokens


def build_cuda_graph(
    shape: BatchShape, model: Model, train: TrainConfig, ranks: Ranks, loss_module: nn.Module, *, micro: int
) -> CudaGraphRunner | None:
    """Return a CUDA graph runner where graphs are supported and fit into memory."""
    able = ranks.device.type == "cuda" and ranks.world == 1 and train.parallel == "ddp" and micro == 1
    if not able or train.activation_checkpointing or train.deterministic or train.cuda_graphs is False:
        return None
    row = shape.length + (shape.source or 0)
    memory = estimate_memory(model, tokens=shape.rows * row, length=row, training=True, precision="bf16").total
    fits = memory < GRAPH_MEMORY_SHARE * torch.cuda.get_device_properties(ranks.device).total_memory
    return CudaGraphRunner(loss_module) if fits or train.cuda_graphs else None


def count_workers(train: TrainConfig, ranks: Ranks) -> int:
    """Return the number of data workers: none on a CPU, whose cores they would take; else by cores per rank."""
    if train.workers is not None:
        return train.workers
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = max(((os.cpu_count() or 1) - local) // local, 0)
    return min(MAX_WORKERS, cores) if ranks.device.type == "cuda" else 0
