"""The model card of a fine-tuned run, and its scores as a table: what it learnt, beside what, and what it cost."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.core import config
from pretune.recipes.card import cost_rows, plain, table
from pretune.recipes.finetune.settings import Tuning

Facts = Mapping[str, Any]


def card(name: str, tuning: Tuning, scores: Facts, cost: Facts) -> str:
    """The text of README.md."""
    model, counts = scores["model"], scores["counts"]
    method = config.kind(tuning.method)
    learnt = [
        ("method", f"{method}, {model['trained']:,} of {model['parameters']:,} parameters trained "
                   f"({model['trained'] / model['parameters']:.2%})"),
        ("learning rate", f"{model['lr']:g}"),
        ("steps", f"{model['steps']:,} of {tuning.train.batch} examples; weights of step {model['best_step']:,}"),
        ("examples", ", ".join(f"{split} {count:,}" for split, count in scores["examples"].items() if count)),
        ("longest", f"{counts['longest']} tokens; {counts['cut']:,} of {counts['examples']:,} examples were cut"),
    ]  # fmt: skip
    return "\n".join(
        [
            *("---", "library_name: pretune", f"tags: [{scores['kind']}, {method}]", "---", f"# {plain(name)}", ""),
            f"`{plain(tuning.base.path)}` fine-tuned on `{plain(scores['task'])}` by "
            "[pretune](https://pypi.org/project/pretune/).",
            "",
            "## Scores",
            *("", "| | " + " | ".join(HEADER) + " |", "|---|" + "---|" * len(HEADER)),
            *("| " + " | ".join(map(plain, row)) + " |" for row in rows(scores)),
            *("", *(f"{note}" for note in told(scores))),
            "",
            "## How",
            *table(learnt),
            "",
            "## What it cost",
            *table(cost_rows(cost)),
            "",
            "The whole configuration is in `run.json`; `pretune finetune --config run.json --out DIR` repeats the run.",
            "",
        ]
    )


HEADER = ("score", "interval", "better by", "p")


def rows(scores: Facts) -> Iterator[tuple[str, ...]]:
    """The result and the baselines, one row each."""
    found, name = scores["result"], scores["metric"]
    spread = "" if found["std"] is None else f"{found['low']:.4f} to {found['high']:.4f} ({len(found['each'])} seeds)"
    yield f"this run ({name}, {found['split']})", f"{found['score']:.4f}", spread, "", ""
    for one in scores["baselines"]:
        gap = one["against"]
        better = f"{gap['difference']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})"
        yield one["name"], f"{one['score']:.4f}", "", better, f"{gap['p']:.3g}"


def told(scores: Facts) -> Iterator[str]:
    """What has to be said beside the numbers."""
    yield from (f"- {note}" for note in map(plain, scores["notes"]))
    if scores["not_run"]:
        absent: dict[str, list[str]] = {}
        for name, why in scores["not_run"].items():
            absent.setdefault(why, []).append(name)
        yield "- not run: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in absent.items())
    if scores["forgetting"]:
        found = scores["forgetting"]
        yield (
            f"- the pre-training loss went from {found['before']['loss']:.4f} to {found['after']['loss']:.4f}; weights "
            f"moved by {found['distance']:.2%} of their length"
        )
