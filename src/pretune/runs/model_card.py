"""Model card of a pre-training run: training, samples, data, cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.config import get_kind
from pretune.core.format import format_count
from pretune.reports import facts
from pretune.reports.facts import Rows
from pretune.runs.config import PretrainConfig
from pretune.runs.training_data import TrainingData

MAX_SAMPLES = 5
"""Maximum number of texts with samples."""


def build_card(
    name: str,
    settings: PretrainConfig,
    source: TrainingData,
    summary: dict[str, Any],
    lines: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text of README.md; `lines` are those of metrics.jsonl."""
    return "\n".join(
        [
            *_format_header(name, settings, source.data.card),
            *format_table(facts.build_pretraining_rows(settings.to_dict(), summary)),
            "",
            *_format_samples(lines),
            "## Data",
            *_format_data(source.data.card, source.data.fingerprint, summary.get("epochs", {})),
            "",
            "## Cost",
            *format_table(build_cost_rows(summary["cost"])),
            "",
            "All settings are in `run.json`; `pretune pretrain --config run.json --out DIR` reproduces the run.",
            "",
        ]
    )


def _format_header(name: str, settings: PretrainConfig, data: Mapping[str, Any]) -> Iterator[str]:
    family, objective, start = settings.model.family, get_kind(settings.objective), settings.train.init_from
    yield from ("---", "library_name: pretune", f"tags: [{family}, {objective}]")
    languages = [language for language in data.get("languages", {}) if language.isalpha() and len(language) in (2, 3)]
    if languages:
        yield f"language: [{', '.join(languages[:20])}]"
    yield from ("---", f"# {escape_markdown(name)}", "")
    init = "from scratch" if start is None else f"from the weights of `{escape_markdown(start)}`"
    library = "[pretune](https://pypi.org/project/pretune/)"
    yield f"A `{family}` model, pre-trained {init} with the objective `{objective}` using {library}."
    yield ""


def _format_samples(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of samples at the first and last step."""
    samples = facts.collect_samples(lines)
    if not samples:
        return
    yield from (
        "## Samples during training",
        f"{facts.describe_sample_source(lines)}.",
        "",
        "| text | step | masked words filled in, or continuation |",
        "|---|---|---|",
    )
    for text, answers in [*samples.items()][:MAX_SAMPLES]:
        for place, (step, answer) in enumerate([answers[0], answers[-1]] if len(answers) > 1 else answers):
            yield f"| {'' if place else _format_code(text)} | {step:,} | {_format_code(answer)} |"
    yield ""


def _format_code(text: str) -> str:
    """Format text as inline code, so that it is not parsed as Markdown; bars and backticks are replaced."""
    clean = "".join("?" if letter in "|`" or not letter.isprintable() else letter for letter in text)
    return f"`{clean or ' '}`"


def _format_data(data: Mapping[str, Any], fingerprint: str, epochs: Mapping[str, float]) -> Iterator[str]:
    yield from (f"- {line}" for line in facts.describe_splits(data))
    yield from ("", "| source | licence | documents | tokens | epochs |", "|---|---|---|---|---|")
    for row in facts.list_sources(data):
        read = f"{epochs[row[0]]:.3g}" if row[0] in epochs else ""
        yield "| " + " | ".join(map(escape_markdown, (*row, read))) + " |"
    yield ""
    yield from (f"- {line}" for line in _format_filters(data))
    yield from ("", f"Fingerprint `{fingerprint}`; see the data card for details.")
    if data.get("samples"):
        yield from ("", "Samples of the training text:", "")
        yield from (
            f"- {_format_code(sample['text'])} ({escape_markdown(sample['source'])})" for sample in data["samples"]
        )


def _format_filters(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the filters of the data with the documents they changed and dropped; duplicates."""
    for name, outcome in data.get("filters", {}).items():
        counts = [f"{format_count(outcome[verb], 'documents')} {verb}" for verb in ("changed", "dropped")]
        yield f"filter {escape_markdown(name)}: {', '.join(counts)}"
    for name, count in data.get("dropped", {}).items():
        if not count and name != "exact_duplicates":
            continue
        yield f"{name.replace('_', ' ')}: {format_count(count, 'documents')} dropped"


def build_cost_rows(cost: Mapping[str, Any]) -> Rows:
    """Return rows on cost."""
    return facts.build_cost_rows({**cost, "device": escape_markdown(cost["device"])})


def format_table(rows: Rows) -> list[str]:
    """Format names and values as a Markdown table."""
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def escape_markdown(text: str) -> str:
    """Replace characters that Markdown would interpret."""
    return "".join(letter if letter.isprintable() and letter not in "|`<>" else "?" for letter in text)
