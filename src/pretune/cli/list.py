"""`pretune list`: list registered names."""

import ast
import importlib.util
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pretune.cli._options import TableFormat
from pretune.cli._output import hint, print_data
from pretune.core import log
from pretune.core.api import Option
from pretune.core.errors import UsageError, suggest
from pretune.core.log import align_columns


def list_(
    selection: Annotated[
        str | None,
        Option(
            "KIND",
            "families, sizes, models, objectives, methods, metrics, tasks, tokenizers or studies (default: all names).",
            names=("pretune.cli.list:_KINDS",),
        ),
    ] = None,
    *,
    output: TableFormat,
) -> None:
    """List model families, sizes, objectives, methods, tasks, …

    Sizes show their parameters as published (encoders: without heads), models their short name and their path on this
    machine, objectives the model shapes they train, and tasks their kind, official metric, and the rows of the splits
    in $PRETUNE_DATA.

    Example: pretune list sizes
    """
    if selection is not None and selection not in _KINDS:
        raise UsageError(f"cannot list '{selection[:60]}'{suggest(selection, _KINDS)} (allowed: {', '.join(_KINDS)})")
    lists = {kind: find() for kind, (find, _) in _KINDS.items() if selection in (None, kind)}
    if print_data(output, lists, *_list_records(lists)):
        return
    if selection is None:
        log.print_result("\n\n".join(_format_brief(kind, list(names)) for kind, names in lists.items()))
    else:
        log.print_result("\n".join(_format_lines(lists[selection])))
        if selection == "tasks" and not any(task["rows"] for task in lists[selection].values()):
            remedy = "set $PRETUNE_DATA, or --data of other verbs, to the directory of the published files"
            log.info(f"no task data: {remedy}")
    command = ("list", "families") if selection is None else _KINDS[selection][1]
    hint(*(word or next(iter(lists[selection or "families"])) for word in command))


def list_families() -> dict[str, str]:
    """Return families with the first line of their docstrings, without importing torch."""
    from pretune.models.families import FAMILIES

    return {name: FAMILIES.describe(name) for name in FAMILIES}


def list_sizes() -> dict[str, int]:
    """Return published sizes with their exact numbers of parameters."""
    from pretune.models.families import FAMILIES

    return {f"{name}-{size}": value.params for name in FAMILIES for size, value in FAMILIES.get(name).sizes.items()}


def list_models() -> dict[str, dict[str, str | None]]:
    """Return short names of models with their directories on this machine, or None and the command that installs."""
    from pretune.core.hub import INSTALLED_MODELS

    models = {name: (model, model.find()) for name, model in INSTALLED_MODELS.items()}
    return {
        name: {
            "path": None if folder is None else str(folder),
            "install": model.remedy if folder is None else None,
            "about": model.about,
        }
        for name, (model, folder) in models.items()
    }


def list_objectives() -> dict[str, dict[str, Any]]:
    """Return objectives with their model shapes and the first line of their docstrings, without importing torch."""
    from pretune.objectives import OBJECTIVES

    return {
        name: {"shapes": _list_shapes(name), "about": OBJECTIVES.describe(name).removesuffix(".")}
        for name in OBJECTIVES
    }


def list_methods() -> dict[str, str]:
    """Return fine-tuning methods and presets with a description, without importing torch."""
    from pretune.adaptation import METHOD_PRESETS, METHODS

    return {**{name: METHODS.describe(name).removesuffix(".") for name in METHODS}, **METHOD_PRESETS}


def list_metrics() -> dict[str, str]:
    """Return metrics with the first line of their docstrings, without importing numpy."""
    from pretune.metrics import METRICS

    return {name: METRICS.describe(name).removesuffix(".") for name in METRICS}


def list_tasks() -> dict[str, dict[str, Any]]:
    """Return tasks with their kind, official metric, and the rows of the splits in $PRETUNE_DATA."""
    from pretune.tasks import TASKS

    tasks: dict[str, dict[str, Any]] = {}
    for name in TASKS:
        task = TASKS.get(name)
        available = task.find_available()
        tasks[name] = {
            "kind": task.kind,
            "metric": task.metrics[0],
            "rows": {split: part.file.rows for split, part in available.items()},
            "partial": [split for split, part in available.items() if part.file.is_partial],
            "about": TASKS.describe(name),
        }
    return tasks


def list_tokenizers() -> dict[str, str]:
    """Return tokenizer kinds with a description."""
    from pretune.text.styles import KINDS

    return {name: kind.about for name, kind in KINDS.items()}


