"""Learning curves, scores by number of labels, and what a model said while it learnt."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pretune.reports import facts
from pretune.reports.charts import Series, line_chart
from pretune.reports.load import Ran
from pretune.reports.markup import NOTHING, Markup, element, joined, note

Facts = Mapping[str, Any]
T = TypeVar("T")
LINES = 8
"""Lines of one chart."""
SAMPLES = 10
"""Texts that are shown …"""
TIMES = 6
"""… each with what was said of it so many times at most."""


def learning(runs: Sequence[Ran]) -> Markup:
    """The loss on training and held-out text by step; scores on dev of fine-tuning."""
    charts = [
        line_chart(_losses([run for run in runs if not run.tuned]), x="step", y="loss of pre-training"),
        *(
            line_chart(
                _held([run for run in runs if not run.tuned], name), x="step", y=f"held-out {name.replace('_', ' ')}"
            )
            for name in ("accuracy", "masked_accuracy")
        ),
        line_chart(_losses([run for run in runs if run.tuned]), x="step", y="loss of fine-tuning"),
        *(line_chart(_dev(runs, metric), x="step", y=f"{metric} on dev") for metric in _metrics(runs)),
    ]
    found = [chart for chart in charts if chart.html]
    return element("div", *found, kind="charts") if found else NOTHING


def _losses(runs: Sequence[Ran]) -> list[Series]:
    found: list[Series] = []
    for place, run in enumerate(runs[:LINES]):
        name = f"{run.name}, " if len(runs) > 1 else ""
        points = tuple((line["step"], line["loss"]) for line in run.lines if _number(line.get("loss")))
        held = _points(run, "loss")
        style = "faint" if held else ""
        found += [
            Series(f"{name}training", points, colour=place, style=style),
            Series(f"{name}held-out", held, (), place),
        ]
    return found


def _held(runs: Sequence[Ran], name: str) -> list[Series]:
    return [Series(run.name, _points(run, name), colour=place) for place, run in enumerate(runs[:LINES])]


def _points(run: Ran, name: str) -> tuple[tuple[float, float], ...]:
    held = [(line["step"], line.get("held_out")) for line in run.lines]
    return tuple((step, one[name]) for step, one in held if isinstance(one, Mapping) and _number(one.get(name)))


def _metrics(runs: Sequence[Ran]) -> list[str]:
    return list(dict.fromkeys(str(run.scores["metric"]) for run in runs if run.scores))


def _dev(runs: Sequence[Ran], metric: str) -> list[Series]:
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
        for place, (name, trial) in enumerate(found[:LINES])
    ]
    return series if any(len(one.points) > 1 for one in series) else []  # judged once each: no curve


def by_labels(runs: Sequence[Ran]) -> list[Markup]:
    """A chart for each run that was trained on several numbers of labels."""
    found: list[Markup] = []
    for run in runs:
        if not run.scores or not run.scores["curve"]:
            continue
        points = run.scores["curve"]
        band = tuple((one["labels"], one["low"], one["high"]) for one in points if one["std"] is not None)
        series = [Series(run.name, tuple((one["labels"], one["score"]) for one in points), band)]
        names = list(dict.fromkeys(name for one in points for name in one["baselines"]))
        for place, name in enumerate(names[: LINES - 1], start=1):
            some = tuple((one["labels"], one["baselines"][name]) for one in points if name in one["baselines"])
            series.append(Series(name, some, colour=place, style="dashed"))
        found.append(line_chart(series, x="labels (logarithmic)", y=f"{run.scores['metric']} by labels", log=True))
    return found


def samples(runs: Sequence[Ran]) -> Markup:
    """Answers of models to a few texts, from the first steps to the last."""
    parts: list[Markup] = []
    told = [run for run in runs if not run.tuned]
    for run in told:
        found = facts.said(run.lines)
        if found and len(told) > 1:
            parts.append(element("h3", run.name))
        if found:
            parts.append(note(f"{facts.sample_source(run.lines)} as the model read it, and its answers: blanks filled "
                              "in (with the right word after a wrong one), or the text continued."))  # fmt: skip
        parts += [_sample(read, _spread(found[read], TIMES)) for read in _spread([*found], SAMPLES)]
    return joined(parts)


def _spread(found: Sequence[T], most: int) -> list[T]:
    """Some of them, the first and the last among them.

    >>> _spread("abcdefg", 3)
    ['a', 'd', 'g']
    """
    places = {round(i * (len(found) - 1) / max(most - 1, 1)) for i in range(most if found else 0)}
    return [found[place] for place in sorted(places)]


def _sample(read: str, said: Sequence[tuple[int, str]]) -> Markup:
    """A text, and below it what was said of it, step by step."""
    lines = [element("p", element("b", f"step {step:,}"), element("em", answer)) for step, answer in said]
    return element("div", element("p", read), *lines, kind="sample")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
