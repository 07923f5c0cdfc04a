"""Retention of checkpoints: the newest valid ones, and the best one."""

import math
from pathlib import Path

from pretune.core.errors import CheckpointError
from pretune.training.checkpoints.checkpoint import (
    OLD_SUFFIX,
    Checkpoint,
    list_checkpoints,
    open_checkpoint,
    parse_step,
    read_score,
)


def open_if_intact(folder: Path, check_hashes: bool = True) -> Checkpoint | None:
    """Open a checkpoint; None if it is damaged."""
    try:
        return open_checkpoint(folder, check_hashes)
    except CheckpointError:
        return None


def find_expired(directory: Path, max_checkpoints: int, new_folder: Path) -> list[Path]:
    """List checkpoints to delete: all but the `max_checkpoints` newest valid ones and the one with the lowest loss.

    Damaged checkpoints do not count, and are deleted when older than the valid ones. Every byte of a kept checkpoint is
    read again, except for `new_folder`, which was just hashed.
    """
    valid: list[Checkpoint] = []
    older: list[Path] = []
    replaced_folders: list[Path] = []
    for path in list_checkpoints(directory):
        if valid and path.suffix == OLD_SUFFIX and valid[-1].step == parse_step(path):
            replaced_folders.append(path)  # replaced by another one of this step
        elif len(valid) >= max_checkpoints and path != new_folder:
            older.append(path)
        elif checkpoint := open_if_intact(path, check_hashes=path != new_folder):
            valid.append(checkpoint)
    best = min((checkpoint.score for checkpoint in valid if checkpoint.score is not None), default=math.inf)
    for path in sort_by_score(older):
        if read_score(path) < best and open_if_intact(path):
            older.remove(path)
            break
    return replaced_folders + older


def sort_by_score(folders: list[Path]) -> list[Path]:
    """Return the folders that have a validation loss, lowest first; ties keep their order."""
    scores = [(read_score(folder), folder) for folder in folders]
    return [folder for score, folder in sorted(scores, key=lambda entry: entry[0]) if score < math.inf]
