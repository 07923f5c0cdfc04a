"""`pretune list`: list registered names."""

import ast
import importlib.util
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.cli._options import TableFormat
from pretune.cli._output import hint, print_data
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UsageError, suggest
from pretune.core.hub import INSTALLED_MODELS
from pretune.core.log import align_columns
from pretune.core.registry import Registry
from pretune.metrics import METRICS
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from pretune.runs.recipes import RECIPES
from pretune.studies import describe_studies
from pretune.tasks import TASKS
from pretune.text.styles import KINDS


@option_set
class ListOptions(Options):
    """Options of a list of names."""

    kind: str | None = option(
        "KIND",
        "recipes, families, sizes, models, objectives, methods, metrics, tasks, tokenizers or studies "
        "(default: all names).",
        names=("pretune.cli.list:_KINDS",),
    )
    missing: bool = option(
        "--missing",
        "Of tasks: only those without data, with the files that they read and their licence.",
        default=False,
    )


def list_(options: ListOptions, output: TableFormat) -> None:
    """List model families, sizes, objectives, methods, tasks, …

    Sizes show their parameters as published (encoders: without heads), models their short name and their path on this
    machine, objectives the model shapes they train, and tasks their kind, official metric, and the rows of the splits
    in $PRETUNE_DATA.

    Example: pretune list sizes
    """
    selection = options.kind
    if selection is not None and selection not in _KINDS:
        raise UsageError(f"cannot list '{selection[:60]}'{suggest(selection, _KINDS)} (allowed: {', '.join(_KINDS)})")
    if options.missing and selection != "tasks":
        raise UsageError("--missing lists tasks without data; use `pretune list tasks --missing`")
    listings = {"tasks": _MISSING_TASKS} if options.missing else _KINDS
    lists = {kind: listing.list_entries() for kind, listing in listings.items() if selection in (None, kind)}
    if print_data(output, lists, *_list_records(lists)):
        return
    if selection is None:
        log.print_result("\n\n".join(_format_brief(kind, list(names)) for kind, names in lists.items()))
    else:
        rows = [listings[selection].format_row(name, entry) for name, entry in lists[selection].items()]
        if rows:
            log.print_result("\n".join(align_columns(rows, right=selection == "sizes", indent="")))
        if options.missing:
            log.info(f"{len(rows)} of {len(TASKS)} tasks have no data in $PRETUNE_DATA or its folder tasks/")
        elif selection == "tasks" and not any(
            task["rows"] for name, task in lists[selection].items() if not TASKS.get(name).has_own_paths
        ):
            remedy = "set $PRETUNE_DATA, or --data of other verbs, to the directory of the published files"
            log.info(f"no task data: {remedy}; `pretune list tasks --missing` names them")
    command = ("list", "families") if selection is None else listings[selection].command
    if selection == "models" and lists[selection]["small-encoder"]["path"]:
        command = ("fill", "small-encoder", "Paris is the [MASK] of France.")
    hint(*(word or next(iter(lists[selection or "families"])) for word in command))


def _list_models() -> dict[str, dict[str, str | None]]:
    """Return short names of models with their directories on this machine, or None and the command that installs."""
    models = {name: (model, model.find()) for name, model in INSTALLED_MODELS.items()}
    return {
        name: {
            "path": None if folder is None else str(folder),
            "install": model.remedy if folder is None else None,
            "about": model.about,
        }
        for name, (model, folder) in models.items()
    }


def _list_tasks() -> dict[str, dict[str, object]]:
    """Return tasks with their kind, official metric, and the rows of the splits in $PRETUNE_DATA."""
    tasks: dict[str, dict[str, object]] = {}
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


def _list_missing_tasks() -> dict[str, dict[str, object]]:
    """Return the tasks without data, with the files that they read."""
    tasks = {name: TASKS.get(name) for name in TASKS}
    return {
        name: {"kind": task.kind, "files": task.describe_files(), "licence": task.licence}
        for name, task in tasks.items()
        if not task.find_available()
    }


def _describe(registry: Registry[Any]) -> dict[str, str]:
    """Return the entries of a registry with the first line of their docstrings, without importing them."""
    return {name: registry.describe(name).removesuffix(".") for name in registry}