def list_studies() -> dict[str, dict[str, str]]:
    """Return built-in studies with one line about each, and its source."""
    from pretune.studies import describe_studies

    return describe_studies()


_FIRST = ""
"""Stands for the first name in a command."""
_KINDS: Mapping[str, tuple[Callable[[], Mapping[str, Any]], tuple[str, ...]]] = {
    "families": (list_families, ("show", _FIRST)),
    "sizes": (list_sizes, ("show", _FIRST)),
    "models": (list_models, ("finetune", "--help")),
    "objectives": (list_objectives, ("show-batch", _FIRST)),
    "methods": (list_methods, ("finetune", "--help")),
    "metrics": (list_metrics, ("evaluate", "--help")),
    "tasks": (list_tasks, ("finetune", "--help")),
    "tokenizers": (list_tokenizers, ("tokenizer", "--help")),
    "studies": (list_studies, ("compare", _FIRST, "--dry-run")),
}
"""Function that lists the names of each kind, and the command to suggest after it."""


def _list_shapes(objective: str) -> list[str]:
    """Return the shapes of an objective, without an import if it is built in; empty if they depend on its parts."""
    from pretune.objectives import OBJECTIVES

    if objective in OBJECTIVES.table:
        return _read_shapes(OBJECTIVES.table[objective])
    shapes = getattr(OBJECTIVES.get(objective), "shapes", ())
    return list(shapes) if isinstance(shapes, tuple) else []


def _read_shapes(target: str) -> list[str]:
    """Return the shapes in the source code of a class or of its bases there; empty if they depend on its parts."""
    module, _, attribute = target.partition(":")
    module_spec = importlib.util.find_spec(module)
    assert module_spec is not None and module_spec.origin is not None
    tree = ast.parse(Path(module_spec.origin).read_bytes())
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names = [attribute]
    for name in names:  # grows by the bases
        for part in classes[name].body:
            match part:
                case ast.Assign(targets=[ast.Name(id="shapes")], value=value):
                    return list(ast.literal_eval(value))
                case ast.FunctionDef(name="shapes"):
                    return []
        names += [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
    return []


def _format_lines(entries: Mapping[str, Any]) -> list[str]:
    records = {name: value for name, value in entries.items() if isinstance(value, Mapping)}
    rows: list[tuple[str, ...]]
    if not records:
        texts = [f"{value:,}" if isinstance(value, int) else value for value in entries.values()]
        rows = [*zip(entries, texts, strict=True)]
    elif all("metric" in value for value in records.values()):
        rows = [(name, value["kind"], value["metric"], _format_rows(**value)) for name, value in records.items()]
    elif all("path" in value for value in records.values()):
        rows = [(name, value["about"], value["path"] or value["install"]) for name, value in records.items()]
    elif all("source" in value for value in records.values()):
        lines = ((f"{name}: {value['about']}", f"    {value['source']}") for name, value in records.items())
        return [line for pair in lines for line in pair]
    else:
        rows = [
            (name, ", ".join(value["shapes"]) or "depends on its parts", value["about"])
            for name, value in records.items()
        ]
    is_numeric = all(isinstance(value, int) for value in entries.values())
    return [*align_columns(rows, right=is_numeric, indent="")]


def _list_records(lists: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return the header and the records of a list; of several lists, kinds and names."""
    if len(lists) > 1:
        return ["kind", "name"], [[kind, name] for kind, names in lists.items() for name in names]
    ((kind, entries),) = lists.items()
    column = "parameters" if kind == "sizes" else "about"
    records = {name: value if isinstance(value, Mapping) else {column: value} for name, value in entries.items()}
    columns = list(dict.fromkeys(column for value in records.values() for column in value))
    return ["name", *columns], [
        [name, *(_format_cell(value.get(column)) for column in columns)] for name, value in records.items()
    ]


def _format_cell(value: object) -> object:
    """Format a value as one CSV field."""
    if isinstance(value, Mapping):
        return "; ".join(name if count is None else f"{name} {count}" for name, count in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _format_rows(rows: Mapping[str, int | None], partial: list[str], **_: Any) -> str:
    """Format the available splits with their rows, where known, and a mark on partial ones."""
    texts = [
        split + ("" if count is None else f" {count:,}") + (" (part)" if split in partial else "")
        for split, count in rows.items()
    ]
    return ", ".join(texts) or "no data"


def _format_brief(kind: str, names: list[str]) -> str:
    """Return a heading with the names below it."""
    text = textwrap.fill(", ".join(names), 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    noun = kind if len(names) != 1 else kind.removesuffix("s")
    return f"{len(names)} {noun} (pretune list {kind})\n{text}"
