"""The model card of a run: what it is, what it read, how it learnt, what it cost."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.core.config import kind
from pretune.evaluate.report import facts
from pretune.evaluate.report.facts import Rows
from pretune.recipes.reading import Source
from pretune.recipes.settings import Settings


def card(name: str, settings: Settings, source: Source, summary: dict[str, Any]) -> str:
    """The text of README.md."""
    return "\n".join(
        [
            *_head(name, settings, source.data.card),
            *table(facts.learnt(settings.plain(), summary)),
            "",
            "## What it read",
            *_read(source.data.card, source.data.fingerprint),
            "",
            "## What it cost",
            *table(cost_rows(summary["cost"])),
            "",
            "The whole configuration is in `run.json`; `pretune pretrain --config run.json --out DIR` repeats the run.",
            "",
        ]
    )


def _head(name: str, settings: Settings, data: Mapping[str, Any]) -> Iterator[str]:
    family, objective, start = settings.model.family, kind(settings.objective), settings.train.start
    yield from ("---", "library_name: pretune", f"tags: [{family}, {objective}]")
    languages = [one for one in data.get("languages", {}) if one.isalpha() and len(one) in (2, 3)]
    if languages:
        yield f"language: [{', '.join(languages[:20])}]"
    yield from ("---", f"# {plain(name)}", "")
    begun = "from scratch" if start is None else f"from the weights of `{plain(start)}`"
    made = "[pretune](https://pypi.org/project/pretune/)"
    yield f"A model of the family `{family}`, pre-trained {begun} with the objective `{objective}` by {made}."
    yield ""


def _read(data: Mapping[str, Any], fingerprint: str) -> Iterator[str]:
    yield from (f"- {line}" for line in facts.splits(data))
    yield from ("", "| source | licence | documents | tokens |", "|---|---|---|---|")
    yield from ("| " + " | ".join(map(plain, row)) + " |" for row in facts.sources(data))
    yield from ("", f"Fingerprint `{fingerprint}`; the data card beside the tokens says more.")


def cost_rows(cost: Mapping[str, Any]) -> Rows:
    """What a run cost, by name."""
    return facts.cost_rows({**cost, "device": plain(cost["device"])})


def table(rows: Rows) -> list[str]:
    """Names and values in Markdown."""
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def plain(text: str) -> str:
    """Text that is nothing but text in Markdown's tables and code."""
    return "".join(letter if letter.isprintable() and letter not in "|`<>" else "?" for letter in text)
