"""Which checkpoints stay: the newest that are whole, and the best one."""

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
    """A checkpoint, if all of it is as it was written."""
    try:
        return open_checkpoint(folder, check_hashes)
    except CheckpointError:
        return None


def find_expired(directory: Path, max_checkpoints: int, new_folder: Path) -> list[Path]:
    """What may go: all before the `keep` newest that are whole, but for the one with the lowest held-out loss.

    A damaged one never counts, and goes when it is older than those. Every byte of what is relied on is read again, but
    for the `new` one, which has just been hashed.
    """
    kept: list[Checkpoint] = []
    older: list[Path] = []
    gone: list[Path] = []
    for path in list_checkpoints(directory):
        if kept and path.suffix == OLD_SUFFIX and kept[-1].step == parse_step(path):
            gone.append(path)  # another of this step has taken its place
        elif len(kept) >= max_checkpoints and path != new_folder:
            older.append(path)
        elif found := open_if_intact(path, check_hashes=path != new_folder):
            kept.append(found)
    best = min((found.score for found in kept if found.score is not None), default=math.inf)
    for path in sort_by_score(older):
        if read_score(path) < best and open_if_intact(path):
            older.remove(path)
            break
    return gone + older


def sort_by_score(folders: list[Path]) -> list[Path]:
    """Those that say a held-out loss, the lowest first, of equal ones the first given."""
    scored = [(read_score(folder), folder) for folder in folders]
    return [folder for score, folder in sorted(scored, key=lambda entry: entry[0]) if score < math.inf]
