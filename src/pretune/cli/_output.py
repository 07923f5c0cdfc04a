"""Checks of output paths, before the work starts."""

from pathlib import Path

from pretune.core.errors import UsageError


def check_new_folder(out: Path, *, empty: bool = False) -> None:
    """Raise where the directory cannot be created or, with `empty`, where it has content."""
    try:
        if out.is_dir():
            if empty and any(out.iterdir()):
                raise UsageError(f"cannot write '{out}': it exists and is not empty; choose another directory")
            return
        _check_parents(out)
        if out.exists() or out.is_symlink():
            raise UsageError(f"cannot write '{out}': it is a file, not a directory; choose another path")
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise UsageError(
            f"cannot write '{out}': {getattr(fault, 'strerror', None) or fault}; choose another path"
        ) from fault


def check_new_file(out: Path) -> None:
    """Raise where the file cannot be created; an existing file is replaced."""
    try:
        _check_parents(out)
        if out.is_dir():
            raise UsageError(f"cannot write '{out}': it is a directory, not a file; choose another name")
        if not out.parent.is_dir():
            raise UsageError(f"cannot write '{out}': no such directory '{out.parent}'; create it first")
    except (OSError, ValueError) as fault:
        raise UsageError(
            f"cannot write '{out}': {getattr(fault, 'strerror', None) or fault}; choose another path"
        ) from fault


def _check_parents(out: Path) -> None:
    """Raise where a parent of the path is a file."""
    for part in out.parents:
        if part.exists():
            if not part.is_dir():
                raise UsageError(f"cannot write '{out}': '{part}' is a file, not a directory; choose another path")
            return
