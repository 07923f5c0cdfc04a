"""What the first rank does while the others wait, however long it takes.

    scores = alone(ranks, lambda: baselines(…))        # there; None on the others

A rank that waits for one message would give up after a while (see `train.ranks.PATIENCE`), for it cannot tell long work
from a death. So the first rank says every second that it is still at work.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from pretune.core.errors import ResourceError
from pretune.training.distributed import Ranks

T = TypeVar("T")
HEARTBEAT_SECONDS = 1.0
"""Seconds between two messages; a signal to a rank that waits is heard after the next."""
DONE, FAILED = 1, 2


def run_on_rank_zero(ranks: Ranks, function: Callable[[], T]) -> T | None:
    """The first rank works, and may not ask anything of the others meanwhile; None on these, when it has ended."""
    if ranks.world == 1:
        return function()
    if ranks.is_first:
        return _run_with_heartbeat(ranks, function)
    said = 0
    while not said:
        said = ranks.max(0)
    if said == FAILED:
        raise ResourceError("the first rank has ended; what it says is the reason")
    return None


def _run_with_heartbeat(ranks: Ranks, function: Callable[[], T]) -> T:
    over, said = threading.Event(), FAILED

    def beat() -> None:
        try:
            while not over.wait(HEARTBEAT_SECONDS):
                ranks.max(0)
            ranks.max(said)
        except RuntimeError:
            pass  # another rank is gone: this work does not need it, and what comes next will notice

    thread = threading.Thread(target=beat, name="pretune-beat", daemon=True)
    thread.start()
    try:
        found = function()
        said = DONE
        return found
    finally:
        over.set()
        thread.join()
