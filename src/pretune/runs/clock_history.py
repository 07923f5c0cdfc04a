"""A run against the clock, repeated: what it read off its clock lies in its checkpoints."""

import os
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.runs.build_config import read_tree
from pretune.runs.config import Settings
from pretune.runs.run_dir import finished
from pretune.training.checkpointing import state_of
from pretune.training.checkpoints import Store
from pretune.training.train_state import State

CHECKPOINTS = "checkpoints"


def history(settings: Settings, given: Any, *, budget: Any = None) -> State:
    """Where a run begins: with what was read off the clock, where `given` is the run.json of a finished one.

    Nothing where there is nothing to repeat: no budget, another one, or one that is asked for anew.
    """
    if settings.train.budget is None or budget is not None or not isinstance(given, str | os.PathLike):
        return State()
    if read_tree(given).get("train", {}).get("budget") != settings.train.budget:
        return State()
    run = Path(given) if Path(given).is_dir() else Path(given).parent
    if finished(run) is None:
        return _none(f"{run}: no finished run beside its settings")
    try:
        found = Store(run / CHECKPOINTS, on_note=log.warn).latest({})
    except CheckpointError as fault:
        return _none(str(fault))
    if found is None or "history" not in found.groups:
        return _none(f"{run / CHECKPOINTS}: no checkpoint tells what it read off the clock")
    state = state_of(found)
    log.say(f"{run}: its {state.step:,} steps are repeated, however long they take")
    return State(progress=state.progress, planned=[*state.phases[1:], state.step])


def _none(why: str) -> State:
    log.warn(f"{why}; this run goes against the clock anew")
    return State()
