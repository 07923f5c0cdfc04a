"""Model card (scores, baselines, settings, cost) and plots (learning curve, forgetting) of a fine-tuned run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pretune.core import config, io
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
