"""Names of what there is, and entries of the user: `pt.list_models`, `pt.list_methods`, `pt.register` and others."""

from typing import Any, Literal

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.core.errors import UsageError, suggest
from pretune.core.registry import Registry
from pretune.metrics import METRICS
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from pretune.tasks import TASKS
from pretune.tasks.types import TASK_TYPES

Kind = Literal["family", "objective", "method", "task", "task type", "metric"]
REGISTRIES: dict[Kind, Registry[Any]] = {
    "family": FAMILIES,
    "objective": OBJECTIVES,
    "method": METHODS,
    "task": TASKS,
    "task type": TASK_TYPES,
    "metric": METRICS,
}
"""Registries that take entries of the user."""


def register(kind: Kind, name: str, target: Any) -> None:
    """Add a family, objective, method, task, task type or metric to this process.

    `target` is the entry itself or "module:attribute", which is imported on first use. An installed package adds its
    entries to every process by entry points (docs/extending.md). A name that is built in raises a UsageError.
    """
    if kind not in REGISTRIES:
        raise UsageError(f"unknown kind '{kind}'{suggest(kind, REGISTRIES)} (known: {', '.join(REGISTRIES)})")
    REGISTRIES[kind].register(name, target)


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
