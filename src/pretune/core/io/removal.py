"""Taking things away: a name goes at once, and what killed writers left behind is found again."""

import contextlib
import os
import shutil
from pathlib import Path

from pretune.core.io.atomic import sync, translate_write_errors
from pretune.core.io.temporary import TEMPORARY_PREFIX, make_temporary_name


def remove(path: str | os.PathLike[str]) -> None:
    """Take a file or a whole directory away; a kill in between leaves all of it or only what `sweep` removes."""
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
    """Remove what killed writers left right inside a directory, and say how many there were.

    NOTE: for the only writer there is: what another one is just writing looks the same.
    """
    with translate_write_errors(directory):
        try:
            left = [child for child in Path(directory).iterdir() if child.name.startswith(TEMPORARY_PREFIX)]
        except FileNotFoundError:
            return 0
        for child in left:
            _delete(child)
    return len(left)


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
