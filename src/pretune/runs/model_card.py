"""The model card of a run: what it is, what it read, how it learnt, what it cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.config import get_kind
from pretune.core.format import format_count
from pretune.reports import facts
from pretune.reports.facts import Rows
from pretune.runs.config import PretrainConfig
from pretune.runs.training_data import TrainingData

MAX_SAMPLES = 5
"""Texts of which it is told what the model makes of them."""


def build_card(
    name: str,
    settings: PretrainConfig,
    source: TrainingData,
    summary: dict[str, Any],
    lines: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The text of README.md; `lines` are those of metrics.jsonl."""
    return "\n".join(
        [
            *_format_header(name, settings, source.data.card),
            *format_table(facts.build_pretraining_rows(settings.to_dict(), summary)),
            "",
            *_format_samples(lines),
            "## What it read",
            *_format_data(source.data.card, source.data.fingerprint, summary.get("epochs", {})),
            "",
            "## What it cost",
            *format_table(build_cost_rows(summary["cost"])),
            "",
            "The whole configuration is in `run.json`; `pretune pretrain --config run.json --out DIR` repeats the run.",
            "",
        ]
    )


def _format_header(name: str, settings: PretrainConfig, data: Mapping[str, Any]) -> Iterator[str]:
    family, objective, start = settings.model.family, get_kind(settings.objective), settings.train.start
    yield from ("---", "library_name: pretune", f"tags: [{family}, {objective}]")
    languages = [one for one in data.get("languages", {}) if one.isalpha() and len(one) in (2, 3)]
    if languages:
        yield f"language: [{', '.join(languages[:20])}]"
    yield from ("---", f"# {escape_markdown(name)}", "")
    begun = "from scratch" if start is None else f"from the weights of `{escape_markdown(start)}`"
    made = "[pretune](https://pypi.org/project/pretune/)"
    yield f"A model of the family `{family}`, pre-trained {begun} with the objective `{objective}` by {made}."
    yield ""


def _format_samples(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What it made of a few texts, when they were first and last given to it."""
    found = facts.collect_samples(lines)
    if not found:
        return
    yield from (
        "## What it says",
        f"{facts.describe_sample_source(lines)}.",
        "",
        "| text | step | blanks filled in, or what follows |",
        "|---|---|---|",
    )
    for text, answers in [*found.items()][:MAX_SAMPLES]:
        for place, (step, answer) in enumerate([answers[0], answers[-1]] if len(answers) > 1 else answers):
            yield f"| {'' if place else _format_code(text)} | {step:,} | {_format_code(answer)} |"
    yield ""


def _format_code(text: str) -> str:
    """A text as code, so that nothing in it is taken for Markdown; a table needs its bars even there."""
    return "`" + ("".join("?" if one in "|`" or not one.isprintable() else one for one in text) or " ") + "`"


def _format_data(data: Mapping[str, Any], fingerprint: str, epochs: Mapping[str, float]) -> Iterator[str]:
    yield from (f"- {line}" for line in facts.describe_splits(data))
    yield from ("", "| source | licence | documents | tokens | epochs |", "|---|---|---|---|---|")
    for row in facts.list_sources(data):
        read = f"{epochs[row[0]]:.3g}" if row[0] in epochs else ""
        yield "| " + " | ".join(map(escape_markdown, (*row, read))) + " |"
    yield ""
    yield from (f"- {line}" for line in _format_filters(data))
    yield from ("", f"Fingerprint `{fingerprint}`; the data card beside the tokens says more.")
    if data.get("samples"):
        yield from ("", "Samples of the training text:", "")
        yield from (f"- {_format_code(one['text'])} ({escape_markdown(one['source'])})" for one in data["samples"])


def _format_filters(data: Mapping[str, Any]) -> Iterator[str]:
    """The filters of the data and the documents that they dropped; duplicates."""
    for name, outcome in data.get("filters", {}).items():
        changed, dropped = format_count(outcome["changed"], "documents"), format_count(outcome["dropped"], "documents")
        yield f"filter {escape_markdown(name)}: {changed} changed, {dropped} left out"
    for name, count in data.get("dropped", {}).items():
        if not count and name != "exact_duplicates":
            continue
        yield f"{name.replace('_', ' ')}: {format_count(count, 'documents')} left out"


def build_cost_rows(cost: Mapping[str, Any]) -> Rows:
    """What a run cost, by name."""
    return facts.build_cost_rows({**cost, "device": escape_markdown(cost["device"])})


def format_table(rows: Rows) -> list[str]:
    """Names and values in Markdown."""
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def escape_markdown(text: str) -> str:
    """Text that is nothing but text in Markdown's tables and code."""
    return "".join(letter if letter.isprintable() and letter not in "|`<>" else "?" for letter in text)
