"""Model cards: of a pre-training run (training, samples, data, cost), and of a fine-tuned one with its plots."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from pretune.core import io
from pretune.core.config import get_kind
from pretune.core.log import format_count, format_markdown
from pretune.reports import facts
from pretune.reports.facts import Facts, Rows, build_score_table
from pretune.runs.config import PretrainConfig

if TYPE_CHECKING:
    from pretune.runs.finetune.config import FinetuneConfig

MAX_SAMPLES = 5
"""Maximum number of texts with samples."""


def build_pretraining_card(
    name: str,
    settings: PretrainConfig,
    data_card: Facts,
    fingerprint: str,
    summary: Facts,
    lines: Sequence[Facts] = (),
    plan: Facts | None = None,
) -> str:
    """Return the text of README.md.

    The card and the fingerprint are of the data, `lines` those of metrics.jsonl; the `plan` is that of a recipe.
    """
    languages = [name for name in (data_card.get("languages") or {}) if name.isalpha() and len(name) in (2, 3)]
    epochs = summary.get("epochs", {})
    sources = [(*row, f"{epochs[row[0]]:.3g}" if row[0] in epochs else "") for row in facts.list_sources(data_card)]
    texts = [
        f"- {_format_code(sample['text'])} ({escape_markdown(sample['source'])})"
        for sample in data_card.get("samples") or ()
    ]
    return _fill_template(
        "pretraining_card.md",
        name=escape_markdown(name),
        family=settings.model.family,
        objective=get_kind(settings.objective),
        languages=f"language: [{', '.join(languages[:20])}]\n" if languages else "",
        init=_describe_init(settings, plan),
        training=_format_pairs(facts.build_pretraining_rows(settings.to_dict(), summary)),
        choices="" if plan is None else _format_choices(plan),
        samples=_format_samples(lines),
        splits="\n".join(f"- {line}" for line in facts.describe_splits(data_card)),
        sources=format_markdown((*facts.SOURCE_HEADER, "epochs"), [[*map(escape_markdown, row)] for row in sources]),
        filters="\n".join(f"- {line}" for line in _list_filters(data_card)),
        fingerprint=fingerprint,
        texts="\n".join(["\nSamples of the training text:\n", *texts, ""] if texts else []),
        cost=_format_cost(summary["cost"]),
    )


def _describe_init(settings: PretrainConfig, plan: Facts | None) -> str:
    """Return the weights that a run started from; of a recipe, the model that it continued."""
    start, teacher = settings.train.init_from, getattr(settings.objective, "teacher", None)
    if teacher is not None:
        return f"as the student of `{escape_markdown(teacher)}`"
    if start is not None and plan is not None:
        start = next(choice["value"] for choice in plan["choices"] if choice["path"] == "model")
    return "from scratch" if start is None else f"from the weights of `{escape_markdown(start)}`"


def _format_choices(plan: Facts) -> str:
    """Return a table of the choices of a recipe, with their reasons."""
    from pretune.runs.recipes.plan import format_setting

    rows = [
        (f"`{choice['path']}`", escape_markdown(format_setting(choice["value"])), escape_markdown(choice["reason"]))
        for choice in plan["choices"]
    ]
    table, recipe = format_markdown(("setting", "value", "reason"), rows), plan["recipe"]
    source = "Settings of a short run" if recipe is None else f"Choices of the recipe `{escape_markdown(recipe)}`"
    return f"## {source}\n{table}\n\n"


def _format_samples(lines: Sequence[Facts]) -> str:
    """Return a table of samples at the first and last step; empty without samples."""
    rows = []
    for text, answers in [*facts.collect_samples(lines).items()][:MAX_SAMPLES]:
        for place, (step, answer) in enumerate([answers[0], answers[-1]] if len(answers) > 1 else answers):
            rows.append(("" if place else _format_code(text), f"{step:,}", _format_code(answer)))
    if not rows:
        return ""
    table = format_markdown(("text", "step", "masked words filled in, or continuation"), rows)
    return f"## Samples during training\n{facts.describe_sample_source(lines)}.\n\n{table}\n\n"


def _format_code(text: str) -> str:
    """Format text as inline code, so that it is not parsed as Markdown; bars and backticks are replaced."""
    clean = "".join("?" if letter in "|`" or not letter.isprintable() else letter for letter in text)
    return f"`{clean or ' '}`"


def _list_filters(data: Facts) -> Iterator[str]:
    """Yield the filters of the data with the documents they changed and dropped; duplicates."""
    for name, outcome in data.get("filters", {}).items():
        counts = [f"{format_count(outcome[verb], 'documents')} {verb}" for verb in ("changed", "dropped")]
        yield f"filter {escape_markdown(name)}: {', '.join(counts)}"
    for name, count in (data.get("dropped") or {}).items():
        if not count and name != "exact_duplicates":
            continue
        yield f"{name.replace('_', ' ')}: {format_count(count, 'documents')} dropped"


def _format_cost(cost: Facts) -> str:
    return _format_pairs(facts.build_cost_rows({**cost, "device": escape_markdown(cost["device"])}))


def _format_pairs(rows: Rows) -> str:
    """Return names and values as a table."""
    return format_markdown(("", ""), rows)


def _fill_template(file: str, **parts: str) -> str:
    return Template(Path(__file__).with_name(file).read_text(encoding="utf-8")).substitute(parts)


def escape_markdown(text: str) -> str:
    """Replace characters that Markdown would interpret."""
    return "".join(letter if letter.isprintable() and letter not in "|`<>[]" else "?" for letter in text)


def build_finetuning_card(name: str, tuning: "FinetuneConfig", scores: Facts, cost: Facts) -> str:
    """Return the text of README.md."""
    header, *rows = build_score_table(scores)
    return _fill_template(
        "finetuning_card.md",
        name=escape_markdown(name),
        kind=scores["kind"],
        method=get_kind(tuning.method),
        base=escape_markdown(tuning.base.path),
        task=escape_markdown(scores["task"]),
        scores=format_markdown(header, [[*map(escape_markdown, row)] for row in rows]),
        notes="\n".join(format_notes(scores)),
        training=_format_pairs(facts.build_finetuning_rows(tuning.to_dict(), scores)),
        cost=_format_cost(cost),
    )


def format_notes(scores: Facts) -> Iterator[str]:
    """Yield notes on the scores as a list."""
    notes = [escape_markdown(note) for note in scores["notes"]]
    return (f"- {line}" for line in facts.build_notes({**scores, "notes": notes}))


FORMATS = ("png", "svg")


def draw_plots(run_dir: Path, scores: Facts) -> None:
    """Draw the plots of a run; nothing for a single training set size without forgetting."""
    if scores["curve"]:
        _save_figure(run_dir / "curve", _plot_curve(scores))
    if scores["forgetting"]:
        _save_figure(run_dir / "forgetting", _plot_forgetting(scores["forgetting"]))


def _build_figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    return figure, figure.add_subplot()


def _plot_curve(scores: Facts) -> Any:
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


def _plot_forgetting(forgetting: Facts) -> Any:
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
