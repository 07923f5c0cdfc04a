"""Sizes and modification times of the files of a corpus: proof that none has changed since it was opened.

snapshot = Snapshot(corpus)
with snapshot.guard():      # hash, then read; a DataError where a file has changed in between
    ...
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pretune.core.errors import DataError

Stamp = tuple[str, int, int]
"""Path, size in bytes and modification time in nanoseconds of a file."""


def stamp_file(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of a file as it is now."""
    status = Path(path).stat()
    return os.fspath(path), status.st_size, status.st_mtime_ns


class FileSnapshot:
    """The stamps of some files, to be compared with later ones."""

    def __init__(self, stamps: Iterable[Stamp]) -> None:
        self._stamps = list(stamps)

    def check(self) -> None:
        """Raise a DataError for the first file that has changed or is gone."""
        for before in self._stamps:
            path, size, _ = before
            try:
                now = stamp_file(path)
            except OSError as fault:
                raise DataError(f"{path}: was there at first and cannot be read now: {fault.strerror}") from None
            if now != before:
                found = "its modification time" if now[1] == size else f"its size from {size:,} to {now[1]:,} bytes"
                raise DataError(
                    f"{path}: changed while it was read ({found}); run the command again when it is complete"
                )

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Check at the end of a block, and when it fails: a changed file may be the reason."""
        try:
            yield
        except (DataError, OSError):
            self.check()
            raise
        self.check()
