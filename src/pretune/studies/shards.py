"""Shards: the steps of a plan divided among machines, each with its own directory; `--merge` combines them."""

import math
import re
from collections.abc import Sequence

from pretune.core.errors import UsageError
from pretune.studies.plan import Cell, Plan

CHEAP_ACTIONS = ("tokenizer", "data")
"""Steps that every shard repeats, since all its cells need them."""
REFERENCE_SPEEDS = {"class": (5e10, 2.0), "gpu": (1e14, 20.0), "full": (1e14, 20.0)}
"""FLOP/s of the machine that work is measured by, and seconds until a step starts: all machines have to divide alike.
"""
MAX_LOAD = 1.2
"""A group of cells with more than this multiple of a shard's share of the work is divided."""


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


def list_cell_steps(plan: Plan, cells: Sequence[Cell]) -> list[str]:
    """Return the keys of all steps that cells need, inputs first."""
    return plan.collect_inputs([key for cell in cells for reading in cell.readings.values() for key in reading.keys])


def _group_cells(plan: Plan) -> list[list[Cell]]:
    """Return cells that are joined by shared steps, other than those that all cells share."""
    groups: list[tuple[set[str], list[Cell]]] = []
    for cell in plan.cells:
        keys = {key for key in list_cell_steps(plan, [cell]) if plan.steps[key].action not in CHEAP_ACTIONS}
        connected_groups = [group for group in groups if group[0] & keys]
        cells = [member for group in connected_groups for member in group[1]]
        groups = [group for group in groups if group not in connected_groups]
        groups.append((keys.union(*(group[0] for group in connected_groups)), [*cells, cell]))
    return [cells for _, cells in groups]


def _measure_work(plan: Plan, cells: Sequence[Cell]) -> float:
    """Return the work of cells; it does not depend on the speed of this machine, as the estimated time does."""
    steps = (plan.steps[key] for key in list_cell_steps(plan, cells))
    rate, start_seconds = REFERENCE_SPEEDS[plan.scale_name]
    if "seconds" in plan.budget:  # FLOPs then depend on the machine
        rate = math.inf
    return sum(start_seconds + step.estimate.flops / rate for step in steps if step.action not in CHEAP_ACTIONS)
