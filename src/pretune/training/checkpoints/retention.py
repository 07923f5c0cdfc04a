"""Which checkpoints stay: the newest that are whole, and the best one."""

import math
from pathlib import Path

from pretune.core.errors import CheckpointError
from pretune.training.checkpoints.checkpoint import OLD, Found, check, listed, score_of, step_of


def whole(folder: Path, hashes: bool = True) -> Found | None:
    """A checkpoint, if all of it is as it was written."""
    try:
        return check(folder, hashes)
    except CheckpointError:
        return None


def expired(directory: Path, keep: int, new: Path) -> list[Path]:
    """What may go: all before the `keep` newest that are whole, but for the one with the lowest held-out loss.

    A damaged one never counts, and goes when it is older than those. Every byte of what is relied on is read again, but
    for the `new` one, which has just been hashed.
    """
    kept: list[Found] = []
    older: list[Path] = []
    gone: list[Path] = []
    for path in listed(directory):
        if kept and path.suffix == OLD and kept[-1].step == step_of(path):
            gone.append(path)  # another of this step has taken its place
        elif len(kept) >= keep and path != new:
            older.append(path)
        elif found := whole(path, hashes=path != new):
            kept.append(found)
    best = min((found.score for found in kept if found.score is not None), default=math.inf)
    for path in by_score(older):
        if score_of(path) < best and whole(path):
            older.remove(path)
            break
    return gone + older


def by_score(folders: list[Path]) -> list[Path]:
    """Those that say a held-out loss, the lowest first, of equal ones the first given."""
    scored = [(score_of(folder), folder) for folder in folders]
    return [folder for score, folder in sorted(scored, key=lambda entry: entry[0]) if score < math.inf]
