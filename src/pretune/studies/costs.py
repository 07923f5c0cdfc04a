"""Cost of a whole study: time, FLOPs, energy and price of its finished steps, and the time of its pre-trainings."""

import math
from collections.abc import Mapping
from typing import Any

from pretune.models.devices import DEVICES
from pretune.reports.study_record import StudyCost
from pretune.studies.actions import START_TIME
from pretune.studies.plan import Plan
from pretune.studies.study_dir import StepRecord


def sum_costs(plan: Plan, records: Mapping[str, StepRecord]) -> StudyCost:
    """Return the cost of all steps of the study; steps side by side share the energy and the price of the device."""
    keys = [key for key, step in plan.steps.items() if key in records and step.action != "choose"]
    costs: list[Mapping[str, Any]] = [{**records[key]["cost"]} for key in keys]

    def add(name: str) -> float:
        if name in ("seconds", "flops"):
            return sum((float(cost[name]) for cost in costs), 0.0)
        return sum((float(cost[name]) / (cost.get("overlap") or cost.get("jobs", 1)) for cost in costs), 0.0)

    def add_amounts(name: str) -> float:
        return sum((float(records[key]["amounts"].get(name) or 0.0) for key in keys), 0.0)

    flops = add("flops")
    return {
        "seconds": add("seconds"),
        "flops": flops,
        "kwh": add("kwh"),
        "co2e_kg": add("co2e_kg"),
        "dollars": add("dollars"),
        "cpu_seconds": add_amounts("cpu_seconds"),
        "wall_seconds": add_amounts("total_seconds"),
        "estimated_seconds": plan.sum_estimates().seconds,
        "steps": sum(key in records for key in plan.steps),
        "planned_steps": len(plan.steps),
        "jobs": max((cost.get("jobs", 1) for cost in costs), default=1),
        "devices": sorted({cost["device"] for cost in costs if cost["device"]}),
        "arithmetic_seconds": {name: flops / device.rate for name, device in DEVICES.items()},
        "pretrain_flops": sum(records[key]["cost"]["flops"] for key in keys if plan.steps[key].action == "pretrain"),
        "pretrain_seconds": measure_pretraining(plan, records),
    }


def measure_pretraining(plan: Plan, records: Mapping[str, StepRecord]) -> float:
    """Return the wall-clock time in which any pre-training ran, with its start; those side by side share it."""
    spans: list[tuple[float, float]] = []
    for key, step in plan.steps.items():
        if step.action == "pretrain" and key in records and START_TIME in (amounts := records[key]["amounts"]):
            spans.append((amounts[START_TIME], amounts[START_TIME] + amounts["total_seconds"]))
    seconds, end = 0.0, -math.inf
    for first, last in sorted(spans):
        seconds += max(last - max(first, end), 0.0)
        end = max(end, last)
    return seconds
