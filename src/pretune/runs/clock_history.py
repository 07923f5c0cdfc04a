"""A run against the clock, repeated: what it read off its clock lies in its checkpoints."""

import os
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.core.errors import CheckpointError
from pretune.runs.build_config import read_tree
from pretune.runs.config import PretrainConfig
from pretune.runs.run_dir import load_finished_run
from pretune.training.checkpointing import read_state
from pretune.training.checkpoints import CheckpointManager
from pretune.training.train_state import TrainState

CHECKPOINTS_DIR = "checkpoints"


def load_clock_history(settings: PretrainConfig, settings_source: Any, *, budget: Any = None) -> TrainState:
    """Where a run begins: with what was read off the clock, where `given` is the run.json of a finished one.

    Nothing where there is nothing to repeat: no budget, another one, or one that is asked for anew.
    """
    if settings.train.budget is None or budget is not None or not isinstance(settings_source, str | os.PathLike):
        return TrainState()
    if read_tree(settings_source).get("train", {}).get("budget") != settings.train.budget:
        return TrainState()
    run = Path(settings_source) if Path(settings_source).is_dir() else Path(settings_source).parent
    if load_finished_run(run) is None:
        return _warn_no_history(f"{run}: no finished run beside its settings")
    try:
        found = CheckpointManager(run / CHECKPOINTS_DIR, on_warning=log.warn).find_latest({})
    except CheckpointError as fault:
        return _warn_no_history(str(fault))
    if found is None or "history" not in found.groups:
        return _warn_no_history(f"{run / CHECKPOINTS_DIR}: no checkpoint tells what it read off the clock")
    state = read_state(found)
    log.info(f"{run}: its {state.step:,} steps are repeated, however long they take")
    return TrainState(progress=state.progress, planned=[*state.phases[1:], state.step])


def _warn_no_history(reason: str) -> TrainState:
    log.warn(f"{reason}; this run goes against the clock anew")
    return TrainState()
