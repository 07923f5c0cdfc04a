"""Model card of a fine-tuned run: scores, baselines, settings, cost."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.core import config
from pretune.reports import facts
from pretune.reports.facts import HEADER
from pretune.reports.facts import build_score_rows as rows
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.model_card import build_cost_rows, escape_markdown, format_table

__all__ = ["HEADER", "build_card", "rows", "format_notes"]

Facts = Mapping[str, Any]


def build_card(name: str, tuning: FinetuneConfig, scores: Facts, cost: Facts) -> str:
    """Return the text of README.md."""
    method = config.get_kind(tuning.method)
    return "\n".join(
        [
            *(
                "---",
                "library_name: pretune",
                f"tags: [{scores['kind']}, {method}]",
                "---",
                f"# {escape_markdown(name)}",
                "",
            ),
            f"`{escape_markdown(tuning.base.path)}` fine-tuned on `{escape_markdown(scores['task'])}` using "
            "[pretune](https://pypi.org/project/pretune/).",
            "",
            "## Scores",
            *("", "| | " + " | ".join(HEADER) + " |", "|---|" + "---|" * len(HEADER)),
            *("| " + " | ".join(map(escape_markdown, row)) + " |" for row in rows(scores)),
            *("", *(f"{note}" for note in format_notes(scores))),
            "",
            "## Training",
            *format_table(facts.build_finetuning_rows(tuning.to_dict(), scores)),
            "",
            "## Cost",
            *format_table(build_cost_rows(cost)),
            "",
            "All settings are in `run.json`; `pretune finetune --config run.json --out DIR` reproduces the run.",
            "",
        ]
    )


def format_notes(scores: Facts) -> Iterator[str]:
    """Yield notes on the scores as a list."""
    notes = [escape_markdown(note) for note in scores["notes"]]
    return (f"- {line}" for line in facts.build_notes({**scores, "notes": notes}))
