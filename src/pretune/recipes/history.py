"""A run against the clock, repeated: what it read off its clock lies in its checkpoints."""

import os
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.recipes.choose import read_tree
from pretune.recipes.run import finished
from pretune.recipes.settings import Settings
from pretune.train.store import Store

CHECKPOINTS = "checkpoints"


def history(settings: Settings, given: Any, *, budget: Any = None) -> list[float]:
    """The share of the run that was over at each step, where `given` is the run.json of a finished run with a budget.

    Nothing where there is nothing to repeat: no budget, another one, or one that is asked for anew.
    """
    if settings.train.budget is None or budget is not None or not isinstance(given, str | os.PathLike):
        return []
    if read_tree(given).get("train", {}).get("budget") != settings.train.budget:
        return []
    run = Path(given) if Path(given).is_dir() else Path(given).parent
    if finished(run) is None:
        return _none(f"{run}: no finished run beside its settings")
    try:
        found = Store(run / CHECKPOINTS, on_note=log.warn).latest({})
    except CheckpointError as fault:
        return _none(str(fault))
    if found is None or "history" not in found.groups:
        return _none(f"{run / CHECKPOINTS}: no checkpoint tells what it read off the clock")
    steps: list[float] = found.tensors("history")["progress"].tolist()
    log.say(f"{run}: its {len(steps):,} steps are repeated, however long they take")
    return steps


def _none(why: str) -> list[float]:
    log.warn(f"{why}; this run goes against the clock anew")
    return []
