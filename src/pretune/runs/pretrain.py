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
from pretune.core.arguments import check_arguments
from pretune.core.config.specs import get_fields
from pretune.runs.build_config import build_pretrain_config, resolve_device
from pretune.runs.clock_history import load_clock_history
from pretune.runs.config import TrainConfig
from pretune.runs.output_dir import build_resume_command, check_output_dir
from pretune.runs.pretrain_run import PretrainRun, check_no_run
from pretune.runs.restore import check_model
from pretune.runs.resume import load_resumed_config
from pretune.runs.run_dir import PretrainedRun, load_finished_run
from pretune.runs.training_data import DataConfig
from pretune.training.distributed import init_distributed
from pretune.training.guards import GracefulShutdown
from pretune.training.step import TrainState

SETTING_PATHS = [
    *(f"train.{name}" for name in get_fields(TrainConfig)),
    *(f"data.{name}" for name in get_fields(DataConfig)),
    *(f"model.{name}" for name in ("width", "depth", "heads")),
]
"""Settings that `overrides` takes and that an unknown argument may mean."""


@check_arguments(SETTING_PATHS)
def pretrain(
    model: str | None = None,
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    objective: str | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    budget: str | float | None = None,
    init_from: str | os.PathLike[str] | None = None,
    resume: bool = False,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> PretrainedRun:
    """Pre-train a model and save it to `out`, a directory that `pt.load` and transformers can load.

    Give one length: `steps`, `tokens`, `epochs` or `budget`. Defaults are those of the model's paper.

    Args:
        model: Family and size, such as "bert-mini"; see `pt.list_models`.
        out: Output directory of the run.
        data: Directory of `pt.prepare`.
        objective: Training objective; see `pt.list_objectives`. None: that of the model's paper.
        steps: Number of optimizer steps.
        tokens: Number of training tokens.
        epochs: Number of passes over the data.
        budget: Wall-clock time: "10m", "1h30m", or seconds. The learning rate reaches zero when it ends.
        init_from: Run or Hugging Face directory whose weights training starts from.
        resume: Continue the unfinished run in `out`; other arguments may be left out.
        config: Settings: a run.json, a YAML file, or the same tree as a mapping.
        overrides: Settings by path, such as {"train.lr": 1e-3, "model.depth": 6}; they go before `config`.
        device: "cpu" or "cuda"; None: a GPU if available.

    Returns:
        The run: its path (`run.path`), validation loss (`run.loss`) and summary; `run.load()` gives the model.

    Raises:
        UsageError: invalid arguments, before anything is computed.
        DataError, CheckpointError: damaged data, or a run in `out` that cannot be resumed.
        DivergedError: the loss is not finite for many steps in a row.
    """
    return run_pretrain(
        model,
        out=out,
        resume=resume,
        init_from=init_from,
        changes=overrides,
        device=device,
        data=data,
        objective=objective,
        steps=steps,
        tokens=tokens,
        epochs=epochs,
        budget=budget,
        settings=config,
    )


def run_pretrain(
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
    """Run `pretrain` with a budget that counts from `started_at`, a time of `time.monotonic`, by default now.

    Other arguments are those of `build_pretrain_config`.
    """
    started_at = time.monotonic() if started_at is None else started_at
    run_dir = Path(out)
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
