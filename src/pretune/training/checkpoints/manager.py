"""The checkpoints of one run: saved while training goes on, found again whatever happened."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError
from pretune.training.checkpoints.checkpoint import (
    OLD_SUFFIX,
    Checkpoint,
    describe_state,
    format_folder_name,
    list_checkpoints,
    open_checkpoint,
    write_checkpoint,
)
from pretune.training.checkpoints.lock import RunLock
from pretune.training.checkpoints.retention import find_expired, open_if_intact, sort_by_score
from pretune.training.checkpoints.snapshot import SnapshotBuffers, TensorSnapshot


class CheckpointManager:
    """The directory RUN/checkpoints. Only the holder of the run's lock may save; anybody may read."""

    def __init__(self, directory: Path, *, max_checkpoints: int = 2, on_warning: Callable[[str], None]) -> None:
        if max_checkpoints < 2:
            raise UsageError(f"{max_checkpoints} checkpoints are too few to survive a damaged one; keep 2 or more")
        self.directory, self.max_checkpoints, self.on_warning = directory, max_checkpoints, on_warning
        self._snapshot = SnapshotBuffers()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(
        self,
        step: int,
        groups: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        *,
        score: float | None = None,
        wait: bool = False,
    ) -> float:
        """Save tensors as they are now, written in the background; the seconds that the caller stood still.

        groups: a file each, by its stem. facts: JSON; those that are texts say to which run and data the checkpoint
        belongs (see `find_latest`). score: the held-out loss of these weights, where it is known. A save waits for the one
        before it, whose fault (a full disk) is raised here; whatever fails, older checkpoints stay as they are.
        """
        begun = time.perf_counter()
        self.wait()
        taken = self._snapshot.copy(groups)
        description = describe_state(step, taken, facts, score)
        self._pending = self._writer.submit(self._write, step, taken, description)
        if wait:
            self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        """Wait until the last save is on the disk; if it failed, its error is raised, once."""
        if self._pending is not None:
            try:
                self._pending.result()
            finally:
                if self._pending.done():  # not so when the waiting was interrupted
                    self._pending = None

    def raise_pending_error(self) -> None:
        """Raise what the last save failed by, if it has ended; it is not waited for."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def find_latest(self, expected_facts: Mapping[str, str]) -> Checkpoint | None:
        """The newest checkpoint that is whole, None where there is none at all.

        Each one that is damaged is skipped, with a note; if all are, that is an error, as it is when the one found does
        not have the facts that are expected: it is another run's, or something changed under this one.
        """
        first: CheckpointError | None = None
        for folder in list_checkpoints(self.directory):
            try:
                found = open_checkpoint(folder)
            except CheckpointError as fault:
                first = first or fault
                self.on_warning(f"skipping a damaged checkpoint: {fault}")
                continue
            _check_facts(found, expected_facts)
            return found
        if first is not None:
            raise CheckpointError(f"{self.directory}: no checkpoint is whole; the newest: {first}") from first
        return None

    def find_best(self) -> Checkpoint | None:
        """Of the checkpoints that are whole, the one with the lowest held-out loss; None where none has one."""
        return next(
            (found for folder in sort_by_score(list_checkpoints(self.directory)) if (found := open_if_intact(folder))),
            None,
        )

    def remove_unfinished(self, lock: RunLock) -> None:
        """Remove what killed writers left behind, at the start of a run: only its holder knows that nobody writes."""
        if not lock.is_held or self.directory.resolve().parent != lock.directory.resolve():
            raise ValueError(f"{self.directory}: tidying needs the lock of the run")
        self.wait()
        if left := io.sweep(self.directory):
            self.on_warning(f"{self.directory}: removed {left} unfinished, of a run that was killed")

    def _write(self, step: int, snapshot: TensorSnapshot, description: str) -> None:
        snapshot.wait()
        folder = self.directory / format_folder_name(step)
        if folder.exists():
            _set_aside(folder)
        write_checkpoint(folder, snapshot, description)
        for path in find_expired(self.directory, self.max_checkpoints, folder):
            io.remove(path)


def _set_aside(folder: Path) -> None:
    """Free the name of a checkpoint for another of the same step; it can still be found if that one never comes."""
    if open_if_intact(folder) is None:
        io.remove(folder)
        return
    aside = folder.with_name(folder.name + OLD_SUFFIX)
    io.remove(aside)
    with io.translate_write_errors(aside):
        folder.rename(aside)


def _check_facts(checkpoint: Checkpoint, expected_facts: Mapping[str, str]) -> None:
    for name, wanted in expected_facts.items():
        there = checkpoint.facts.get(name)
        if there != wanted:
            says = "not recorded" if there is None else repr(there)[:80]
            raise CheckpointError(
                f"{checkpoint.folder}: does not belong to this run: its {name} is {says}, this run's is {wanted!r:.80}; "
                "resume with what it was started with, or choose another place for this run"
            )
