"""The model card of a fine-tuned run, and its scores as a table: what it learnt, beside what, and what it cost."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.core import config
from pretune.reports import facts
from pretune.reports.facts import HEADER
from pretune.reports.facts import score_rows as rows
from pretune.runs.finetune.config import Tuning
from pretune.runs.model_card import cost_rows, plain, table

__all__ = ["HEADER", "card", "rows", "told"]

Facts = Mapping[str, Any]


def card(name: str, tuning: Tuning, scores: Facts, cost: Facts) -> str:
    """The text of README.md."""
    method = config.kind(tuning.method)
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
            *table(facts.tuned(tuning.plain(), scores)),
            "",
            "## What it cost",
            *table(cost_rows(cost)),
            "",
            "The whole configuration is in `run.json`; `pretune finetune --config run.json --out DIR` repeats the run.",
            "",
        ]
    )


def told(scores: Facts) -> Iterator[str]:
    """What has to be said beside the numbers, as a list."""
    notes = [plain(note) for note in scores["notes"]]
    return (f"- {line}" for line in facts.told({**scores, "notes": notes}))
