"""Scores: fine-tuned runs beside each other and beside baselines on the same split; rows of results.json."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretune.evaluate.report import facts
from pretune.evaluate.report.charts import Series, interval_chart, line_chart
from pretune.evaluate.report.gather import Ran, Results
from pretune.evaluate.report.markup import Child, Markup, element, joined, note, table
from pretune.metrics.significance import Comparison, margin, of_means, over_seeds, student

Facts = Mapping[str, Any]
CLEAR = 0.05
"""A p below this is called a difference."""
MEANS = ("accuracy", "choice_accuracy", "exact_match")
"""Metrics that are means over examples, which predictions alone can be compared by."""
GROUPS = {"pretrained": 0, "random": 1, "baseline": 7, "other": 3}


def scores(runs: Sequence[Ran]) -> Markup:
    """A table for each task, metric and split."""
    tuned = [run for run in runs if run.scores]
    if not tuned:
        if any(run.tuned for run in runs):
            return note("The fine-tuned runs here are not finished: scores.json comes at the end.")
        return note("No fine-tuned run is here, so there are no scores (`pretune finetune` makes them).")
    keys = dict.fromkeys(map(_key, tuned))  # in the order that they were given
    return joined(_group([run for run in tuned if _key(run) == key]) for key in keys)


def _key(run: Ran) -> tuple[str, str, str, int]:
    scores = run.scores or {}
    found = scores["result"]
    return run.judged, str(scores["metric"]), str(found["split"]), int(found["examples"])


def _group(runs: Sequence[Ran]) -> Markup:
    _, metric, split, examples = _key(runs[0])
    beneath = baselines(runs)
    results = [run.scores["result"] for run in runs if run.scores]
    span = spread(
        [
            *((one["low"], one["score"], one["high"]) for one in results),
            *((None, one, None) for one in beneath.values()),
        ]
    )
    top = max(one["score"] for one in results)
    rows: list[Sequence[Child]] = [
        (run.name, _best(f"{found['score']:.4f}", found["score"] == top and len(runs) > 1),
         interval_chart(found["low"], found["score"], found["high"], span), facts.interval(found) or "one seed",
         *_against(run, runs))
        for run, found in zip(runs, results, strict=True)
    ]  # fmt: skip
    for name, score in sorted(beneath.items(), key=lambda item: -item[1]):
        gap = _gap(runs[0], name) if len(runs) == 1 else None
        told = (facts.difference(gap), f"{gap['p']:.3g}") if gap else ("", "")
        rows.append((f"{name} (baseline)", f"{score:.4f}", interval_chart(None, score, None, span), "", *told))
    head = ("", metric, "", "interval over seeds", "run better by", "p")
    return joined(
        [
            element("h3", f"{Path(runs[0].judged).name}: {metric} on {examples:,} examples of {split}"),
            *(element("p", line) for run in runs for line in verdict(run)),
            table(head, rows, kind="scores"),
            *_notes(runs),
        ]
    )


def _against(run: Ran, runs: Sequence[Ran]) -> tuple[str, str]:
    """Of several runs: each against the best baseline."""
    best = best_baseline(run)
    if len(runs) == 1 or best is None:
        return "", ""
    return f"{facts.difference(best['against'])} than {best['name']}", f"{best['against']['p']:.3g}"


def _gap(run: Ran, name: str) -> Facts | None:
    assert run.scores is not None
    return next((one["against"] for one in run.scores["baselines"] if one["name"] == name), None)


def baselines(runs: Sequence[Ran]) -> dict[str, float]:
    """Baselines by name; where runs have different ones of a name (other examples were learnt from), by run as well."""
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        for one in run.scores["baselines"] if run.scores else ():
            found.setdefault(str(one["name"]), {})[run.name] = float(one["score"])
    flat: dict[str, float] = {}
    for name, scores in found.items():
        one = len(set(scores.values())) == 1
        flat |= {name: next(iter(scores.values()))} if one else {f"{name}, {run}": s for run, s in scores.items()}
    return flat


def best_baseline(run: Ran) -> Facts | None:
    """The strongest of them."""
    return max(run.scores["baselines"], key=lambda one: float(one["score"]), default=None) if run.scores else None


def verdict(run: Ran) -> Iterator[str]:
    """What the numbers say, in a sentence."""
    best = best_baseline(run)
    if best is None:
        return
    gap = best["against"]
    size, p = f"{abs(gap['difference']):.4f}", gap["p"]
    if p < CLEAR:
        yield f"{run.name} is better than {best['name']}, the best of the simple baselines, by {size} (p = {p:.3g})."
    elif gap["high"] < 0:
        yield f"{best['name']}, a simple baseline, is better than {run.name} by {size}: here it is the one to use."
    else:
        yield f"{run.name} and {best['name']}, the best of the simple baselines, cannot be told apart (p = {p:.3g})."


def _notes(runs: Sequence[Ran]) -> Iterator[Markup]:
    lines = list(dict.fromkeys(line for run in runs if run.scores for line in facts.told(run.scores)))
    yield from map(note, lines)
    for first, other, gap in paired(runs):
        told = f"{facts.difference(asdict(gap))}, p = {gap.p:.3g}"
        yield note(f"{first} against {other}, by what the models that were kept predicted: {told}.")
    yield note(
        "Intervals are 95 %: over seeds by Student's t, of differences by a paired bootstrap over examples; p is the "
        "share of resampled test sets on which the run is not better."
    )


def paired(runs: Sequence[Ran]) -> Iterator[tuple[str, str, Comparison]]:
    """The best run against each other one on the same examples, where predictions say enough."""
    if len(runs) < 2 or _key(runs[0])[1] not in MEANS:
        return
    ordered = sorted(runs, key=lambda run: -(run.scores or {})["model"]["scores"][_key(run)[2]][_key(run)[1]])
    right = [_right(run) for run in ordered]
    for run, other in zip(ordered[1:], right[1:], strict=True):
        if right[0] and right[0].keys() == other.keys():
            names = sorted(other)
            yield ordered[0].name, run.name, of_means([right[0][one] for one in names], [other[one] for one in names])


def _right(run: Ran) -> dict[str, float]:
    """Whether each example of the result's split was answered rightly."""
    split = _key(run)[2]
    return {
        str(one["id"]): float(one["gold"] == one.get("label"))
        for one in run.said
        if one.get("split") == split and one.get("gold") is not None and "label" in one
    }


