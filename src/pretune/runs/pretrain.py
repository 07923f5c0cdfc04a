"""Pre-training: any family, any objective, any data; `pretune pretrain` and `pt.pretrain`.

    run = pt.pretrain("bert-mini", data="data/books", objective="masked", budget="10m", out="runs/books")

What is wrong with a wish is told before anything is computed. A run is a function of its settings and its data: what
was killed goes on with `resume=True` as if nothing had happened.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.core import log
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
    start: str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    started_at: float | None = None,
    **overrides: Any,
) -> PretrainedRun:
    """Pre-train a model and leave it in `out`, a directory that `pt.load` and transformers read.

    `start` goes on from the weights of a directory. `resume` takes an unfinished run in `out` up again. `changes` are
    paths and values, as `--set` takes them. The other wishes are those of `build_pretrain_config`: data, objective, the length of the
    run (steps, tokens, epochs or budget), or settings: a tree, or a file with one. A budget counts from `begun`, a time
    of `time.monotonic`; from now on where it is not given.
    """
    started_at = time.monotonic() if started_at is None else started_at
    where = Path(out)
    overrides |= {"start": start, "changes": changes, "device": device}
    stop = GracefulShutdown(f"go on with `{build_resume_command('pretrain', where)}`", has_checkpoint=resume)
    with stop.handle_signals():
        settings = (
            load_resumed_config(where, model, **overrides) if resume else build_pretrain_config(model, **overrides)
        )
        if not resume:
            check_output_dir(where)
            check_no_run(where)  # once more when it is locked; now nothing is computed yet
        done = load_finished_run(where) if resume else None
        if done is not None:
            check_model(where)
            log.info(f"{where}: is finished; there is nothing to resume")
            return done
        first = (
            TrainState()
            if resume
            else load_clock_history(settings, overrides.get("settings"), budget=overrides.get("budget"))
        )
        with init_distributed(resolve_device(device)) as many:
            session = PretrainRun(settings, where, many, stop, started_at=started_at, resume=resume, state=first)
            return session.run(resume=resume)
