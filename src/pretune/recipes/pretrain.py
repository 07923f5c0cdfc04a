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

from pretune.core.errors import CheckpointError
from pretune.recipes.choose import choose, default_device
from pretune.recipes.resolve import RUN, read_run
from pretune.recipes.run import Run
from pretune.recipes.session import Session
from pretune.recipes.settings import Settings
from pretune.train.ranks import ranks


def pretrain(
    model: str | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    start: str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    **wishes: Any,
) -> Run:
    """Pre-train a model and leave it in `out`, a directory that `pt.load` and transformers read.

    `start` goes on from the weights of a directory. `resume` takes an unfinished run in `out` up again. `changes` are
    paths and values, as `--set` takes them. The other wishes are those of `choose`: data, objective, the length of the
    run (steps, tokens, epochs or budget), or whole settings.
    """
    begun = time.monotonic()
    where = Path(out)
    if resume:
        settings = _resumed(where, changes)
    else:
        settings = choose(model, start=start, changes=changes, device=device, **wishes)
    with ranks(device or default_device()) as many:
        session = Session(settings, where, many, begun=begun, start=None if start is None else Path(start))
        return session.run(resume=resume)


def _resumed(where: Path, changes: Mapping[str, Any] | None) -> Settings:
    """The settings of the run that is there; only what does not change what is learnt may be changed."""
    if not (where / RUN).is_file():
        raise CheckpointError(f"{where}: there is no run to resume ({RUN} is missing)")
    stored = read_run(where)
    wished = stored.changed(changes) if changes else stored
    for path, (old, new) in wished.differences(stored).items():
        raise CheckpointError(f"{where}: {path} was {new} and cannot become {old} in a run that goes on")
    return wished
