"""What was run: family, sizes, data and settings of each run, side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.counted import counted
from pretune.reports import facts
from pretune.reports.load import Ran
from pretune.reports.markup import Markup, joined, table

Facts = Mapping[str, Any]


def what_was_run(runs: Sequence[Ran]) -> Markup:
    """A table for pre-training and one for fine-tuning; a column for each run."""
    groups = [[run for run in runs if not run.tuned], [run for run in runs if run.tuned]]
    return joined(beside(group) for group in groups if group)


def beside(runs: Sequence[Ran]) -> Markup:
    """Properties by run; a property that no run has is left out."""
    found = [dict(properties(run)) for run in runs]
    names = list(dict.fromkeys(name for one in found for name in one))
    rows = [(name, *(one.get(name, "") for one in found)) for name in names]
    return table(("", *(run.name for run in runs)), rows, kind="pairs" if len(runs) == 1 else "")


def properties(run: Ran) -> Iterator[tuple[str, str]]:
    """What is known of a run by name."""
    if run.tuned:
        yield from _tuned(run)
    elif run.pretrained:
        yield from _pretrained(run)
    elif "embedding" in run.tree:
        yield from _vectors(run)
    if run.cost is None:
        yield "state", "not finished (no cost.json yet)"


def _pretrained(run: Ran) -> Iterator[tuple[str, str]]:
    tree = run.tree
    yield "made by", "pre-training" + (f" from {tree['train']['start']}" if tree["train"].get("start") else "")
    yield "family", str(tree["model"].get("family", ""))
    yield "size", size(tree["model"])
    yield "objective", settled(tree["objective"])
    yield "data", str(tree["data"].get("path", ""))
    if "parameters" in run.summary:
        yield from facts.learnt(tree, run.summary)
    else:
        yield "optimiser", facts.optimiser(tree["train"])
    yield from _machine(tree)


def _tuned(run: Ran) -> Iterator[tuple[str, str]]:
    tree, scores = run.tree, run.scores
    yield "made by", f"fine-tuning of {tree['base']['path']}"
    if scores is None:
        yield "method", str(tree["method"]["kind"])
        return
    yield "task", f"{run.learnt} ({scores['kind']})"
    yield from facts.tuned(tree, scores)
    yield "seeds", ", ".join(map(str, scores["result"]["seeds"]))


def _vectors(run: Ran) -> Iterator[tuple[str, str]]:
    yield "made by", "training of vectors by comparison"
    yield "loss", settled(run.tree["loss"])
    for name in ("steps", "tokens"):
        if name in run.summary:
            yield name, f"{run.summary[name]:,}"


def _machine(tree: Facts) -> Iterator[tuple[str, str]]:
    found = tree.get("found")
    if found:
        threads = counted(found["threads"], "threads")
        yield "machine", f"{found['device']}, {found['precision']}, torch {found['torch']}, {threads}"


def size(model: Facts) -> str:
    """Width, depth, heads and vocabulary.

    >>> size({"width": 8, "vocab": 99, "encoder": {"depth": 2, "blocks": [{"attention": {"heads": 4}}]}})
    '8 wide, 2 layers, 4 heads, vocabulary 99'
    """
    parts = [f"{model['width']:,} wide"] if model.get("width") else []
    stacks = [model[name] for name in ("encoder", "decoder") if model.get(name)]
    if stacks:
        depths = " + ".join(str(stack.get("depth", "?")) for stack in stacks)
        parts.append(f"{depths} layer{'s' * (depths != '1')}")
        heads = [(block.get("attention") or {}).get("heads") for stack in stacks for block in stack.get("blocks") or ()]
        parts += [counted(heads[0], "heads")] if heads and heads[0] else []
    return ", ".join([*parts, f"vocabulary {model['vocab']:,}"] if model.get("vocab") else parts)


def settled(objective: Facts) -> str:
    """An objective with those of its settings that are plain values."""
    plain = [f"{name} {value:g}" for name, value in objective.items() if type(value) in (int, float)]
    return ", ".join([str(objective["kind"]), *plain])
