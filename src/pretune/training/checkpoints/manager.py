"""The checkpoints of one run: saved while training goes on, found again whatever happened."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError
from pretune.training.checkpoints.checkpoint import OLD, Found, check, describe, folder_name, listed, write
from pretune.training.checkpoints.lock import Lock
from pretune.training.checkpoints.retention import by_score, expired, whole
from pretune.training.checkpoints.snapshot import Snapshot, Taken


class Store:
    """The directory RUN/checkpoints. Only the holder of the run's lock may save; anybody may read."""

    def __init__(self, directory: Path, *, keep: int = 2, on_note: Callable[[str], None]) -> None:
        if keep < 2:
            raise UsageError(f"{keep} checkpoints are too few to survive a damaged one; keep 2 or more")
        self.directory, self.keep, self.on_note = directory, keep, on_note
        self._snapshot = Snapshot()
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
        belongs (see `latest`). score: the held-out loss of these weights, where it is known. A save waits for the one
        before it, whose fault (a full disk) is raised here; whatever fails, older checkpoints stay as they are.
        """
        begun = time.perf_counter()
        self.wait()
        taken = self._snapshot.take(groups)
        description = describe(step, taken, facts, score)
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

    def heed(self) -> None:
        """Raise what the last save failed by, if it has ended; it is not waited for."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def latest(self, expect: Mapping[str, str]) -> Found | None:
        """The newest checkpoint that is whole, None where there is none at all.

        Each one that is damaged is skipped, with a note; if all are, that is an error, as it is when the one found does
        not have the facts that are expected: it is another run's, or something changed under this one.
        """
        first: CheckpointError | None = None
        for folder in listed(self.directory):
            try:
                found = check(folder)
            except CheckpointError as fault:
                first = first or fault
                self.on_note(f"skipping a damaged checkpoint: {fault}")
                continue
            _belongs(found, expect)
            return found
        if first is not None:
            raise CheckpointError(f"{self.directory}: no checkpoint is whole; the newest: {first}") from first
        return None

    def best(self) -> Found | None:
        """Of the checkpoints that are whole, the one with the lowest held-out loss; None where none has one."""
        return next((found for folder in by_score(listed(self.directory)) if (found := whole(folder))), None)

    def tidy(self, lock: Lock) -> None:
        """Remove what killed writers left behind, at the start of a run: only its holder knows that nobody writes."""
        if not lock.held or self.directory.resolve().parent != lock.directory.resolve():
            raise ValueError(f"{self.directory}: tidying needs the lock of the run")
        self.wait()
        if left := io.sweep(self.directory):
            self.on_note(f"{self.directory}: removed {left} unfinished, of a run that was killed")

    def _write(self, step: int, taken: Taken, description: str) -> None:
        taken.ready()
        folder = self.directory / folder_name(step)
        if folder.exists():
            _set_aside(folder)
        write(folder, taken, description)
        for path in expired(self.directory, self.keep, folder):
            io.remove(path)


def _set_aside(folder: Path) -> None:
    """Free the name of a checkpoint for another of the same step; it can still be found if that one never comes."""
    if whole(folder) is None:
        io.remove(folder)
        return
    aside = folder.with_name(folder.name + OLD)
    io.remove(aside)
    with io.writing(aside):
        folder.rename(aside)


def _belongs(found: Found, expect: Mapping[str, str]) -> None:
    for name, wanted in expect.items():
        there = found.facts.get(name)
        if there != wanted:
            says = "not recorded" if there is None else repr(there)[:80]
            raise CheckpointError(
                f"{found.folder}: does not belong to this run: its {name} is {says}, this run's is {wanted!r:.80}; "
                "resume with what it was started with, or choose another place for this run"
            )