def _list_objectives() -> dict[str, dict[str, object]]:
    return {name: {"shapes": _list_shapes(name), "about": about} for name, about in _describe(OBJECTIVES).items()}


def _list_sizes() -> dict[str, int]:
    return {f"{name}-{size}": value.params for name in FAMILIES for size, value in FAMILIES.get(name).sizes.items()}


class Listing(NamedTuple):
    """The command to suggest after the entries of a kind, the function that lists them, and the cells of an entry."""

    command: tuple[str, ...]
    list_entries: Callable[[], Mapping[str, Any]]
    format_row: Callable[[str, Any], tuple[str, ...]] = lambda name, about: (name, about)


_MISSING_TASKS = Listing(("list", "tasks"), _list_missing_tasks, lambda name, row: (name, row["files"]))

_FIRST = ""
"""Stands for the first name in a command."""

_KINDS = {
    "recipes": Listing(("pretrain", "--help"), lambda: _describe(RECIPES)),
    "families": Listing(("show", _FIRST), lambda: {name: FAMILIES.describe(name) for name in FAMILIES}),
    "sizes": Listing(("show", _FIRST), _list_sizes, lambda name, parameters: (name, f"{parameters:,}")),
    "models": Listing(
        ("finetune", "--help"), _list_models, lambda name, row: (name, row["about"], row["path"] or row["install"])
    ),
    "objectives": Listing(
        ("show-batch", _FIRST),
        _list_objectives,
        lambda name, row: (name, ", ".join(row["shapes"]) or "depends on its parts", row["about"]),
    ),
    "methods": Listing(("finetune", "--help"), lambda: {**_describe(METHODS), **METHOD_PRESETS}),
    "metrics": Listing(("evaluate", "--help"), lambda: _describe(METRICS)),
    "tasks": Listing(
        ("finetune", "--help"), _list_tasks, lambda name, row: (name, row["kind"], row["metric"], _format_splits(row))
    ),
    "tokenizers": Listing(("tokenizer", "--help"), lambda: {name: kind.about for name, kind in KINDS.items()}),
    "studies": Listing(
        ("compare", _FIRST, "--dry-run"),
        describe_studies,
        lambda name, row: (f"{name}: {row['about']}\n    {row['source']}",),
    ),
}
"""The kinds of names, in the order of `pretune list`."""


def _list_shapes(objective: str) -> list[str]:
    """Return the shapes of an objective, without an import if it is built in; empty if they depend on its parts."""
    if objective in OBJECTIVES.table:
        return _read_shapes(OBJECTIVES.table[objective])
    shapes = getattr(OBJECTIVES.get(objective), "shapes", ())
    return list(shapes) if isinstance(shapes, tuple) else []


def _read_shapes(target: str) -> list[str]:
    """Return the shapes in the source code of a class or of its bases; empty if they depend on its parts."""
    module, _, name = target.partition(":")
    module_spec = importlib.util.find_spec(module)
    assert module_spec is not None and module_spec.origin is not None
    tree = ast.parse(Path(module_spec.origin).read_bytes())
    modules: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.ClassDef(name=class_name):
                modules[class_name] = module
            case ast.ImportFrom(module=str(source), names=names) if source.startswith("pretune.objectives"):
                modules |= {alias.name: source for alias in names}
    definition = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for part in definition.body:
        match part:
            case ast.Assign(targets=[ast.Name(id="shapes")], value=value):
                return list(ast.literal_eval(value))
            case ast.FunctionDef(name="shapes"):
                return []
    bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
    return next((_read_shapes(f"{modules[base]}:{base}") for base in bases if base in modules), [])


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


def _format_splits(task: Mapping[str, Any]) -> str:
    """Format the available splits with their rows, where known, and a mark on partial ones."""
    texts = [
        split + ("" if count is None else f" {count:,}") + (" (part)" if split in task["partial"] else "")
        for split, count in task["rows"].items()
    ]
    return ", ".join(texts) or "no data"


def _format_brief(kind: str, names: list[str]) -> str:
    """Return a heading with the names below it."""
    text = textwrap.fill(", ".join(names), 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    noun = kind if len(names) != 1 else kind.removesuffix("s")
    return f"{len(names)} {noun} (pretune list {kind})\n{text}"
