"""Verification of the checkpoints of a run, for `pretune verify`."""

from pathlib import Path

from pretune.core.errors import CheckpointError
from pretune.core.format import format_count
from pretune.training.checkpoints.checkpoint import Checkpoint, list_checkpoints, open_checkpoint, parse_step

CHECKPOINT_DIR = "checkpoints"
"""Directory of the checkpoints in a run."""


def verify_checkpoints(directory: Path) -> list[str]:
    """Verify every checkpoint of a run, or a single one; returns a line for each.

    Raises one CheckpointError that names the damaged part of every damaged checkpoint.
    """
    valid: list[Checkpoint] = []
    errors: list[str] = []
    is_checkpoint = parse_step(directory.absolute()) is not None
    for folder in (
        [directory]
        if is_checkpoint
        else list_checkpoints(directory / CHECKPOINT_DIR)
        if (directory / CHECKPOINT_DIR).is_dir()
        else []
    ):
        try:
            valid.append(open_checkpoint(folder))
        except CheckpointError as error:
            if folder.exists():  # the run may just have removed it
                errors.append(str(error))
    if errors:
        suffix = f"; valid: {', '.join(checkpoint.folder.name for checkpoint in valid) or 'none'}"
        raise CheckpointError("; also ".join(errors) + suffix)
    best = min((checkpoint.score for checkpoint in valid if checkpoint.score is not None), default=None)
    return [_format_line(checkpoint, best) for checkpoint in valid]


def _format_line(checkpoint: Checkpoint, best_score: float | None) -> str:
    files = format_count(len(checkpoint.groups) + 1, "files")
    line = f"{CHECKPOINT_DIR}/{checkpoint.folder.name}: {files}, sizes and SHA-256 match"
    if checkpoint.score is None:
        return line
    return (
        f"{line}, validation loss {checkpoint.score:.4f}{', the best so far' if checkpoint.score == best_score else ''}"
    )
