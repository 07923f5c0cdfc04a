"""Schedule of the steps of a plan: their number side by side, and their order."""

from collections.abc import Sequence

import torch

from pretune.core.machine import count_cores
from pretune.studies.plan import Plan, Step
from pretune.training.distributed import resolve_device

MAX_GPU_JOBS, MAX_CPU_JOBS, MIN_PARALLEL_SECONDS = 8, 4, 60.0
"""Most steps side by side on a GPU and on a CPU, and the estimated time of a study from which it has several there."""
JOB_BYTES, MEMORY_FACTOR = 3 * 2**30, 2.0
"""Memory of a process on a GPU besides its tensors, and the reserve over their estimated size."""


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


def count_pretrainings(jobs: int, device: str | None) -> int:
    """Return how many of the steps side by side may be pre-trainings while others are ready.

    Half of them on a GPU: pre-trainings fill it, so more of them at a time take longer each, while small fine-tunings
    leave it idle. Cells are finished earlier if their fine-tunings do not wait for all pre-trainings.
    """
    return (jobs + 1) // 2 if resolve_device(device).startswith("cuda") else jobs


def select_step(ready: Sequence[Step], running: Sequence[Step], max_pretrainings: int) -> Step:
    """Return the first of the ready steps, or the first that is no pre-training if enough of those are running."""
    if sum(step.action == "pretrain" for step in running) < max_pretrainings:
        return ready[0]
    return next((step for step in ready if step.action != "pretrain"), ready[0])
