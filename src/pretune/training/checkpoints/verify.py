"""Whether the checkpoints of a run are whole, for a person."""

from pathlib import Path

from pretune.core.counted import counted
from pretune.core.errors import CheckpointError
from pretune.training.checkpoints.checkpoint import Found, check, listed, step_of

FOLDER = "checkpoints"
"""Where a run has them."""


def verify_checkpoints(directory: Path) -> list[str]:
    """Check every checkpoint of a run, or the one that a directory is, and say a line of each.

    All are looked at: one CheckpointError names the damaged part of every damaged one.
    """
    whole: list[Found] = []
    faults: list[str] = []
    one = step_of(directory.absolute()) is not None
    for folder in [directory] if one else listed(directory / FOLDER) if (directory / FOLDER).is_dir() else []:
        try:
            whole.append(check(folder))
        except CheckpointError as fault:
            if folder.exists():  # the run may have removed it just now
                faults.append(str(fault))
    if faults:
        good = f"; whole: {', '.join(found.folder.name for found in whole) or 'none'}"
        raise CheckpointError("; also ".join(faults) + good)
    best = min((found.score for found in whole if found.score is not None), default=None)
    return [_line(found, best) for found in whole]


def _line(found: Found, best: float | None) -> str:
    line = f"{FOLDER}/{found.folder.name}: {counted(len(found.groups) + 1, 'files')} of the sizes and SHA-256 it says"
    if found.score is None:
        return line
    return f"{line}, held-out loss {found.score:.4f}{', the best so far' if found.score == best else ''}"
