"""Names of what there is: `pt.list_models`, `list_objectives`, `list_tasks`, `list_methods`."""

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from pretune.tasks import TASKS


def list_models(family: str | None = None) -> list[str]:
    """Return the names of all published sizes ("bert-base"), or of those of one family."""
    families = [*FAMILIES] if family is None else [family]
    return [f"{name}-{size}" for name in families for size in FAMILIES.get(name).sizes]


def list_objectives() -> list[str]:
    """Return the names of the pre-training objectives."""
    return [*OBJECTIVES]


def list_tasks() -> list[str]:
    """Return the names of the tasks that `finetune` and `evaluate` know."""
    return [*TASKS]


def list_methods() -> list[str]:
    """Return the names of the ways to fine-tune a model, as `--method` takes them."""
    return [*METHODS, *METHOD_PRESETS]
