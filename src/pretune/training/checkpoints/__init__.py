"""Checkpoints of a run: atomic, verified before loading, never all lost.

    RUN/.lock                              the process that writes here
    RUN/checkpoints/step-00001000/
        model.safetensors  optimizer.safetensors  …    one file per group of tensors
        state.json                                     step, validation loss, and facts needed to resume
        MANIFEST.json                                  sizes and SHA-256 of these files, written last

    with RunLock(run, on_warning=print) as lock:
        manager = CheckpointManager(run / "checkpoints", on_warning=print)
        manager.remove_unfinished(lock)
        checkpoint = manager.find_latest({"config": …, "data": …, "tokenizer": …})     # None: a new run
        …
        manager.save(step, {"model": …, "optimizer": …}, facts)                        # writes in the background
        manager.wait()

With several processes, only rank 0 locks, saves, waits and removes. The others take part in gathering the tensors
before `save` (which is the barrier), and all may read the checkpoint that `find_latest` returns.
"""

from pretune.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from pretune.training.checkpoints.manager import (
    CheckpointHook,
    CheckpointManager,
    collect_weights,
    read_state,
    restore_checkpoint,
    verify_checkpoints,
)

__all__ = [
    "Checkpoint",
    "CheckpointHook",
    "CheckpointManager",
    "collect_weights",
    "list_checkpoints",
    "read_state",
    "restore_checkpoint",
    "verify_checkpoints",
]
