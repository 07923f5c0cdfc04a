"""Schedule of the steps of a plan: shards of machines, the number of steps side by side, and their order.

Each shard has a directory of its own; `--merge` combines their records.
"""

import math
import re
from collections.abc import Sequence

import torch

from pretune.core.errors import UsageError
from pretune.core.machine import count_cores
from pretune.studies.plan import Cell, Plan, Step
from pretune.training.distributed import resolve_device

MAX_GPU_JOBS, MAX_CPU_JOBS, MIN_PARALLEL_SECONDS = 8, 4, 60.0
"""Most steps side by side on a GPU and on a CPU, and the estimated time of a study from which it has several there."""
JOB_BYTES, MEMORY_FACTOR = 3 * 2**30, 2.0
"""Memory of a process on a GPU besides its tensors, and the reserve over their estimated size."""
LARGE_FLOPS = 1e16
"""FLOPs of a pre-training from which one fills a GPU: four at a time had 18 % MFU in all, one alone 23 %."""
CHEAP_ACTIONS = ("tokenizer", "data")
"""Steps that every shard repeats, since all its cells need them."""
REFERENCE_SPEEDS = {"class": (5e10, 2.0), "gpu": (1e14, 20.0), "full": (1e14, 20.0)}
"""FLOP/s of the machine that work is measured by, and seconds until a step starts: all machines have to divide alike.
"""
MAX_LOAD = 1.2
"""A group of cells with more than this multiple of a shard's share of the work is divided."""


def choose_jobs(plan: Plan, device: str | None) -> int:
    """Return the number of steps that run side by side: on a CPU one per core, on a GPU by its memory.

    It is 1 with a budget of time, and for a study that is shorter than the start of processes is worth.
    """
    target = resolve_device(device)
    if "seconds" in plan.budget:
        return 1
    if not target.startswith("cuda"):  # small models use one core well, and several badly
        is_short = plan.sum_estimates().seconds < MIN_PARALLEL_SECONDS
        return 1 if is_short else min(MAX_CPU_JOBS, count_cores())
    free, _ = torch.cuda.mem_get_info(torch.device(target))
    job = JOB_BYTES + MEMORY_FACTOR * plan.sum_estimates().memory
    return max(1, min(MAX_GPU_JOBS, int(free / job), count_cores() // 2))


def sort_by_critical_path(plan: Plan, keys: Sequence[str]) -> list[str]:
    """Sort steps by the estimated time of the critical path from them on, the longest first.

    Many steps wait for a tokenizer, its prepared data and a pre-training; baselines and short fine-tunings run when
    nothing else is ready.
    """
    seconds = dict.fromkeys(keys, 0.0)  # after the end of the step
    for key in reversed(keys):
        for other in plan.steps[key].inputs:
            if other in seconds:
                seconds[other] = max(seconds[other], seconds[key] + plan.steps[key].estimate.seconds)
    return sorted(keys, key=lambda key: -(seconds[key] + plan.steps[key].estimate.seconds))


def count_pretrainings(plan: Plan, jobs: int, device: str | None) -> int:
    """Return how many of the steps side by side may be pre-trainings while others are ready.

    On a GPU half of them, and of large ones two: one fills the GPU, and the other one starts and compiles meanwhile.
    More of them at a time take longer each, while small fine-tunings leave the GPU idle. Cells are finished earlier if
    their fine-tunings do not wait for all pre-trainings.
    """
    if not resolve_device(device).startswith("cuda"):
        return jobs
    flops = [step.estimate.flops for step in plan.steps.values() if step.action == "pretrain"]
    return min((jobs + 1) // 2, 2 if max(flops, default=0.0) > LARGE_FLOPS else jobs)


def select_step(ready: Sequence[Step], running: Sequence[Step], max_pretrainings: int) -> Step:
    """Return the first of the ready steps, or the first that is no pre-training if enough of those are running."""
    if sum(step.action == "pretrain" for step in running) < max_pretrainings:
        return ready[0]
    return next((step for step in ready if step.action != "pretrain"), ready[0])


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number of a shard and the number of shards.

    >>> parse_shard("2/4")
    (2, 4)
    """
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text.strip())
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard must be i/n with i from 1 to n, such as 1/4, got '{text[:20]}'")
    return number, count


def list_shard_cells(plan: Plan, number: int, count: int) -> list[Cell]:
    """Return the cells of a shard: groups of cells that share expensive steps, the most expensive group first.

    Each group goes to the shard with the least work so far. A group with more than its share of the work is divided, so
    its shared steps are done by several shards.
    """
    groups = _group_cells(plan)
    total = _measure_work(plan, plan.cells)
    parts: list[list[Cell]] = []
    for group in groups:
        is_large = _measure_work(plan, group) > MAX_LOAD * total / count
        parts += [[cell] for cell in group] if is_large else [group]
    order = sorted(range(len(parts)), key=lambda place: (-_measure_work(plan, parts[place]), place))
    shards: list[list[Cell]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for place in order:
        shard = min(range(count), key=lambda index: (loads[index], index))
        shards[shard] += parts[place]
        loads[shard] = _measure_work(plan, shards[shard])
    names = {(cell.row, cell.seed) for cell in shards[number - 1]}
    return [cell for cell in plan.cells if (cell.row, cell.seed) in names]


def _group_cells(plan: Plan) -> list[list[Cell]]:
    """Return cells that are joined by shared steps, other than those that all cells share."""
    groups: list[tuple[set[str], list[Cell]]] = []
    for cell in plan.cells:
        keys = {key for key in plan.list_steps([cell]) if plan.steps[key].action not in CHEAP_ACTIONS}
        connected_groups = [group for group in groups if group[0] & keys]
        cells = [member for group in connected_groups for member in group[1]]
        groups = [group for group in groups if group not in connected_groups]
        groups.append((keys.union(*(group[0] for group in connected_groups)), [*cells, cell]))
    return [cells for _, cells in groups]


def _measure_work(plan: Plan, cells: Sequence[Cell]) -> float:
    """Return the work of cells; it does not depend on the speed of this machine, as the estimated time does."""
    steps = (plan.steps[key] for key in plan.list_steps(cells))
    rate, start_seconds = REFERENCE_SPEEDS[plan.scale_name]
    if "seconds" in plan.budget:  # FLOPs then depend on the machine
        rate = math.inf
    return sum(start_seconds + step.estimate.flops / rate for step in steps if step.action not in CHEAP_ACTIONS)
