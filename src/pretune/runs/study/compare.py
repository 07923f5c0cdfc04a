"""`pt.compare` and `pretune compare`: plan a study, run its steps, write its results."""

import os
from collections.abc import Mapping
from typing import Any

from pretune.core.errors import UsageError, suggest
from pretune.runs.study.plan import Plan
from pretune.runs.study.planner import plan_study
from pretune.runs.study.read import load_study
from pretune.runs.study.settings import flatten_settings, make_settings
from pretune.training.distributed import resolve_device

SCALES = ("class", "gpu", "full")


def build_plan(
    study: str,
    *,
    scale: str = "class",
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    data: str | os.PathLike[str] | None = None,
    device: str | None = None,
) -> Plan:
    """Return the plan of a study by name or file; a plan for GPUs is one for an H200 where there is no GPU."""
    if scale not in SCALES:
        raise UsageError(f"unknown scale '{scale[:40]}'{suggest(scale, SCALES)} (allowed: {', '.join(SCALES)})")
    if seeds is not None and not 1 <= seeds <= 100:
        raise UsageError(f"--seeds {seeds} must be from 1 to 100")
    loaded_study = load_study(study)
    settings = make_settings(flatten_settings(overrides or {}, "--set"))
    target = resolve_device(device)
    if device is None and scale != "class":
        target = "cuda"
    return plan_study(loaded_study, scale, device=target, data=data, seeds=seeds, overrides=settings)
