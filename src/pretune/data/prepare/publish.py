"""Publication of prepared data in a new directory, or in place of older prepared data."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import UsageError
from pretune.core.io import MANIFEST, atomic_directory, remove_abandoned
from pretune.data.shards.index import INDEX_FILE as INDEX

_DATA_FILES = re.compile(
    r"data\.json|slice\.json|card\.(json|md)|MANIFEST\.json|tokenizer/[\w.-]+|units-\d+\.bin"
    r"|(keys|lengths|sizes|sources|held|signatures|sides)\.npy"
    r"|(train|valid)/(MANIFEST\.json|\d+\.(tokens|documents|sentences|words|sources|sides)\.npy)"
)


@contextlib.contextmanager
def publish_directory(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory that becomes `out`; remove files of older prepared data, never other files.

    Without `overwrite`, `out` must be empty or absent. Files of a writer that was killed during publication do not
    count.

    Raises:
        UsageError: `out` contains files that are not prepared data.
    """
    is_abandoned = remove_abandoned(out) and not (out / MANIFEST).exists()
    old = _list_files(out) if overwrite or is_abandoned else set()
    foreign = sorted(name for name in old if not _DATA_FILES.fullmatch(name))
    overwrite = overwrite or (is_abandoned and not foreign)
    if foreign and overwrite:
        raise UsageError(
            f"cannot overwrite '{out}': it contains '{foreign[0]}', which is not prepared data; "
            "move that file or choose another --out"
        )
    with atomic_directory(out, overwrite=overwrite) as folder:
        yield folder
        # Without these files the directory is not valid data while new files replace the old ones.
        for name in (MANIFEST, INDEX) if old else ():
            (out / name).unlink(missing_ok=True)
        for name in sorted(old - _list_files(folder), reverse=True):
            (out / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                (out / name).parent.rmdir()


def _list_files(folder: Path) -> set[str]:
    """Return the files below a directory, except those of an unfinished run (`.tmp-…`)."""
    files: set[str] = set()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".tmp-")]
        files |= {Path(place, name).relative_to(folder).as_posix() for name in names}
    return files
