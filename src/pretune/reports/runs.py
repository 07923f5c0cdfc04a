"""Sections of a report on runs: settings, learning curves, scores by training set size, samples during training."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from pretune.core.log import format_count
from pretune.reports import Markup, element, facts, join, note, place_figures, table
from pretune.reports.charts import Series, draw_line_chart, draw_size_chart
from pretune.reports.facts import Facts
from pretune.reports.load import RunRecord
from pretune.training.records import PretrainSummary

T = TypeVar("T")
MAX_LINES = 8
"""Maximum number of lines per chart."""
MAX_SAMPLES = 10
"""Maximum number of texts shown."""
MAX_SAMPLE_STEPS = 6
"""Maximum number of steps shown per text."""


def render_runs(runs: Sequence[RunRecord]) -> Markup:
    """Render a table for pre-training and one for fine-tuning, with a column per run."""
    groups = [[run for run in runs if not run.is_finetuned], [run for run in runs if run.is_finetuned]]
    return join(render_side_by_side(group) for group in groups if group)


def render_side_by_side(runs: Sequence[RunRecord]) -> Markup:
    """Render properties by run; properties that no run has are dropped."""
    properties = [dict(list_properties(run)) for run in runs]
    names = list(dict.fromkeys(name for run_properties in properties for name in run_properties))
    rows = [(name, *(run_properties.get(name, "") for run_properties in properties)) for name in names]
    return table(("", *(run.name for run in runs)), rows, kind="pairs" if len(runs) == 1 else "")


def list_properties(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the known properties of a run."""
    if run.is_finetuned:
        yield from _list_finetuning(run)
    elif run.is_pretrained:
        yield from _list_pretraining(run)
    elif "embedding" in run.config:
        yield from _list_embedding(run)
    if run.cost is None:
        yield "state", "unfinished (no cost.json)"


def _list_pretraining(run: RunRecord) -> Iterator[tuple[str, str]]:
    tree = run.config
    yield "stage", "pre-training" + (f" from {tree['train']['init_from']}" if tree["train"].get("init_from") else "")
    yield "family", str(tree["model"].get("family", ""))
    yield "size", format_size(tree["model"])
    yield "objective", format_objective(tree["objective"])
    yield "data", str(tree["data"].get("path", ""))
    if run.summary.keys() >= PretrainSummary.__required_keys__:
        yield from facts.build_pretraining_rows(tree, run.summary)
    else:
        yield "optimizer", facts.format_optimizer(tree["train"])
    yield from _list_machine(tree)


def _list_finetuning(run: RunRecord) -> Iterator[tuple[str, str]]:
    tree, scores = run.config, run.scores
    yield "stage", f"fine-tuning of {tree['base']['path']}"
    if scores is None:
        yield "method", str(tree["method"]["kind"])
        return
    yield "task", f"{run.train_task} ({scores['kind']})"
    yield from facts.build_finetuning_rows(tree, scores)
    yield "seeds", ", ".join(map(str, scores["result"]["seeds"]))


