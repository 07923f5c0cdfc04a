"""Page of a study (study.html), from the content of its study.json: claims, tables, plots and cost."""

from collections.abc import Iterator

from pretune.core.log import format_count, format_duration, format_kilograms
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
from pretune.reports.facts import Facts
from pretune.reports.study_text import (
    find_best,
    format_command,
    format_difference,
    format_marks,
    format_other_devices,
    format_outcome,
    format_p,
    format_tuning,
    format_value,
    format_verdict,
    is_score,
    list_costs,
    list_paper_rows,
    list_settings,
)

OUTCOME_COLOURS = {"holds": 2, "does not hold": 4, "undecided": 7, "not measured": 7}
MAX_P = 0.05
"""Differences with a p-value below this are marked."""


def render_study_page(results: Facts) -> str:
    """Render study.html."""
    study, paper = results["study"], results["study"]["paper"]
    story = [element("p", study["question"], kind="lead")] if study["question"] else []
    story += [element("p", link(paper["citation"], paper["url"]), kind="note")] if paper["citation"] else []
    return fill_page(study["title"], join(story), _render_tiles(results), _build_sections(results))


def _build_sections(results: Facts) -> list[Section]:
    return [
        ("claims", "Claims", _render_claims(results)),
        ("table", "Table", _render_tables(results)),
        ("plots", "Plots", _render_plots(results)),
        ("setting", "Setting", pairs(list_settings(results))),
        ("cost", "Cost", join([pairs(list_costs(results)), note(format_other_devices(results))])),
        ("failures", "Not finished", _render_failures(results)),
        ("reproduce", "Commands to reproduce", code(format_command(results))),
    ]


def _render_tiles(results: Facts) -> Markup:
    outcomes = [claim["outcome"] for claim in results["claims"]]
    cost = results["cost"]
    return tiles(
        [
            *((str(outcomes.count(name)), _count_claims(name)) for name in OUTCOME_COLOURS if name in outcomes),
            (str(len(results["seeds"])), "seeds"),
            (format_duration(cost.get("wall_seconds") or cost["seconds"]), "time of all steps"),
            (format_kilograms(cost["co2e_kg"]), "CO2e"),
        ]
    )


def _count_claims(outcome: str) -> str:
    labels = {"holds": "claims hold", "does not hold": "claims do not hold"}
    return labels.get(outcome, f"claims {format_outcome(outcome)}")


def _render_claims(results: Facts) -> Markup:
    rows = []
    for claim in results["claims"]:
        colour = f"c{OUTCOME_COLOURS[claim['outcome']]}"
        label = element(
            "span", element("i", kind=f"key {colour}"), element("b", format_verdict(results, claim)), kind="label"
        )
        rows.append((claim["text"], label, claim["measure"], format_difference(claim), claim["reason"]))
    if not rows:
        return NO_MARKUP
    head = ("claim", "verdict", "measure", "difference ± standard error", "")
    return join([table(head, rows), note(results["rule"]), note(format_tuning(results))])


def _render_tables(results: Facts) -> Markup:
    ours = [element("h3", "This study"), _render_table(results)]
    seeds = format_count(len(results["seeds"]), "seeds")
    about = (
        f"Mean over {seeds} with half of the 95 % interval; below it the paired difference to '{results['reference']}'"
    )
    ours.append(
        note(f"{about} with its p-value (paired t-test), bold below {MAX_P:g}. {format_marks(results)}".strip())
    )
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


def _render_table(results: Facts) -> Markup:
    measures = results["measures"]
    head = ("", *(f"{measure['name']} {'↓' if measure['better'] == 'lower' else '↑'}" for measure in measures))
    best = find_best(results)
    rows = []
    for name in results["rows"]:
        cells = [_render_cell(results, name, measure, best.get(measure["name"]) == name) for measure in measures]
        rows.append((name, *cells))
    return table(head, rows)


def _render_cell(results: Facts, row: str, measure: Facts, is_best: bool) -> Markup:
    cell = results["table"][row].get(measure["name"])
    if cell is None:
        return NO_MARKUP
    text = element("span", format_value(cell, measure), kind="value best" if is_best else "value")
    test = cell["against"]
    if row == results["reference"] or test is None or not is_score(measure):
        return text
    p_value = "" if test["p"] is None else f", p {format_p(test['p'])}"
    difference = f"{test['difference']:+.3g}{p_value}"
    is_significant = test["p"] is not None and test["p"] < MAX_P
    return join([text, element("small", element("b", difference) if is_significant else difference)])


def _render_plots(results: Facts) -> Markup:
    return join(
        [place_figures([*_draw_curves(results), *_draw_costs(results)]), place_figures(_draw_intervals(results))]
    )


def _draw_curves(results: Facts) -> Iterator[Markup]:
    """Yield a line per row for the measures of each curve."""
    for curve in dict.fromkeys(measure["curve"] for measure in results["measures"] if measure["curve"]):
        points = [measure for measure in results["measures"] if measure["curve"] == curve and measure["x"] is not None]
        series = []
        for colour, row in enumerate(results["rows"]):
            cells = [(float(m["x"]), results["table"][row].get(m["name"])) for m in points]
            measured_cells = [(x, cell) for x, cell in cells if cell is not None]
            series.append(
                Series(
                    row,
                    tuple((x, cell["mean"]) for x, cell in measured_cells),
                    tuple((x, cell["low"], cell["high"]) for x, cell in measured_cells if cell["low"] is not None),
                    colour,
                )
            )
        xs = [float(measure["x"]) for measure in points]
        is_wide = len(xs) > 1 and min(xs) > 0 and max(xs) / min(xs) >= 8
        label = next((measure["x_label"] for measure in points if measure["x_label"]), "x")
        yield draw_line_chart(series, x=f"{label} (logarithmic)" if is_wide else label, y=curve, log_x=is_wide)


def _draw_costs(results: Facts) -> Iterator[Markup]:
    """Yield scores by a cost in which rows differ."""
    for cost in (measure for measure in results["measures"] if measure["amount"] in ("parameters", "flops", "seconds")):
        xs = {row: cells[cost["name"]]["mean"] for row, cells in results["table"].items() if cost["name"] in cells}
        if len({round(value, 3) for value in xs.values()}) < 2 or min(xs.values()) <= 0:
            continue
        for measure in filter(is_score, results["measures"]):
            series = []
            for colour, row in enumerate(results["rows"]):
                cell = results["table"][row].get(measure["name"])
                if cell is None or row not in xs:
                    continue
                band = () if cell["low"] is None else ((xs[row], cell["low"], cell["high"]),)
                series.append(Series(row, ((xs[row], cell["mean"]),), band, colour))
            yield draw_line_chart(series, x=cost["name"], y=f"{measure['name']} by {cost['name']}")


def _draw_intervals(results: Facts) -> Iterator[Markup]:
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


def _render_failures(results: Facts) -> Markup:
    rows = [(failure["label"], failure["action"], failure["message"]) for failure in results["failures"]]
    parts = [table(("step", "action", "error"), rows)] if rows else []
    if results["missing"]:
        names = [f"{entry['row']}, seed {entry['seed']}" for entry in results["missing"]]
        parts.append(notes(f"Cells without all their numbers: {'; '.join(names)}."))
    return join(parts)
