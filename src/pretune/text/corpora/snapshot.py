"""Sizes and modification times of the files of a corpus, to detect changes since it was opened.

snapshot = FileSnapshot(corpus.list_stamps())
with snapshot.guard():      # hash, then read; raises a DataError if a file changed in between
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
    """Return the current stamp of a file."""
    status = Path(path).stat()
    return os.fspath(path), status.st_size, status.st_mtime_ns


class FileSnapshot:
    """Stamps of files, to compare with later ones."""

    def __init__(self, stamps: Iterable[Stamp]) -> None:
        self._stamps = list(stamps)

    def check(self) -> None:
        """Raise a DataError for the first file that changed or is missing."""
        for stamp in self._stamps:
            path, size, _ = stamp
            try:
                current_stamp = stamp_file(path)
            except OSError as fault:
                raise DataError(f"{path}: can no longer be read: {fault.strerror}") from None
            if current_stamp != stamp:
                change = (
                    "its modification time"
                    if current_stamp[1] == size
                    else f"its size from {size:,} to {current_stamp[1]:,} bytes"
                )
                raise DataError(
                    f"{path}: changed while it was read ({change}); run the command again when the file is complete"
                )

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Check at the end of a block and when it fails, since a changed file may be the reason."""
        try:
            yield
        except (DataError, OSError):
            self.check()
            raise
        self.check()
