"""Whether the checkpoints of a run are whole, for a person."""

from pathlib import Path

from pretune.core.errors import CheckpointError
from pretune.core.format import format_count
from pretune.training.checkpoints.checkpoint import Checkpoint, list_checkpoints, open_checkpoint, parse_step

CHECKPOINT_DIR = "checkpoints"
"""Where a run has them."""


def verify_checkpoints(directory: Path) -> list[str]:
    """Check every checkpoint of a run, or the one that a directory is, and say a line of each.

    All are looked at: one CheckpointError names the damaged part of every damaged one.
    """
    whole: list[Checkpoint] = []
    faults: list[str] = []
    one = parse_step(directory.absolute()) is not None
    for folder in (
        [directory]
        if one
        else list_checkpoints(directory / CHECKPOINT_DIR)
        if (directory / CHECKPOINT_DIR).is_dir()
        else []
    ):
        try:
            whole.append(open_checkpoint(folder))
        except CheckpointError as fault:
            if folder.exists():  # the run may have removed it just now
                faults.append(str(fault))
    if faults:
        good = f"; whole: {', '.join(found.folder.name for found in whole) or 'none'}"
        raise CheckpointError("; also ".join(faults) + good)
    best = min((found.score for found in whole if found.score is not None), default=None)
    return [_format_line(found, best) for found in whole]


def _format_line(checkpoint: Checkpoint, best_score: float | None) -> str:
    line = f"{CHECKPOINT_DIR}/{checkpoint.folder.name}: {format_count(len(checkpoint.groups) + 1, 'files')} of the sizes and SHA-256 it says"
    if checkpoint.score is None:
        return line
    return (
        f"{line}, held-out loss {checkpoint.score:.4f}{', the best so far' if checkpoint.score == best_score else ''}"
    )
