"""A model that is not there: what to give instead. Told without torch, so that a typing error costs no time."""

from pathlib import Path

from pretune.core.errors import CheckpointError, explain_missing, suggest_file
from pretune.core.hub import is_repository
from pretune.models.families import FAMILIES, OWNERS, list_sizes

REMEDY = "; give a run, a Hugging Face directory, or"


def make_missing_error(folder: Path) -> CheckpointError:
    """The error to raise: a model of the hub is written hf:OWNER/NAME, and the name of a family is no model yet."""
    name, published = str(folder), format_hub_name(str(folder))
    if name in FAMILIES or any(name == f"{family}-{size}" for family in FAMILIES for size in list_sizes(family)):
        other = published or "hf:OWNER/NAME"
        remedy = f"; it names a family: train one with `pretune pretrain {name}`, or give a run, or {other}"
    elif published is not None and "/" not in name:
        remedy = f"{REMEDY} {published}"
    else:
        if folder.exists():
            return CheckpointError(f"{folder}: {explain_missing(folder, 'directory')}")
        remedy = suggest_file(folder) or f"{REMEDY} hf:OWNER/NAME"
        if published is not None and not folder.parent.exists():
            remedy += f"; a model of the hub is {published}"
    return CheckpointError(f"{folder}: no such directory{remedy}")


def format_hub_name(name: str) -> str | None:
    """Return how a model of the hub is written here; None where a text cannot be the name of one.

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
