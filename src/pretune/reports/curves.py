"""Sections of a report: learning curves, scores by training set size, samples during training."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pretune.reports import facts
from pretune.reports.charts import Series, draw_line_chart
from pretune.reports.load import RunRecord
from pretune.reports.markup import NO_MARKUP, Markup, element, join, note

Facts = Mapping[str, Any]
T = TypeVar("T")
MAX_LINES = 8
"""Maximum number of lines per chart."""
MAX_SAMPLES = 10
"""Maximum number of texts shown."""
MAX_SAMPLE_STEPS = 6
"""Maximum number of steps shown per text."""


def render_learning_curves(runs: Sequence[RunRecord]) -> Markup:
    """Draw training and validation loss by step, and validation scores of fine-tuning."""
    charts = [
        draw_line_chart(
            _build_loss_series([run for run in runs if not run.is_finetuned]), x="step", y="pre-training loss"
        ),
        *(
            draw_line_chart(
                _build_validation_series([run for run in runs if not run.is_finetuned], name),
                x="step",
                y=f"validation {name.replace('_', ' ')}",
            )
            for name in ("accuracy", "masked_accuracy")
        ),
        draw_line_chart(_build_loss_series([run for run in runs if run.is_finetuned]), x="step", y="fine-tuning loss"),
        *(
            draw_line_chart(_build_dev_series(runs, metric), x="step", y=f"{metric} on dev")
            for metric in _list_metrics(runs)
        ),
    ]
    non_empty = [chart for chart in charts if chart.html]
    return element("div", *non_empty, kind="charts") if non_empty else NO_MARKUP


def _build_loss_series(runs: Sequence[RunRecord]) -> list[Series]:
    series: list[Series] = []
    for place, run in enumerate(runs[:MAX_LINES]):
        name = f"{run.name}, " if len(runs) > 1 else ""
        points = tuple((line["step"], line["loss"]) for line in run.metrics if _is_number(line.get("loss")))
        validation = _collect_validation_points(run, "loss")
        style = "faint" if validation else ""
        series += [
            Series(f"{name}training", points, colour=place, style=style),
            Series(f"{name}validation", validation, (), place),
        ]
    return series


def _build_validation_series(runs: Sequence[RunRecord], name: str) -> list[Series]:
    return [
        Series(run.name, _collect_validation_points(run, name), colour=place)
        for place, run in enumerate(runs[:MAX_LINES])
    ]


def _collect_validation_points(run: RunRecord, name: str) -> tuple[tuple[float, float], ...]:
    records = [(line["step"], line.get("held_out")) for line in run.metrics]
    return tuple(
        (step, values[name]) for step, values in records if isinstance(values, Mapping) and _is_number(values.get(name))
    )


def _list_metrics(runs: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(str(run.scores["metric"]) for run in runs if run.scores))


def _build_dev_series(runs: Sequence[RunRecord], metric: str) -> list[Series]:
    """Return a line per run, of the trial whose model was saved; for a single run a line per seed."""
    scored_runs = [run for run in runs if run.scores and run.scores["metric"] == metric]
    trials: list[tuple[str, Facts]] = []
    for run in scored_runs:
        assert run.scores is not None
        model = run.scores["model"]
        same = [
            trial
            for trial in run.scores.get("trials", ())
            if (trial["lr"], trial["labels"]) == (model["lr"], model["labels"])
        ]
        selection = same if len(scored_runs) == 1 else [trial for trial in same if trial["seed"] == model["seed"]]
        trials += [(f"seed {trial['seed']}" if len(scored_runs) == 1 else run.name, trial) for trial in selection]
    series = [
        Series(name, tuple((point["step"], point["dev"]) for point in trial["course"]), colour=place)
        for place, (name, trial) in enumerate(trials[:MAX_LINES])
    ]
    return series if any(len(line.points) > 1 for line in series) else []  # a single evaluation is no curve


def draw_label_curves(runs: Sequence[RunRecord]) -> list[Markup]:
    """Draw a chart for each run with several training set sizes."""
    charts: list[Markup] = []
    for run in runs:
        if not run.scores or not run.scores["curve"]:
            continue
        points = run.scores["curve"]
        band = tuple((point["labels"], point["low"], point["high"]) for point in points if point["std"] is not None)
        series = [Series(run.name, tuple((point["labels"], point["score"]) for point in points), band)]
        names = list(dict.fromkeys(name for point in points for name in point["baselines"]))
        for place, name in enumerate(names[: MAX_LINES - 1], start=1):
            baseline_points = tuple(
                (point["labels"], point["baselines"][name]) for point in points if name in point["baselines"]
            )
            series.append(Series(name, baseline_points, colour=place, style="dashed"))
        charts.append(
            draw_line_chart(
                series,
                x="training examples (logarithmic)",
                y=f"{run.scores['metric']} by training examples",
                log_x=True,
            )
        )
    return charts


def render_samples(runs: Sequence[RunRecord]) -> Markup:
    """Render the model's answers to some texts during training."""
    parts: list[Markup] = []
    pretrained_runs = [run for run in runs if not run.is_finetuned]
    for run in pretrained_runs:
        samples = facts.collect_samples(run.metrics)
        if samples and len(pretrained_runs) > 1:
            parts.append(element("h3", run.name))
        if samples:
            source = facts.describe_sample_source(run.metrics)
            parts.append(
                note(
                    f"{source} and the model's output: masked words filled in (the correct word follows a wrong one), "
                    "or the text continued."
                )
            )
        parts += [
            _render_sample(read, _pick_evenly(samples[read], MAX_SAMPLE_STEPS))
            for read in _pick_evenly([*samples], MAX_SAMPLES)
        ]
    return join(parts)


def _pick_evenly(items: Sequence[T], count: int) -> list[T]:
    """Return `count` items at equal distances, including the first and the last.

    >>> _pick_evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    places = {round(i * (len(items) - 1) / max(count - 1, 1)) for i in range(count if items else 0)}
    return [items[place] for place in sorted(places)]


def _render_sample(text: str, answers: Sequence[tuple[int, str]]) -> Markup:
    """Render a text with the model's answers by step."""
    lines = [element("p", element("b", f"step {step:,}"), element("em", answer)) for step, answer in answers]
    return element("div", element("p", text), *lines, kind="sample")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
