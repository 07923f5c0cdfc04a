"""Model cards: of a pre-training run (training, samples, data, cost), and of a fine-tuned one with its plots."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.core import config, io
from pretune.core.config import get_kind
from pretune.core.log import format_count
from pretune.reports import facts
from pretune.reports.facts import Rows, build_score_table
from pretune.runs.config import PretrainConfig

if TYPE_CHECKING:
    from pretune.runs.finetune.config import FinetuneConfig

Facts = Mapping[str, Any]

MAX_SAMPLES = 5
"""Maximum number of texts with samples."""


def build_pretraining_card(
    name: str,
    settings: PretrainConfig,
    data_card: Mapping[str, Any],
    fingerprint: str,
    summary: dict[str, Any],
    lines: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text of README.md. The card and the fingerprint are of the data, `lines` those of metrics.jsonl."""
    return "\n".join(
        [
            *_format_header(name, settings, data_card),
            *format_table(facts.build_pretraining_rows(settings.to_dict(), summary)),
            "",
            *_format_samples(lines),
            "## Data",
            *_format_data(data_card, fingerprint, summary.get("epochs", {})),
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
    languages = [
        language for language in (data.get("languages") or {}) if language.isalpha() and len(language) in (2, 3)
    ]
    if languages:
        yield f"language: [{', '.join(languages[:20])}]"
    yield from ("---", f"# {escape_markdown(name)}", "")
    init = "from scratch" if start is None else f"from the weights of `{escape_markdown(start)}`"
    teacher = getattr(settings.objective, "teacher", None)
    if teacher is not None:
        init = f"as the student of `{escape_markdown(teacher)}`"
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
    for name, count in (data.get("dropped") or {}).items():
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
    return "".join(letter if letter.isprintable() and letter not in "|`<>[]" else "?" for letter in text)


def build_finetuning_card(name: str, tuning: "FinetuneConfig", scores: Facts, cost: Facts) -> str:
    """Return the text of README.md."""
    method = config.get_kind(tuning.method)
    header, *rows = build_score_table(scores)
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
            "",
            f"| {' | '.join(header)} |",
            "|---" * len(header) + "|",
            *(f"| {' | '.join(map(escape_markdown, row))} |" for row in rows),
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


FORMATS = ("png", "svg")


def draw_plots(run_dir: Path, scores: Mapping[str, Any]) -> None:
    """Draw the plots of a run; nothing for a single training set size without forgetting."""
    if scores["curve"]:
        _save_figure(run_dir / "curve", _plot_curve(scores))
    if scores["forgetting"]:
        _save_figure(run_dir / "forgetting", _plot_forgetting(scores["forgetting"]))


def _build_figure(width: float = 6.0, height: float = 4.0) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _plot_curve(scores: Mapping[str, Any]) -> Any:
    """Plot the official metric by training set size, with the interval over seeds and the baselines."""
    figure, axes = _build_figure()
    points = scores["curve"]
    labels = [point["labels"] for point in points]
    axes.plot(labels, [point["score"] for point in points], marker="o", label="this model")
    if all(point["std"] is not None for point in points):
        axes.fill_between(labels, [point["low"] for point in points], [point["high"] for point in points], alpha=0.2)
    for name in points[0]["baselines"]:
        axes.plot(labels, [point["baselines"][name] for point in points], marker=".", linestyle="--", label=name)
    axes.set(xscale="log", xlabel="training examples", ylabel=f"{scores['metric']} ({points[0]['split']})")
    axes.legend()
    return figure


def _plot_forgetting(forgetting: Mapping[str, Any]) -> Any:
    """Plot the relative weight change of each part, with the losses in the title."""
    figure, axes = _build_figure()
    names = list(forgetting["by_part"])
    axes.barh(names, [forgetting["by_part"][name] for name in names])
    axes.invert_yaxis()
    initial_loss, final_loss = forgetting["before"]["loss"], forgetting["after"]["loss"]
    axes.set(
        xlabel="relative weight change", title=f"pre-training loss {initial_loss:.3f} before, {final_loss:.3f} after"
    )
    return figure


def _save_figure(path: Path, figure: Any) -> None:
    import io as memory

    for form in FORMATS:
        buffer = memory.BytesIO()
        about = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, metadata=about, dpi=120)
        io.atomic_write(path.with_suffix(f".{form}"), buffer.getvalue())
