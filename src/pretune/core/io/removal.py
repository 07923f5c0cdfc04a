"""Removal of files and directories, and of temporary files left by killed writers."""

import contextlib
import os
import shutil
from pathlib import Path

from pretune.core.io.atomic import sync, translate_write_errors
from pretune.core.io.temporary import TEMPORARY_PREFIX, make_temporary_name


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file or directory; a kill in between leaves all of it, or only temporary files that `sweep` removes."""
    target = Path(path)
    with translate_write_errors(target):
        hidden = target.parent / make_temporary_name()
        try:
            target.rename(hidden)
        except FileNotFoundError:
            return
        sync(hidden.parent)
        _delete(hidden)


def sweep(directory: str | os.PathLike[str]) -> int:
    """Remove temporary files left by killed writers directly inside a directory, and return their number.

    NOTE: call it only if there is no other writer: the files of a live one look the same.
    """
    with translate_write_errors(directory):
        try:
            leftovers = [child for child in Path(directory).iterdir() if child.name.startswith(TEMPORARY_PREFIX)]
        except FileNotFoundError:
            return 0
        for child in leftovers:
            _delete(child)
    return len(leftovers)


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
