"""Length of a run, and a learning rate schedule that fits into it."""

import math
import re
from collections.abc import Collection
from typing import Any

from pretune.core import config
from pretune.core.errors import UsageError
from pretune.runs.config import PretrainConfig, TrainConfig
from pretune.training.schedules import InverseSquareRoot

LENGTHS = ("steps", "tokens", "epochs", "budget")
"""Options for the length of a run, of which one is set."""
CLOCK_WARMUP, CLOCK_DECAY = 0.05, 0.2
"""Shares of a run with a budget: warm-up where the paper has steps, decay where the paper has none."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])\s*")


def parse_duration(text: str) -> float:
    """Parse a duration into seconds; a number without a unit is ambiguous and raises.

    >>> parse_duration("10m"), parse_duration("90s"), parse_duration("5 min"), parse_duration("1h30m")
    (600.0, 90.0, 300.0, 5400.0)
    """
    stripped_text = text.strip()
    parts = _PART.findall(stripped_text)
    seconds = sum(float(number) * _UNITS[unit[0]] for number, unit in parts)
    if _PART.sub("", stripped_text) or not 0 < seconds < math.inf:
        number = re.fullmatch(r"\d*\.?\d+", stripped_text) is not None and float(stripped_text) > 0
        units = (
            f"{stripped_text[:20]}m for minutes, {stripped_text[:20]}s for seconds" if number else "90s, 10m or 1.5h"
        )
        raise UsageError(f"invalid duration '{text[:40]}'; use {units}")
    return seconds


def estimate_steps(train: TrainConfig, tokens: int) -> int | None:
    """Estimate the steps of a run on data of `tokens` tokens; None if the budget decides."""
    if train.budget is not None:
        return None
    if train.steps is not None:
        return train.steps
    read = train.tokens if train.tokens is not None else (train.epochs or 1.0) * tokens
    return max(round(read / train.batch_tokens), 1)


def fit_schedule(settings: PretrainConfig, tokens: int, fixed_paths: Collection[str]) -> PretrainConfig:
    """Return the settings with a schedule that fits into the run; `fixed_paths` stay unchanged.

    Papers count in steps, and most trained for a million. A warm-up, or the hold before an inverse square root decay,
    takes at most a tenth of the run. With a budget, warm-up takes a twentieth of the time, and every schedule reaches
    zero when the budget ends.
    """
    if "train.schedule" in fixed_paths:
        return settings
    steps, schedule = estimate_steps(settings.train, tokens), settings.train.schedule
    tree = config.to_dict(schedule)
    changes: dict[str, Any] = {}
    if steps is not None:
        changes = {name: steps // 10 for name in ("warmup", "hold") if tree.get(name, 0) > max(steps // 10, 0.999)}
    elif isinstance(schedule, InverseSquareRoot):
        if not any(path.startswith("train.schedule.") for path in fixed_paths):
            rise = CLOCK_WARMUP if schedule.warmup else 0.0
            return settings.replace(
                {"train.schedule": {"kind": "stable", "warmup": rise, "decay": CLOCK_DECAY, "shape": "linear"}}
            )
    else:
        changes = {"warmup": CLOCK_WARMUP} if tree.get("warmup", 0) >= 1 else {}
        changes |= {"floor": 0.0} if tree.get("floor") else {}
    overrides = {f"train.schedule.{name}": value for name, value in changes.items()}
    return settings.replace({path: value for path, value in overrides.items() if path not in fixed_paths})
