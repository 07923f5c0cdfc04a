"""The checkpoints of a run: whole or absent, checked before they are believed, never all lost.

    RUN/.lock                              who writes here
    RUN/checkpoints/step-00001000/
        model.safetensors  optimizer.safetensors  …    one file per group of tensors
        state.json                                     step, held-out loss, and the facts the run needs to go on
        MANIFEST.json                                  sizes and SHA-256 of these, written last

    with Lock(run, on_note=print) as lock:
        store = Store(run / "checkpoints", on_note=print)
        store.tidy(lock)
        found = store.latest({"config": …, "data": …, "tokenizer": …})       # None: a new run
        …
        stalled = store.save(step, {"model": …, "optimizer": …}, facts)      # goes on while it is written
        store.wait()

Where several processes train together, only rank 0 locks, saves, waits and tidies. The others take part in gathering
the tensors before `save` (which is the barrier), and all may read what `find_latest` finds.
"""

from pretune.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from pretune.training.checkpoints.lock import RunLock
from pretune.training.checkpoints.manager import CheckpointManager
from pretune.training.checkpoints.verify import verify_checkpoints

__all__ = ["Checkpoint", "RunLock", "CheckpointManager", "list_checkpoints", "verify_checkpoints"]
