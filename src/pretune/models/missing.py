"""A model that is not there: what to give instead. Told without torch, so that a typing error costs no time."""

from pathlib import Path

from pretune.core.errors import CheckpointError, nearest_file
from pretune.models.families import FAMILIES


def missing(folder: Path) -> CheckpointError:
    """The error to raise; the name of a family is no model yet."""
    if any(f"{folder}-".startswith(f"{family}-") for family in FAMILIES):
        remedy = f"; it names a family: train one with `pretune pretrain {folder}`, or give a run, or hf:OWNER/NAME"
    else:
        remedy = nearest_file(folder) or "; give a run, a Hugging Face directory, or hf:OWNER/NAME"
    return CheckpointError(f"{folder}: no such directory{remedy}")
