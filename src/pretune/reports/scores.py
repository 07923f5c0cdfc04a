"""Section of a report: scores of fine-tuned runs, baselines on the same split, averages of suites, results.json."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pretune.core.log import format_count
from pretune.metrics import SHARE_METRICS, SUITES, collect_suite_scores, compute_suite_averages
from pretune.metrics.significance import (
    Comparison,
    compute_interval,
    compute_margin,
    paired_bootstrap_of_means,
    student_t_quantile,
)
from pretune.reports import NO_MARKUP, Markup, element, facts, join, note, notes, table
from pretune.reports.charts import Series, draw_interval_chart, draw_size_chart
from pretune.reports.facts import Facts
from pretune.reports.load import ComparisonResults, RunRecord

SIGNIFICANCE_LEVEL = 0.05
"""Differences with a p-value below this are significant."""
SUITE_NAMES = {"glue": "GLUE", "superglue": "SuperGLUE", "sts12-16": "STS 2012 to 2016"}
Setting = tuple[str, str, str]
"""Base, method and number of training examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """Run or baseline in the table of a test set."""

    name: str
    score: float
    run: RunRecord | None = None
    baseline: str = ""  # its name in scores.json


def render_scores(runs: Sequence[RunRecord]) -> Markup:
    """Render a table for each test set and metric."""
    scored_runs = [run for run in runs if run.scores]
    keys = dict.fromkeys(map(identify_test_set, scored_runs))  # in the given order
    return join(_render_test_set([run for run in scored_runs if identify_test_set(run) == key]) for key in keys)


def identify_test_set(run: RunRecord) -> tuple[str, str, str, int, frozenset[str]]:
    """Return the identity of a test set: task, metric, split, size, and example ids where all were predicted."""
    scores = run.scores or {}
    split, examples = str(scores["result"]["split"]), int(scores["result"]["examples"])
    ids = frozenset(str(row.get("id")) for row in run.predictions if row.get("split") == split)
    return run.eval_task, str(scores["metric"]), split, examples, ids if len(ids) == examples else frozenset()


def rank(runs: Sequence[RunRecord]) -> list[ScoreRow]:
    """Return runs of one test set and their baselines, best score first; runs precede baselines with equal scores.

    A baseline that runs share is one row. Where its scores differ (other training examples), each score has a row that
    names the runs.
    """
    baselines: dict[str, dict[float, list[str]]] = {}
    rows = [ScoreRow(name=run.name, score=float(run.scores["result"]["score"]), run=run) for run in runs if run.scores]
    for run in runs:
        for baseline in run.scores["baselines"] if run.scores else ():
            baselines.setdefault(str(baseline["name"]), {}).setdefault(float(baseline["score"]), []).append(run.name)
    for name, scores in baselines.items():
        for score, names in scores.items():
            label = name if len(scores) == 1 else f"{name}, {', '.join(names)}"
            rows.append(ScoreRow(name=label, score=score, baseline=name))
    return sorted(rows, key=lambda row: -row.score)


def _render_test_set(runs: Sequence[RunRecord]) -> Markup:
    _, metric, split, examples, _ = identify_test_set(runs[0])
    score_rows = rank(runs)
    best = next(row.run for row in score_rows if row.run is not None)
    gaps = [compare_rows(best, row) for row in score_rows]
    results = [row.run.scores["result"] if row.run and row.run.scores else {} for row in score_rows]
    ends = [(result.get("low"), row.score, result.get("high")) for row, result in zip(score_rows, results, strict=True)]
    span = compute_span(ends)
    has_intervals = any(map(facts.format_interval, results))
    rows: list[Sequence[str]] = []
    for row, result, end, comparison in zip(score_rows, results, ends, gaps, strict=True):
        top = len(score_rows) > 1 and row.score == score_rows[0].score
        seeds = facts.format_interval(result) or ("1 seed" if result and has_intervals else "")
        cells = (facts.format_difference(comparison), f"{comparison['p']:.3g}") if comparison else ("", "")
        name = row.name if row.run else f"{row.name} (baseline)"
        score = element("span", f"{row.score:.4f}", kind="best") if top else f"{row.score:.4f}"
        rows.append((name, score, draw_interval_chart(*end, span), seeds, *cells))
    better = "run better by" if len(runs) == 1 else f"{best.name} better by"
    heading = f"{Path(runs[0].eval_task).name}: {metric} on {format_count(examples, 'examples')} of {split}"
    return join(
        [
            element("h3", heading),
            *(element("p", line) for line in summarize(score_rows)),
            table(("", metric, "", "95% CI over seeds", better, "p"), rows, kind="scores"),
            notes(*_list_notes(runs)),
        ]
    )


