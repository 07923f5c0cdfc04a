"""From wishes to settings: a name with options, a whole tree, or a part of one."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from pretune.core import config
from pretune.core.errors import UsageError, nearest
from pretune.recipes.resolve import resolve, seconds, with_heads
from pretune.recipes.settings import SECTIONS, Settings, read_objective


def choose(
    model: str | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    objective: str | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    budget: str | float | None = None,
    start: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | Settings | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Settings:
    """The settings of a run: what its paper did, or a tree that is given, with what is wished for changed."""
    length = {"steps": steps, "tokens": tokens, "epochs": epochs}
    length["budget"] = seconds(budget) if isinstance(budget, str) else budget
    given = {name: value for name, value in length.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"a run has one length, found {' and '.join(given)}; keep one")
    tree = settings.plain() if isinstance(settings, Settings) else dict(settings or {})
    if all(isinstance(tree.get(name), Mapping) for name in SECTIONS) and "kind" in tree["model"]:
        found = Settings.of(tree)
        if objective is not None and objective != config.kind(found.objective):
            chosen = read_objective(objective)
            found = replace(found, objective=chosen, model=with_heads(found.model, chosen))
        reset = dict.fromkeys(length) if given else {}
        wished = {f"train.{name}": value for name, value in {**reset, **given}.items()}
        wished |= {} if data is None else {"data.path": os.fspath(data)}
        return found.changed({**wished, **(changes or {})}) if wished or changes else found
    model, inner = _partly(model, tree)
    data = data or inner.pop("data.path", None)
    if data is None or (model is None and start is None):
        raise UsageError("a run needs a model and --data; or a --config that names them")
    return resolve(
        model or "",
        data=os.fspath(data),
        objective=objective or inner.pop("objective.kind", None),
        start=None if start is None else os.fspath(start),
        device=device or default_device(),
        length=given,
        changes={**inner, **(changes or {})},
    )


def _partly(model: str | None, tree: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """A tree that says only some things: the model's name, and paths with values."""
    changes: dict[str, Any] = {}
    for section, values in tree.items():
        if isinstance(values, Mapping):
            changes |= {f"{section}.{path}": value for path, value in values.items()}
        elif section == "model":
            model = model or str(values)
        elif section == "objective":
            changes["objective.kind"] = str(values)
        elif section == "data":
            changes["data.path"] = str(values)
        elif section != "found":
            raise UsageError(
                f"unknown section '{section}'{nearest(section, SECTIONS)}; there are {', '.join(SECTIONS)}"
            )
    return model, changes


def default_device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
