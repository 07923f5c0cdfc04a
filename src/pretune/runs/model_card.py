"""The model card of a run: what it is, what it read, how it learnt, what it cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.config import kind
from pretune.core.counted import counted
from pretune.reports import facts
from pretune.reports.facts import Rows
from pretune.runs.config import Settings
from pretune.runs.training_data import Source

SAID = 5
"""Texts of which it is told what the model makes of them."""


def card(
    name: str, settings: Settings, source: Source, summary: dict[str, Any], lines: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The text of README.md; `lines` are those of metrics.jsonl."""
    return "\n".join(
        [
            *_head(name, settings, source.data.card),
            *table(facts.learnt(settings.plain(), summary)),
            "",
            *_said(lines),
            "## What it read",
            *_read(source.data.card, source.data.fingerprint, summary.get("epochs", {})),
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


def _said(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What it made of a few texts, when they were first and last given to it."""
    found = facts.said(lines)
    if not found:
        return
    yield from (
        "## What it says",
        f"{facts.sample_source(lines)}.",
        "",
        "| text | step | blanks filled in, or what follows |",
        "|---|---|---|",
    )
    for text, answers in [*found.items()][:SAID]:
        for place, (step, answer) in enumerate([answers[0], answers[-1]] if len(answers) > 1 else answers):
            yield f"| {'' if place else _shown(text)} | {step:,} | {_shown(answer)} |"
    yield ""


def _shown(text: str) -> str:
    """A text as code, so that nothing in it is taken for Markdown; a table needs its bars even there."""
    return "`" + ("".join("?" if one in "|`" or not one.isprintable() else one for one in text) or " ") + "`"


def _read(data: Mapping[str, Any], fingerprint: str, epochs: Mapping[str, float]) -> Iterator[str]:
    yield from (f"- {line}" for line in facts.splits(data))
    yield from ("", "| source | licence | documents | tokens | epochs |", "|---|---|---|---|---|")
    for row in facts.sources(data):
        read = f"{epochs[row[0]]:.3g}" if row[0] in epochs else ""
        yield "| " + " | ".join(map(plain, (*row, read))) + " |"
    yield ""
    yield from (f"- {line}" for line in _left_out(data))
    yield from ("", f"Fingerprint `{fingerprint}`; the data card beside the tokens says more.")
    if data.get("samples"):
        yield from ("", "Samples of the training text:", "")
        yield from (f"- {_shown(one['text'])} ({plain(one['source'])})" for one in data["samples"])


def _left_out(data: Mapping[str, Any]) -> Iterator[str]:
    """The filters of the data and the documents that they dropped; duplicates."""
    for name, outcome in data.get("filters", {}).items():
        changed, dropped = counted(outcome["changed"], "documents"), counted(outcome["dropped"], "documents")
        yield f"filter {plain(name)}: {changed} changed, {dropped} left out"
    for name, count in data.get("dropped", {}).items():
        if not count and name != "exact_duplicates":
            continue
        yield f"{name.replace('_', ' ')}: {counted(count, 'documents')} left out"


def cost_rows(cost: Mapping[str, Any]) -> Rows:
    """What a run cost, by name."""
    return facts.cost_rows({**cost, "device": plain(cost["device"])})


def table(rows: Rows) -> list[str]:
    """Names and values in Markdown."""
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def plain(text: str) -> str:
    """Text that is nothing but text in Markdown's tables and code."""
    return "".join(letter if letter.isprintable() and letter not in "|`<>" else "?" for letter in text)
