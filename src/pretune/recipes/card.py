"""The model card of a run: what it is, what it read, how it learnt, what it cost."""

from typing import Any

from pretune.core.config import kind
from pretune.recipes.reading import Source
from pretune.recipes.settings import Settings


def card(name: str, settings: Settings, source: Source, summary: dict[str, Any]) -> str:
    """The text of README.md."""
    data, train = source.data.card, settings.train
    held = summary.get("held_out") or {}
    rows = [
        ("parameters", f"{summary['parameters']:,}"),
        ("objective", kind(settings.objective)),
        ("steps", f"{summary['steps']:,}"),
        ("tokens read", f"{summary['tokens']:,}"),
        ("tokens per step", f"{train.batch_tokens:,}"),
        ("optimiser", f"{kind(train.optimizer)}, peak rate {train.lr:g}, {kind(train.schedule)} schedule"),
        ("sequence length", f"{settings.data.max_length:,}"),
        *((f"held-out {term}", f"{value:.4g}") for term, value in held.items()),
        ("skipped steps", f"{summary['skipped']:,}"),
        ("seed", str(train.seed)),
    ]
    cost = [(term.replace("_", " "), _shown(value)) for term, value in summary["cost"].items()]
    sources = [f"- {one.get('name', '?')}" for one in data.get("sources", []) if isinstance(one, dict)]
    return "\n".join(
        [
            "---",
            "library_name: pretune",
            f"tags: [{settings.model.family}, {kind(settings.objective)}]",
            "---",
            f"# {name}",
            "",
            f"A model of the family `{settings.model.family}`, pre-trained from "
            f"{'weights' if summary.get('start') else 'scratch'} with [pretune](https://pypi.org/project/pretune/).",
            "",
            *_table(rows),
            "",
            "## What it read",
            f"{data['splits']['train']['tokens']:,} tokens in {data['splits']['train']['documents']:,} documents "
            f"(fingerprint `{source.data.fingerprint[:16]}`).",
            *sources,
            "",
            "## What it cost",
            *_table(cost),
            "",
            "The whole configuration is in `run.json`; `pretune pretrain --config run.json --out DIR` repeats the run.",
            "",
        ]
    )


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