def compare_rows(best: RunRecord, row: ScoreRow) -> Facts | None:
    """Return the paired comparison of the best run with another row; None where none was made."""
    if row.run is not None:
        comparison = compare_runs(best, row.run)
        return None if comparison is None else asdict(comparison)
    for baseline in (best.scores or {})["baselines"]:
        if baseline["name"] == row.baseline and float(baseline["score"]) == row.score:
            return dict(baseline["against"])
    return None


def find_best_baseline(run: RunRecord) -> Facts | None:
    """Return the best baseline."""
    baselines = run.scores["baselines"] if run.scores else ()
    return max(baselines, key=lambda baseline: float(baseline["score"]), default=None)


def summarize(rows: Sequence[ScoreRow]) -> Iterator[str]:
    """Yield the conclusion of a table: its best run against its best baseline, then against the next run."""
    ours, simple = [row for row in rows if row.run], [row for row in rows if row.run is None]
    best = ours[0]
    assert best.run is not None
    if simple:
        yield _compare_with_baseline(best, simple[0], compare_rows(best.run, simple[0]), several=len(ours) > 1)
    if len(ours) > 1 and (comparison := compare_rows(best.run, ours[1])):
        p = f"p = {comparison['p']:.3g}"
        if comparison["p"] < SIGNIFICANCE_LEVEL:
            yield f"{best.name} is the best of {len(ours)} runs ({p} against {ours[1].name})."
        else:
            yield f"{best.name} and {ours[1].name}, the best of {len(ours)} runs, do not differ significantly ({p})."


def _compare_with_baseline(run: ScoreRow, baseline: ScoreRow, comparison: Facts | None, *, several: bool) -> str:
    """Return the sentence that compares the best run with the best baseline."""
    size = f"{abs(run.score - baseline.score):.4f}"
    if comparison is None:
        first, last = (run, baseline) if run.score >= baseline.score else (baseline, run)
        caveat = "without a paired comparison, this may be chance"
        return f"{first.name} leads {last.name} by {size} (best run and best simple baseline); {caveat}."
    p = comparison["p"]
    if p < SIGNIFICANCE_LEVEL:
        return f"{run.name} is better than {baseline.name}, the best simple baseline, by {size} (p = {p:.3g})."
    if comparison["high"] < 0:
        runs_text = f"every run (best: {run.name})" if several else run.name
        return f"{baseline.name}, a simple baseline, is better than {runs_text} by {size}: prefer it here."
    return f"{run.name} and {baseline.name}, the best simple baseline, do not differ significantly (p = {p:.3g})."


def _list_notes(runs: Sequence[RunRecord]) -> Iterator[str]:
    yield from dict.fromkeys(line for run in runs if run.scores for line in facts.build_notes(run.scores))
    yield (
        "Intervals are 95%: over seeds by Student's t, of differences by a paired bootstrap over examples; p is the "
        "share of resampled test sets on which the run is not better. Runs are compared by the predictions of their "
        "saved models."
    )


def compare_runs(run: RunRecord, other_run: RunRecord) -> Comparison | None:
    """Compare two runs by the predictions of their saved models; None where these are not of the same examples.

    The metric must be a mean over examples.
    """
    if run is other_run or identify_test_set(run)[1] not in SHARE_METRICS:
        return None
    ours, theirs = _mark_correct(run), _mark_correct(other_run)
    if not ours or ours.keys() != theirs.keys():
        return None
    return paired_bootstrap_of_means(*([hits[example_id] for example_id in sorted(ours)] for hits in (ours, theirs)))


def _mark_correct(run: RunRecord) -> dict[str, float]:
    """Return 1 for each correctly predicted example of the result's split, else 0."""
    split = identify_test_set(run)[2]
    return {
        str(row["id"]): float(row["gold"] == row.get("label"))
        for row in run.predictions
        if row.get("split") == split and row.get("gold") is not None and "label" in row
    }


