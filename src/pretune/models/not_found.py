"""Error for a missing model directory. Does not import torch, so that a typo fails fast."""

from pathlib import Path

from pretune.core.errors import CheckpointError, explain_missing, suggest_file
from pretune.core.hub import is_repository
from pretune.models.families import FAMILIES, OWNERS, list_sizes

REMEDY = "; pass a run, a Hugging Face directory, or"


def make_missing_error(folder: Path) -> CheckpointError:
    """Return the error for a missing directory, with a hint for names of families and of models on the Hub."""
    name, hub_name = str(folder), format_hub_name(str(folder))
    if name in FAMILIES or any(name == f"{family}-{size}" for family in FAMILIES for size in list_sizes(family)):
        remote = hub_name or "hf:OWNER/NAME"
        remedy = f"; it is a family: train it with `pretune pretrain {name}`, or pass a run or {remote}"
    elif hub_name is not None and "/" not in name:
        remedy = f"{REMEDY} {hub_name}"
    else:
        if folder.exists():
            return CheckpointError(f"{folder}: {explain_missing(folder, 'directory')}")
        remedy = suggest_file(folder) or f"{REMEDY} hf:OWNER/NAME"
        if hub_name is not None and not folder.parent.exists():
            remedy += f"; a model on the Hub is written {hub_name}"
    return CheckpointError(f"{folder}: no such directory{remedy}")


def format_hub_name(name: str) -> str | None:
    """Return `hf:OWNER/NAME` for a model on the Hub, or None if the text cannot be its name.

    >>> format_hub_name("owner/model"), format_hub_name("my-model"), format_hub_name("../x")
    ('hf:owner/model', None, None)
    """
    if not is_repository(name):
        return None
    if "/" in name:
        return f"hf:{name}"
    names = ((start, owner) for owner, starts in OWNERS.items() for start in starts)
    owner = next((o for start, o in names if name == start or (start[-1] == "-" and name.startswith(start))), None)
    return None if owner is None else f"hf:{owner}/{name}"
