"""Recorded progress of a run with a budget, so that it can be reproduced step by step."""

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
from pretune.training.step import TrainState

CHECKPOINTS_DIR = "checkpoints"


def load_clock_history(settings: PretrainConfig, settings_source: Any, *, budget: Any = None) -> TrainState:
    """Return the initial state; with the recorded progress if `settings_source` is the run.json of a finished run.

    The state is empty where nothing is to be reproduced: no budget, a different one, or one passed explicitly.
    """
    if settings.train.budget is None or budget is not None or not isinstance(settings_source, str | os.PathLike):
        return TrainState()
    if read_tree(settings_source).get("train", {}).get("budget") != settings.train.budget:
        return TrainState()
    run = Path(settings_source) if Path(settings_source).is_dir() else Path(settings_source).parent
    if load_finished_run(run) is None:
        return _warn_no_history(f"{run}: no finished run next to its settings")
    try:
        latest = CheckpointManager(run / CHECKPOINTS_DIR, on_warning=log.warn).find_latest({})
    except CheckpointError as fault:
        return _warn_no_history(str(fault))
    if latest is None or "history" not in latest.groups:
        return _warn_no_history(f"{run / CHECKPOINTS_DIR}: no checkpoint with recorded progress")
    state = read_state(latest)
    log.info(f"{run}: reproducing its {state.step:,} steps, regardless of their time")
    return TrainState(progress=state.progress, planned_ends=[*state.phases[1:], state.step])


def _warn_no_history(reason: str) -> TrainState:
    log.warn(f"{reason}; this run follows its own clock")
    return TrainState()