def compute_span(rows: Sequence[tuple[float | None, float, float | None]]) -> tuple[float, float]:
    """Return a scale that covers all values and their intervals."""
    values = [value for row in rows for value in row if value is not None]
    low, high = min(values), max(values)
    edge = 0.06 * (high - low) or 0.01
    return low - edge, high + edge


def render_comparison(results: ComparisonResults) -> Markup:
    """Render rows of results.json: methods by training set size, with confidence intervals."""
    counts = sorted({row["labels"] for row in results.rows})
    methods = list(dict.fromkeys(row["method"] for row in results.rows))
    cells = {(row["method"], row["labels"]): row for row in results.rows}
    top = {count: max(row["mean"] for row in results.rows if row["labels"] == count) for count in counts}
    clear, legend = _mark_significant(results)
    rows: list[Sequence[str]] = []
    for method in methods:
        method_rows = [cells.get((method, count)) for count in counts]
        about = next((str(row["about"]) for row in method_rows if row and row.get("about")), "")
        cells_shown: list[str] = [
            "" if row is None else _render_mean(row, clear.get((method, count), ""), is_best=row["mean"] == top[count])
            for row, count in zip(method_rows, counts, strict=True)
        ]
        rows.append((join([method, element("small", about)]) if about else method, *cells_shown))
    metadata = results.metadata
    examples, descriptions = metadata.get("examples"), [str(metadata[n]) for n in ("task", "split") if metadata.get(n)]
    size = f" on {format_count(examples, 'examples')}" if isinstance(examples, int) else ""
    heading = f"{metadata.get('metric', 'score')}{size}{' of ' if descriptions else ''}{', '.join(descriptions)}"
    about = "± is half of the 95% confidence interval over seeds (Student's t); a single seed has none. Bold: best."
    head = ("", *(format_count(count, "labels") for count in counts))
    return join([element("h3", heading), table(head, rows), notes(f"{about}{legend}")])


def _mark_significant(results: ComparisonResults) -> tuple[dict[tuple[str, int], str], str]:
    """Return markers of networks that differ significantly from the best simple baseline, and their legend.

    Empty where the metric is not a mean over examples, or the number of examples is unknown.
    """
    examples = results.metadata.get("examples")
    if results.metadata.get("metric") not in SHARE_METRICS or not isinstance(examples, int):
        return {}, ""
    baselines = sorted((row for row in results.rows if row.get("group") == "baseline"), key=lambda row: row["mean"])
    simple: dict[int, float] = {row["labels"]: row["mean"] for row in baselines}
    clear: dict[tuple[str, int], str] = {}
    for row in results.rows:
        best = simple.get(row["labels"])
        if best is not None and row.get("group") in ("pretrained", "random"):
            lead = row["mean"] - best
            if abs(lead) > compute_margin(row["mean"], best, examples):
                clear[row["method"], row["labels"]] = " ▲" if lead > 0 else " ▼"
    legend = (
        f" ▲ better, ▼ worse than the best simple baseline with as many labels, by more than two standard "
        f"errors of {format_count(examples, 'examples')}; without a marker the difference may be chance."
    )
    return clear, legend if simple else ""


def draw_label_chart(results: ComparisonResults) -> Markup:
    """Draw the comparison as lines over training set size; empty for a single size."""
    if len({row["labels"] for row in results.rows}) < 2:
        return NO_MARKUP
    shares = all(0 <= row["mean"] <= 1 for row in results.rows)
    low, high = (0.0, 1.0) if shares else (-math.inf, math.inf)  # bounds of an interval
    series: list[Series] = []
    for place, method in enumerate(dict.fromkeys(row["method"] for row in results.rows)):
        rows = sorted((row for row in results.rows if row["method"] == method), key=lambda row: float(row["labels"]))
        values = [(row["labels"], row["mean"], compute_half_interval(row)) for row in rows]
        band = tuple((x, max(y - reach, low), min(y + reach, high)) for x, y, reach in values if reach is not None)
        simple = any(row.get("group", "baseline") in ("baseline", "random") for row in rows)
        points = tuple((x, y) for x, y, _ in values)
        band = band if len(band) == len(values) > 1 else ()
        series.append(Series(method, points, band, place, "dashed" if simple else ""))
    return draw_size_chart(series, str(results.metadata.get("metric", "score")))


