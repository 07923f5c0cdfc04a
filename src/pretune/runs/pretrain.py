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
from pretune.runs.build_config import choose, device_of
from pretune.runs.clock_history import history
from pretune.runs.output_dir import going_on, own
from pretune.runs.pretrain_run import Session, free
from pretune.runs.restore import check_model
from pretune.runs.resume import resumed
from pretune.runs.run_dir import Run, finished
from pretune.training.distributed import ranks
from pretune.training.guards import Stop
from pretune.training.train_state import State


def pretrain(
    model: str | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    start: str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    begun: float | None = None,
    **wishes: Any,
) -> Run:
    """Pre-train a model and leave it in `out`, a directory that `pt.load` and transformers read.

    `start` goes on from the weights of a directory. `resume` takes an unfinished run in `out` up again. `changes` are
    paths and values, as `--set` takes them. The other wishes are those of `choose`: data, objective, the length of the
    run (steps, tokens, epochs or budget), or settings: a tree, or a file with one. A budget counts from `begun`, a time
    of `time.monotonic`; from now on where it is not given.
    """
    begun = time.monotonic() if begun is None else begun
    where = Path(out)
    wishes |= {"start": start, "changes": changes, "device": device}
    stop = Stop(f"go on with `{going_on('pretrain', where)}`", begun=resume)
    with stop.listening():
        settings = resumed(where, model, **wishes) if resume else choose(model, **wishes)
        if not resume:
            own(where)
            free(where)  # once more when it is locked; now nothing is computed yet
        done = finished(where) if resume else None
        if done is not None:
            check_model(where)
            log.say(f"{where}: is finished; there is nothing to resume")
            return done
        first = State() if resume else history(settings, wishes.get("settings"), budget=wishes.get("budget"))
        with ranks(device_of(device)) as many:
            session = Session(settings, where, many, stop, begun=begun, resume=resume, state=first)
            return session.run(resume=resume)
