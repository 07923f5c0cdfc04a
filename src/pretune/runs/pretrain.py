"""Pre-training of any family with any objective on prepared data: `pretune pretrain` and `pt.pretrain`.

    run = pt.pretrain("bert-mini", data="data/books", objective="masked", budget="10m", out="runs/books")

Invalid options are rejected before any computation starts. A run is a function of its settings and its data: an
interrupted run continues with `resume=True` and gives the same result.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.core.migration import refuse_old_arguments
from pretune.runs.build_config import build_pretrain_config, resolve_device
from pretune.runs.clock_history import load_clock_history
from pretune.runs.output_dir import build_resume_command, check_output_dir
from pretune.runs.pretrain_run import PretrainRun, check_no_run
from pretune.runs.restore import check_model
from pretune.runs.resume import load_resumed_config
from pretune.runs.run_dir import PretrainedRun, load_finished_run
from pretune.training.distributed import init_distributed
from pretune.training.guards import GracefulShutdown
from pretune.training.train_state import TrainState


def pretrain(
    model: str | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    init_from: str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    started_at: float | None = None,
    **overrides: Any,
) -> PretrainedRun:
    """Pre-train a model and save it to `out`, a directory that `pt.load` and transformers can load.

    `init_from` is a directory of initial weights. `resume` continues an unfinished run in `out`. `changes` are
    paths and values, as for `--set`. Other arguments are those of `build_pretrain_config`: data, objective, the length
    of the run (steps, tokens, epochs or budget), or settings: a tree, or a file with one. A budget counts from
    `started_at`, a time of `time.monotonic`, by default now.
    """
    started_at = time.monotonic() if started_at is None else started_at
    run_dir = Path(out)
    refuse_old_arguments(overrides)
    overrides |= {"init_from": init_from, "changes": changes, "device": device}
    stop = GracefulShutdown(f"resume with `{build_resume_command('pretrain', run_dir)}`", has_checkpoint=resume)
    with stop.handle_signals():
        settings = (
            load_resumed_config(run_dir, model, **overrides) if resume else build_pretrain_config(model, **overrides)
        )
        if not resume:
            check_output_dir(run_dir)
            check_no_run(run_dir)  # checked again under the lock; here nothing is computed yet
        finished_run = load_finished_run(run_dir) if resume else None
        if finished_run is not None:
            check_model(run_dir)
            log.info(f"{run_dir}: finished; nothing to resume")
            return finished_run
        first = (
            TrainState()
            if resume
            else load_clock_history(settings, overrides.get("settings"), budget=overrides.get("budget"))
        )
        with init_distributed(resolve_device(device)) as ranks:
            session = PretrainRun(settings, run_dir, ranks, stop, started_at=started_at, resume=resume, state=first)
            return session.run(resume=resume)