def _list_embedding(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "stage", "contrastive training of embeddings"
    yield "loss", format_objective(run.config["loss"])
    for name in ("steps", "tokens"):
        if name in run.summary:
            yield name, f"{run.summary[name]:,}"


def _list_machine(tree: Facts) -> Iterator[tuple[str, str]]:
    machine = tree.get("environment")
    if machine:
        threads = format_count(machine["threads"], "threads")
        yield "machine", f"{machine['device']}, {machine['precision']}, torch {machine['torch']}, {threads}"


def format_size(model: Facts) -> str:
    """Format width, depth, heads and vocabulary.

    >>> format_size({"width": 8, "vocab": 99, "encoder": {"depth": 2, "blocks": [{"attention": {"heads": 4}}]}})
    'width 8, 2 layers, 4 heads, vocabulary 99'
    """
    parts = [f"width {model['width']:,}"] if model.get("width") else []
    stacks = [model[name] for name in ("encoder", "decoder") if model.get(name)]
    if stacks:
        depths = " + ".join(str(stack.get("depth", "?")) for stack in stacks)
        parts.append(f"{depths} layer{'s' * (depths != '1')}")
        heads = [(block.get("attention") or {}).get("heads") for stack in stacks for block in stack.get("blocks") or ()]
        parts += [format_count(heads[0], "heads")] if heads and heads[0] else []
    return ", ".join([*parts, f"vocabulary {model['vocab']:,}"] if model.get("vocab") else parts)


def format_objective(objective: Facts) -> str:
    """Format an objective with its numeric settings."""
    values = [f"{name} {value:g}" for name, value in objective.items() if type(value) in (int, float)]
    return ", ".join([str(objective["kind"]), *values])


def render_learning_curves(runs: Sequence[RunRecord]) -> Markup:
    """Draw training and validation loss by step, and validation scores of fine-tuning."""
    curves = build_learning_curves(runs)
    return place_figures(draw_line_chart(series, x="step", y=name) for name, series in curves.items())


def build_learning_curves(runs: Sequence[RunRecord]) -> dict[str, list[Series]]:
    """Return the lines of each chart by its title; some have no points."""
    pretraining_runs, finetuning_runs = ([run for run in runs if run.is_finetuned is kind] for kind in (False, True))
    metrics = dict.fromkeys(str(run.scores["metric"]) for run in runs if run.scores)
    return {
        "pre-training loss": _build_loss_series(pretraining_runs),
        **{
            f"validation {name.replace('_', ' ')}": [
                Series(run.name, _collect_validation_points(run, name), colour=place)
                for place, run in enumerate(pretraining_runs[:MAX_LINES])
            ]
            for name in ("accuracy", "masked_accuracy")
        },
        "fine-tuning loss": _build_loss_series(finetuning_runs),
        **{f"{metric} on dev": _build_dev_series(runs, metric) for metric in metrics},
    }


def _build_loss_series(runs: Sequence[RunRecord]) -> list[Series]:
    series: list[Series] = []
    for place, run in enumerate(runs[:MAX_LINES]):
        name = f"{run.name}, " if len(runs) > 1 else ""
        points = tuple((line["step"], line["loss"]) for line in run.metrics if facts.is_number(line.get("loss")))
        validation = _collect_validation_points(run, "loss")
        style = "faint" if validation else ""
        series += [
            Series(f"{name}training", points, colour=place, style=style),
            Series(f"{name}validation", validation, colour=place),
        ]
    return series


def _collect_validation_points(run: RunRecord, name: str) -> tuple[tuple[float, float], ...]:
    records = [(line["step"], line.get("held_out")) for line in run.metrics]
    return tuple(
        (step, values[name])
        for step, values in records
        if isinstance(values, Mapping) and facts.is_number(values.get(name))
    )


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
        charts.append(draw_size_chart(series, str(run.scores["metric"])))
    return charts


def render_samples(runs: Sequence[RunRecord]) -> Markup:
    """Render the model's answers to some texts during training."""
    parts: list[Markup] = []
    for run in runs:
        samples_after = () if run.scores is None else run.scores.get("samples", ())
        parts += [note(f"{run.name}: answers before and after fine-tuning.")] if samples_after else []
        for sample in samples_after:
            texts = (("before", sample["before"]), ("after", sample["after"]), ("gold", sample["gold"]))
            rows = [element("p", element("b", name), element("em", text)) for name, text in texts]
            parts.append(element("div", element("p", sample["input"]), *rows, kind="sample"))
    pretrained_runs = [run for run in runs if not run.is_finetuned]
    for run in pretrained_runs:
        samples = facts.collect_samples(run.metrics)
        if not samples:
            continue
        parts += [element("h3", run.name)] if len(pretrained_runs) > 1 else []
        about = "masked words filled in (the correct word follows a wrong one), or the text continued"
        parts.append(note(f"{facts.describe_sample_source(run.metrics)} and the model's output: {about}."))
        for text in _pick_evenly([*samples], MAX_SAMPLES):
            answers = _pick_evenly(samples[text], MAX_SAMPLE_STEPS)
            lines = [element("p", element("b", f"step {step:,}"), element("em", answer)) for step, answer in answers]
            parts.append(element("div", element("p", text), *lines, kind="sample"))
    return join(parts)


def _pick_evenly(items: Sequence[T], count: int) -> list[T]:
    """Return `count` items at equal distances, including the first and the last.

    >>> _pick_evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    places = {round(i * (len(items) - 1) / max(count - 1, 1)) for i in range(count if items else 0)}
    return [items[place] for place in sorted(places)]
