"""Section of a report: family, size, data and settings of each run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.format import format_count
from pretune.reports import facts
from pretune.reports.load import RunRecord
from pretune.reports.markup import Markup, join, table

Facts = Mapping[str, Any]


def render_runs(runs: Sequence[RunRecord]) -> Markup:
    """Render a table for pre-training and one for fine-tuning, with a column per run."""
    groups = [[run for run in runs if not run.is_finetuned], [run for run in runs if run.is_finetuned]]
    return join(render_side_by_side(group) for group in groups if group)


def render_side_by_side(runs: Sequence[RunRecord]) -> Markup:
    """Render properties by run; properties that no run has are dropped."""
    properties = [dict(list_properties(run)) for run in runs]
    names = list(dict.fromkeys(name for run_properties in properties for name in run_properties))
    rows = [(name, *(run_properties.get(name, "") for run_properties in properties)) for name in names]
    return table(("", *(run.name for run in runs)), rows, kind="pairs" if len(runs) == 1 else "")


def list_properties(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the known properties of a run."""
    if run.is_finetuned:
        yield from _list_finetuning(run)
    elif run.is_pretrained:
        yield from _list_pretraining(run)
    elif "embedding" in run.config:
        yield from _list_embedding(run)
    if run.cost is None:
        yield "state", "unfinished (no cost.json)"


def _list_pretraining(run: RunRecord) -> Iterator[tuple[str, str]]:
    tree = run.config
    yield "stage", "pre-training" + (f" from {tree['train']['init_from']}" if tree["train"].get("init_from") else "")
    yield "family", str(tree["model"].get("family", ""))
    yield "size", format_size(tree["model"])
    yield "objective", format_objective(tree["objective"])
    yield "data", str(tree["data"].get("path", ""))
    if "parameters" in run.summary:
        yield from facts.build_pretraining_rows(tree, run.summary)
    else:
        yield "optimizer", facts.format_optimizer(tree["train"])
    yield from _list_machine(tree)


def _list_finetuning(run: RunRecord) -> Iterator[tuple[str, str]]:
    tree, scores = run.config, run.scores
    yield "stage", f"fine-tuning of {tree['base']['path']}"
    if scores is None:
        yield "method", str(tree["method"]["kind"])
        return
    yield "task", f"{run.train_task} ({scores['kind']})"
    yield from facts.build_finetuning_rows(tree, scores)
    yield "seeds", ", ".join(map(str, scores["result"]["seeds"]))


def _list_embedding(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "stage", "contrastive training of embeddings"
    yield "loss", format_objective(run.config["loss"])
    for name in ("steps", "tokens"):
        if name in run.summary:
            yield name, f"{run.summary[name]:,}"


def _list_machine(tree: Facts) -> Iterator[tuple[str, str]]:
    machine = tree.get("environment")
    if machine:
        threads = format_count(machine["threads"], "threads")
        yield "machine", f"{machine['device']}, {machine['precision']}, torch {machine['torch']}, {threads}"


def format_size(model: Facts) -> str:
    """Format width, depth, heads and vocabulary.

    >>> format_size({"width": 8, "vocab": 99, "encoder": {"depth": 2, "blocks": [{"attention": {"heads": 4}}]}})
    'width 8, 2 layers, 4 heads, vocabulary 99'
    """
    parts = [f"width {model['width']:,}"] if model.get("width") else []
    stacks = [model[name] for name in ("encoder", "decoder") if model.get(name)]
    if stacks:
        depths = " + ".join(str(stack.get("depth", "?")) for stack in stacks)
        parts.append(f"{depths} layer{'s' * (depths != '1')}")
        heads = [(block.get("attention") or {}).get("heads") for stack in stacks for block in stack.get("blocks") or ()]
        parts += [format_count(heads[0], "heads")] if heads and heads[0] else []
    return ", ".join([*parts, f"vocabulary {model['vocab']:,}"] if model.get("vocab") else parts)


def format_objective(objective: Facts) -> str:
    """Format an objective with its numeric settings."""
    values = [f"{name} {value:g}" for name, value in objective.items() if type(value) in (int, float)]
    return ", ".join([str(objective["kind"]), *values])