def compute_half_interval(row: Facts) -> float | None:
    """Return half of the interval over seeds, from the row's seed scores, standard deviation or bounds."""
    seed_scores = row.get("each")
    if isinstance(seed_scores, list) and len(seed_scores) > 1:
        interval = compute_interval(seed_scores)
        return (interval.high or 0.0) - interval.mean
    seeds = row.get("seeds", 1)
    count = len(seeds) if isinstance(seeds, list) else int(seeds)
    if facts.is_number(row.get("std")) and count > 1:
        return student_t_quantile(0.95, count - 1) * float(row["std"]) / math.sqrt(count)
    if facts.is_number(row.get("low")) and facts.is_number(row.get("high")):
        return float(row["high"] - row["low"]) / 2  # NOTE: bounds may be clipped to the range of the score
    return None


def _render_mean(row: Facts, mark: str, *, is_best: bool) -> Markup:
    """Render a mean with half of its interval, which may wrap to the next line."""
    reach = compute_half_interval(row)
    margin: list[str] = [] if reach is None else [" ±", Markup("&nbsp;"), f"{reach:.3f}"]
    return element("span", f"{row['mean']:.3f}", *margin, mark, kind="value best" if is_best else "value")


def render_suites(runs: Sequence[RunRecord]) -> Markup:
    """Render a table for each suite with a run for every task; a note names missing tasks if at least half have one."""
    return join(part for suite in SUITES for part in _render_suite(suite, group_scores(runs)))


def group_scores(runs: Sequence[RunRecord]) -> dict[Setting, dict[str, Mapping[str, float]]]:
    """Return task scores by setting; of two runs of a task, the one with the better dev score counts."""
    best: dict[tuple[Setting, str], tuple[float, Mapping[str, float]]] = {}
    for run in (run for run in runs if run.scores):
        assert run.scores is not None
        result = run.scores["result"]
        dev = float(result.get("dev", 0.0))
        key = _describe_setting(run), str(run.scores["task"])
        if key not in best or dev > best[key][0]:
            best[key] = dev, result.get("scores") or {str(run.scores["metric"]): float(result["score"])}
    grouped_scores: dict[Setting, dict[str, Mapping[str, float]]] = {}
    for (setting, task), (_, scores) in best.items():
        grouped_scores.setdefault(setting, {})[task] = scores
    return grouped_scores


def _describe_setting(run: RunRecord) -> Setting:
    tree = run.config
    base = str(tree["base"]["path"])
    weights = ", random weights" if tree["base"].get("weights") == "random" else ""
    limit = (tree.get("task") or {}).get("train_examples")
    return (
        f"{Path(base).name or base}{weights}",
        str(tree["method"]["kind"]),
        "" if limit is None else format_count(limit, "labels"),
    )


def _render_suite(suite: str, settings: Mapping[Setting, Mapping[str, Mapping[str, float]]]) -> Iterator[Markup]:
    tasks = SUITES[suite]
    members = {setting: collect_suite_scores(suite, scores) for setting, scores in settings.items()}
    complete = [
        (", ".join(filter(None, setting)), average, members[setting])
        for setting, scores in settings.items()
        if (average := compute_suite_averages(scores).get(suite)) is not None
    ]
    if complete:
        yield element("h3", f"{SUITE_NAMES[suite]}: average of {len(tasks)} tasks")
        rows = sorted(complete, key=lambda row: -row[1])
        yield table(
            ("", "average", *tasks),
            [
                (name, f"{average:.4f}", *(f"{task_scores[task]:.4f}" for task in tasks))
                for name, average, task_scores in rows
            ],
            kind="scores",
        )
    for setting, task_scores in members.items():
        if len(tasks) / 2 <= len(task_scores) < len(tasks):
            missing = ", ".join(task for task in tasks if task not in task_scores)
            yield note(f"{', '.join(filter(None, setting))}: no {SUITE_NAMES[suite]} average without {missing}.")
