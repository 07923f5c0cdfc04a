"""Learning curves, scores by number of labels, and what a model said while it learnt."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pretune.reports import facts
from pretune.reports.charts import Series, draw_line_chart
from pretune.reports.load import RunRecord
from pretune.reports.markup import NO_MARKUP, Markup, element, join, note

Facts = Mapping[str, Any]
T = TypeVar("T")
MAX_LINES = 8
"""Lines of one chart."""
MAX_SAMPLES = 10
"""Texts that are shown …"""
MAX_SAMPLE_STEPS = 6
"""… each with what was said of it so many times at most."""


def render_learning_curves(runs: Sequence[RunRecord]) -> Markup:
    """The loss on training and held-out text by step; scores on dev of fine-tuning."""
    charts = [
        draw_line_chart(
            _build_loss_series([run for run in runs if not run.is_finetuned]), x="step", y="loss of pre-training"
        ),
        *(
            draw_line_chart(
                _build_validation_series([run for run in runs if not run.is_finetuned], name),
                x="step",
                y=f"held-out {name.replace('_', ' ')}",
            )
            for name in ("accuracy", "masked_accuracy")
        ),
        draw_line_chart(
            _build_loss_series([run for run in runs if run.is_finetuned]), x="step", y="loss of fine-tuning"
        ),
        *(
            draw_line_chart(_build_dev_series(runs, metric), x="step", y=f"{metric} on dev")
            for metric in _list_metrics(runs)
        ),
    ]
    found = [chart for chart in charts if chart.html]
    return element("div", *found, kind="charts") if found else NO_MARKUP


def _build_loss_series(runs: Sequence[RunRecord]) -> list[Series]:
    found: list[Series] = []
    for place, run in enumerate(runs[:MAX_LINES]):
        name = f"{run.name}, " if len(runs) > 1 else ""
        points = tuple((line["step"], line["loss"]) for line in run.metrics if _is_number(line.get("loss")))
        held = _collect_validation_points(run, "loss")
        style = "faint" if held else ""
        found += [
            Series(f"{name}training", points, colour=place, style=style),
            Series(f"{name}held-out", held, (), place),
        ]
    return found


def _build_validation_series(runs: Sequence[RunRecord], name: str) -> list[Series]:
    return [
        Series(run.name, _collect_validation_points(run, name), colour=place)
        for place, run in enumerate(runs[:MAX_LINES])
    ]


def _collect_validation_points(run: RunRecord, name: str) -> tuple[tuple[float, float], ...]:
    held = [(line["step"], line.get("held_out")) for line in run.metrics]
    return tuple((step, one[name]) for step, one in held if isinstance(one, Mapping) and _is_number(one.get(name)))


def _list_metrics(runs: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(str(run.scores["metric"]) for run in runs if run.scores))


def _build_dev_series(runs: Sequence[RunRecord], metric: str) -> list[Series]:
    """A line for each run, that of the trial whose model is kept; of a single run one for each seed."""
    chosen = [run for run in runs if run.scores and run.scores["metric"] == metric]
    found: list[tuple[str, Facts]] = []
    for run in chosen:
        assert run.scores is not None
        model = run.scores["model"]
        same = [
            one for one in run.scores.get("trials", ()) if (one["lr"], one["labels"]) == (model["lr"], model["labels"])
        ]
        kept = same if len(chosen) == 1 else [one for one in same if one["seed"] == model["seed"]]
        found += [(f"seed {one['seed']}" if len(chosen) == 1 else run.name, one) for one in kept]
    series = [
        Series(name, tuple((point["step"], point["dev"]) for point in trial["course"]), colour=place)
        for place, (name, trial) in enumerate(found[:MAX_LINES])
    ]
    return series if any(len(one.points) > 1 for one in series) else []  # judged once each: no curve


def draw_label_curves(runs: Sequence[RunRecord]) -> list[Markup]:
    """A chart for each run that was trained on several numbers of labels."""
    found: list[Markup] = []
    for run in runs:
        if not run.scores or not run.scores["curve"]:
            continue
        points = run.scores["curve"]
        band = tuple((one["labels"], one["low"], one["high"]) for one in points if one["std"] is not None)
        series = [Series(run.name, tuple((one["labels"], one["score"]) for one in points), band)]
        names = list(dict.fromkeys(name for one in points for name in one["baselines"]))
        for place, name in enumerate(names[: MAX_LINES - 1], start=1):
            some = tuple((one["labels"], one["baselines"][name]) for one in points if name in one["baselines"])
            series.append(Series(name, some, colour=place, style="dashed"))
        found.append(
            draw_line_chart(series, x="labels (logarithmic)", y=f"{run.scores['metric']} by labels", log_x=True)
        )
    return found


def render_samples(runs: Sequence[RunRecord]) -> Markup:
    """Answers of models to a few texts, from the first steps to the last."""
    parts: list[Markup] = []
    told = [run for run in runs if not run.is_finetuned]
    for run in told:
        found = facts.collect_samples(run.metrics)
        if found and len(told) > 1:
            parts.append(element("h3", run.name))
        if found:
            parts.append(note(f"{facts.describe_sample_source(run.metrics)} as the model read it, and its answers: blanks filled "
                              "in (with the right word after a wrong one), or the text continued."))  # fmt: skip
        parts += [
            _render_sample(read, _pick_evenly(found[read], MAX_SAMPLE_STEPS))
            for read in _pick_evenly([*found], MAX_SAMPLES)
        ]
    return join(parts)


def _pick_evenly(items: Sequence[T], count: int) -> list[T]:
    """Some of them, the first and the last among them.

    >>> _pick_evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    places = {round(i * (len(items) - 1) / max(count - 1, 1)) for i in range(count if items else 0)}
    return [items[place] for place in sorted(places)]


def _render_sample(text: str, answers: Sequence[tuple[int, str]]) -> Markup:
    """A text, and below it what was said of it, step by step."""
    lines = [element("p", element("b", f"step {step:,}"), element("em", answer)) for step, answer in answers]
    return element("div", element("p", text), *lines, kind="sample")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