def spread(rows: Sequence[tuple[float | None, float, float | None]]) -> tuple[float, float]:
    """A scale that holds all values and their intervals."""
    values = [value for row in rows for value in row if value is not None]
    low, high = min(values), max(values)
    edge = 0.06 * (high - low) or 0.01
    return low - edge, high + edge


def compared(results: Results) -> Markup:
    """Rows of results.json: methods by number of labels, and how surely."""
    counts = sorted({row["labels"] for row in results.rows})
    methods = list(dict.fromkeys(row["method"] for row in results.rows))
    cells = {(row["method"], row["labels"]): row for row in results.rows}
    top = {count: max(row["mean"] for row in results.rows if row["labels"] == count) for count in counts}
    clear, legend = _beside(results)
    rows: list[Sequence[Child]] = []
    for method in methods:
        found = [cells.get((method, count)) for count in counts]
        about = next((str(row["about"]) for row in found if row and row.get("about")), "")
        shown: list[Child] = [
            "" if row is None else _mean(row, clear.get((method, count), ""), best=row["mean"] == top[count])
            for row, count in zip(found, counts, strict=True)
        ]
        rows.append((joined([method, element("small", about)]) if about else method, *shown))
    metric = str(results.about.get("metric", "score"))
    told = [str(results.about[name]) for name in ("task", "split") if results.about.get(name)]
    of = f" on {results.about['examples']:,} examples" if isinstance(results.about.get("examples"), int) else ""
    return joined(
        [
            element("h3", f"{metric}{of}{' of ' if told else ''}{', '.join(told)}"),
            table(("", *(f"{count:,} labels" for count in counts)), rows),
            note(
                "± is half of the 95 % interval over seeds (Student's t); a single seed has none. The best is "
                f"bold.{legend}"
            ),
        ]
    )


