"""What a verb is to write, looked at before an hour of work and not after it."""

from pathlib import Path

from pretune.core.errors import UsageError


def check_new_folder(out: Path, *, empty: bool = False) -> None:
    """Refuse a directory that cannot be made, or, where it is to be `empty`, one that has something in it."""
    try:
        if out.is_dir():
            if empty and any(out.iterdir()):
                raise UsageError(f"cannot write '{out}': it exists and is not empty; choose another place")
            return
        _check_parents(out)
        if out.exists() or out.is_symlink():
            raise UsageError(f"cannot write '{out}': it is a file, not a directory; choose another place")
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise UsageError(
            f"cannot write '{out}': {getattr(fault, 'strerror', None) or fault}; choose another"
        ) from fault


def check_new_file(out: Path) -> None:
    """Refuse a file that cannot be made; one that is there is replaced."""
    try:
        _check_parents(out)
        if out.is_dir():
            raise UsageError(f"cannot write '{out}': it is a directory, not a file; choose another name")
        if not out.parent.is_dir():
            raise UsageError(f"cannot write '{out}': there is no directory '{out.parent}'; make it first")
    except (OSError, ValueError) as fault:
        raise UsageError(
            f"cannot write '{out}': {getattr(fault, 'strerror', None) or fault}; choose another"
        ) from fault


def _check_parents(out: Path) -> None:
    """Refuse a way that leads through a file."""
    for part in out.parents:
        if part.exists():
            if not part.is_dir():
                raise UsageError(f"cannot write '{out}': '{part}' is a file, not a directory; choose another place")
            return
