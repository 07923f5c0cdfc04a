"""Page of a study (study.html), from the content of its study.json: claims, tables, plots, cost."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pretune.core.log import format_count, format_duration, format_kilograms, format_number
from pretune.reports import (
    NO_MARKUP,
    Markup,
    Section,
    code,
    element,
    fill_page,
    join,
    link,
    note,
    notes,
    pairs,
    place_figures,
    table,
    tiles,
)
from pretune.reports.charts import Series, draw_interval_chart, draw_line_chart
from pretune.reports.study_record import StudyLaw, StudyMeasure, StudyResults
from pretune.reports.study_text import (
    LAW_HEAD,
    LAW_NOTE,
    OUTCOME_PLURALS,
    find_best,
    format_command,
    format_difference,
    format_marks,
    format_other_devices,
    format_tuning,
    format_value,
    format_verdict,
    is_score,
    list_costs,
    list_law,
    list_paper_rows,
    list_settings,
)

OUTCOME_COLOURS = {"holds": 2, "does not hold": 4, "undecided": 7, "not measured": 7}
MAX_P = 0.05
"""Differences with a p-value below this are marked."""


def render_study_page(results: StudyResults) -> str:
    """Render study.html."""
    study, paper = results["study"], results["study"]["paper"]
    story = [element("p", study["question"], kind="lead")] if study["question"] else []
    story += [element("p", link(paper["citation"], paper["url"]), kind="note")] if paper["citation"] else []
    return fill_page(study["title"], join(story), _render_tiles(results), _build_sections(results))


def _build_sections(results: StudyResults) -> list[Section]:
    return [
        ("claims", "Claims", _render_claims(results)),
        ("table", "Table", _render_tables(results)),
        ("law", "Law", _render_law(results)),
        ("plots", "Plots", _render_plots(results)),
        ("setting", "Setting", pairs(list_settings(results))),
        ("cost", "Cost", join([pairs(list_costs(results)), note(format_other_devices(results))])),
        ("failures", "Not finished", _render_failures(results)),
        ("reproduce", "Commands to reproduce", code(format_command(results))),
    ]


def _render_tiles(results: StudyResults) -> Markup:
    outcomes: Counter[str] = Counter(claim["outcome"] for claim in results["claims"])
    counts = [
        (str(outcomes[name]), f"claims {OUTCOME_PLURALS.get(name, name)}") for name in OUTCOME_COLOURS if outcomes[name]
    ]
    cost = results["cost"]
    return tiles(
        [
            *counts,
            (str(len(results["seeds"])), "seeds"),
            (format_duration(cost.get("wall_seconds") or cost["seconds"]), "time of all steps"),
            (format_kilograms(cost["co2e_kg"]), "CO2e"),
        ]
    )


def _render_claims(results: StudyResults) -> Markup:
    rows = []
    for claim in results["claims"]:
        colour = f"c{OUTCOME_COLOURS[claim['outcome']]}"
        key, verdict = element("i", kind=f"key {colour}"), element("b", format_verdict(results, claim))
        label = element("span", key, verdict, kind="label")
        rows.append((claim["text"], label, claim["measure"], format_difference(claim), claim["reason"]))
    if not rows:
        return NO_MARKUP
    head = ("claim", "verdict", "measure", "difference ± standard error", "")
    return join([table(head, rows), note(results["rule"]), note(format_tuning(results))])


def _render_tables(results: StudyResults) -> Markup:
    ours = [element("h3", "This study"), _render_table(results)]
    seeds = format_count(len(results["seeds"]), "seeds")
    about = f"Mean over {seeds} with half of the 95 % interval; below it the paired difference to"
    p_note = f"'{results['reference']}' with its p-value (paired t-test), bold below {MAX_P:g}."
    ours.append(note(f"{about} {p_note} {format_marks(results)}".strip()))
    paper = results["study"]["paper"]
    theirs: list[Markup] = []
    if paper["table"] is not None:
        theirs = [
            element("h3", "The paper"),
            table(("", *paper["table"]["columns"]), list_paper_rows(paper["table"])),
            note(paper["table"]["caption"]),
        ]
    if paper["note"]:
        theirs.append(notes(paper["note"]))
    return element("div", element("div", *ours), element("div", *theirs) if theirs else NO_MARKUP, kind="charts")


def _render_table(results: StudyResults) -> Markup:
    measures = results["measures"]
    head = ("", *(f"{measure['name']} {'↓' if measure['better'] == 'lower' else '↑'}" for measure in measures))
    best = find_best(results)
    rows = []
    for name in results["rows"]:
        cells = [_render_cell(results, name, measure, best.get(measure["name"]) == name) for measure in measures]
        rows.append((name, *cells))
    return table(head, rows)


def _render_cell(results: StudyResults, row: str, measure: StudyMeasure, is_best: bool) -> Markup:
    cell = results["table"][row].get(measure["name"])
    if cell is None:
        return NO_MARKUP
    text = element("span", format_value(cell, measure), kind="value best" if is_best else "value")
    test = cell["against"]
    if row == results["reference"] or test is None or not is_score(measure):
        return text
    p_value = "" if test["p"] is None else ", p < 0.001" if test["p"] < 0.001 else f", p {test['p']:.2g}"
    difference = f"{test['difference']:+.3g}{p_value}"
    is_significant = test["p"] is not None and test["p"] < MAX_P
    return join([text, element("small", element("b", difference) if is_significant else difference)])


def _render_law(results: StudyResults) -> Markup:
    law = results.get("law")
    return NO_MARKUP if law is None else join([table(LAW_HEAD, list_law(results)), note(LAW_NOTE), draw_law(law)])


def draw_law(law: StudyLaw) -> Markup:
    """Draw the measured losses by tokens as dots, and the law of each size as a line."""
    series: list[Series] = []
    values = {name: numbers[0] for name, numbers in law["coefficients"].items()}
    xs = sorted({point["tokens"] for point in law["points"]})
    for colour, size in enumerate(sorted({point["parameters"] for point in law["points"]})):
        points = [point for point in law["points"] if point["parameters"] == size]
        floor = values["floor"] + values["size"] * size ** -values["size_power"]
        line = tuple((x, floor + values["tokens"] * x ** -values["tokens_power"]) for x in xs)
        dots = tuple((point["tokens"], point["loss"]) for point in points)
        name = f"{format_number(size)} parameters{', check' if any(point['is_check'] for point in points) else ''}"
        series += [Series(name, dots, (), colour, "dots"), Series("", line, (), colour, "line")]
    return draw_line_chart(series, x="new tokens (logarithmic)", y=law["loss"], log_x=True)


def _render_plots(results: StudyResults) -> Markup:
    curves = place_figures([*_draw_curves(results), *_draw_costs(results)])
    return join([curves, place_figures(_draw_intervals(results))])


def _draw_curves(results: StudyResults) -> Iterator[Markup]:
    """Yield a line per row for the measures of each curve."""
    for curve in dict.fromkeys(measure["curve"] for measure in results["measures"] if measure["curve"]):
        points = [measure for measure in results["measures"] if measure["curve"] == curve]
        places = [(float(x), measure["name"]) for measure in points if (x := measure["x"]) is not None]
        xs = [x for x, _ in places]
        series = _build_series(results, dict.fromkeys(results["rows"], places))
        is_wide = len(xs) > 1 and min(xs) > 0 and max(xs) / min(xs) >= 8
        labels = [measure["x_label"] for measure in points if measure["x"] is not None]
        label = next(filter(None, labels), "x")
        yield draw_line_chart(series, x=f"{label} (logarithmic)" if is_wide else label, y=curve, log_x=is_wide)


def _draw_costs(results: StudyResults) -> Iterator[Markup]:
    """Yield scores by a cost in which rows differ."""
    for cost in (measure for measure in results["measures"] if measure["amount"] in ("parameters", "flops", "seconds")):
        xs = {row: cells[cost["name"]]["mean"] for row, cells in results["table"].items() if cost["name"] in cells}
        if len({round(value, 3) for value in xs.values()}) < 2 or min(xs.values()) <= 0:
            continue
        for measure in filter(is_score, results["measures"]):
            series = _build_series(results, {row: [(x, measure["name"])] for row, x in xs.items()})
            yield draw_line_chart(series, x=cost["name"], y=f"{measure['name']} by {cost['name']}")


def _build_series(results: StudyResults, places: Mapping[str, Sequence[tuple[float, str]]]) -> list[Series]:
    """Return a line per row: the points of measures, each at its x."""
    series: list[Series] = []
    for colour, row in enumerate(results["rows"]):
        cells = [(x, cell) for x, name in places.get(row, ()) if (cell := results["table"][row].get(name))]
        points = tuple((x, cell["mean"]) for x, cell in cells)
        bounds = [(x, cell["low"], cell["high"]) for x, cell in cells]
        band = tuple((x, low, high) for x, low, high in bounds if low is not None and high is not None)
        series.append(Series(row, points, band, colour))
    return series


def _draw_intervals(results: StudyResults) -> Iterator[Markup]:
    """Yield mean and interval of every row, one figure per score."""
    for measure in filter(is_score, results["measures"]):
        cells = {row: results["table"][row].get(measure["name"]) for row in results["rows"]}
        bounds = [(cell["mean"], cell["low"], cell["high"]) for cell in cells.values() if cell]
        values = [value for bound in bounds for value in bound if value is not None]
        if len(values) < 2 or max(values) == min(values):
            continue
        edge = 0.05 * (max(values) - min(values))
        span = (min(values) - edge, max(values) + edge)
        rows = [
            (row, draw_interval_chart(cell["low"], cell["mean"], cell["high"], span), f"{cell['mean']:.4g}")
            for row, cell in cells.items()
            if cell
        ]
        direction = "lower is better" if measure["better"] == "lower" else "higher is better"
        yield element("figure", element("p", f"{measure['name']} ({direction})", kind="above"), table((), rows))


def _render_failures(results: StudyResults) -> Markup:
    rows = [(failure["label"], failure["action"], failure["message"]) for failure in results["failures"]]
    parts = [table(("step", "action", "error"), rows)] if rows else []
    if results["missing"]:
        names = [f"{entry['row']}, seed {entry['seed']}" for entry in results["missing"]]
        parts.append(notes(f"Cells without all their numbers: {'; '.join(names)}."))
    return join(parts)