def _beside(results: Results) -> tuple[dict[tuple[str, int], str], str]:
    """Marks of networks that differ from the best simple baseline by more than chance, and what the marks say.

    None where the metric is not a share of examples, or their number is not told.
    """
    examples = results.about.get("examples")
    if results.about.get("metric") not in MEANS or not isinstance(examples, int):
        return {}, ""
    simple: dict[int, float] = {}
    for row in results.rows:
        if row.get("group") == "baseline":
            simple[row["labels"]] = max(row["mean"], simple.get(row["labels"], 0.0))
    clear: dict[tuple[str, int], str] = {}
    for row in results.rows:
        best = simple.get(row["labels"])
        if best is None or row.get("group") not in ("pretrained", "random"):
            continue
        lead = row["mean"] - best
        if abs(lead) > margin(row["mean"], best, examples):
            clear[row["method"], row["labels"]] = " ▲" if lead > 0 else " ▼"
    told = (
        f" ▲ is ahead of the best simple baseline with as many labels, ▼ behind it, by more than two standard "
        f"errors of {examples:,} examples; without a mark that difference could be chance."
    )
    return clear, told if simple else ""


def label_chart(results: Results) -> Markup:
    """The same as lines over labels; nothing for one number of labels."""
    if len({row["labels"] for row in results.rows}) < 2:
        return Markup("")
    shares = all(0 <= row["mean"] <= 1 for row in results.rows)
    low, high = (0.0, 1.0) if shares else (-math.inf, math.inf)  # what an interval cannot go beyond
    series: list[Series] = []
    for place, method in enumerate(dict.fromkeys(row["method"] for row in results.rows)):
        rows = sorted((row for row in results.rows if row["method"] == method), key=lambda row: float(row["labels"]))
        kept = [(row["labels"], row["mean"], half(row)) for row in rows]
        band = tuple((x, max(y - reach, low), min(y + reach, high)) for x, y, reach in kept if reach is not None)
        simple = any(row.get("group", "baseline") in ("baseline", "random") for row in rows)
        points = tuple((x, y) for x, y, _ in kept)
        series.append(
            Series(method, points, band if len(band) == len(kept) > 1 else (), place, "dashed" if simple else "")
        )
    metric = str(results.about.get("metric", "score"))
    return line_chart(series, x="labels (logarithmic)", y=f"{metric} by labels", log=True)


def half(row: Facts) -> float | None:
    """Half of the interval over seeds, from what a row has: ends, the scores of seeds, or a standard deviation."""
    if _number(row.get("low")) and _number(row.get("high")):
        return float(row["high"] - row["low"]) / 2
    each = row.get("each")
    if isinstance(each, list) and len(each) > 1:
        found = over_seeds(each)
        return (found.high or 0.0) - found.mean
    seeds = row.get("seeds", 1)
    count = len(seeds) if isinstance(seeds, list) else int(seeds)
    if _number(row.get("std")) and count > 1:
        return student(0.95, count - 1) * float(row["std"]) / math.sqrt(count)
    return None


def _mean(row: Facts, mark: str, *, best: bool) -> Markup:
    """A mean with half of its interval, which may stand in a line of its own where there is little room."""
    reach = half(row)
    beside: list[Child] = [] if reach is None else [" ±", Markup("&nbsp;"), f"{reach:.3f}"]
    return element("span", f"{row['mean']:.3f}", *beside, mark, kind="value best" if best else "value")


def _best(text: str, best: bool) -> Child:
    return element("span", text, kind="best") if best else text


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
