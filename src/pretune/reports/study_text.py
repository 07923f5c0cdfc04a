"""Text of a study (study.md), from the content of its study.json: verdicts, tables, settings and cost in words."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pretune.core.log import format_duration, format_kilograms, format_markdown, format_number
from pretune.reports.study_record import DecidingBudget, StudyCell, StudyClaim, StudyCost, StudyMeasure, StudyResults
from pretune.training.cost import find_device

OUTCOME_LABELS = {"undecided": "undecided at this budget"}
OUTCOME_PLURALS = OUTCOME_LABELS | {"holds": "hold", "does not hold": "do not hold"}
BASELINE_MARK = " °"
BASELINE_NOTE = (
    f"{BASELINE_MARK.strip()}: not better than the simplest baseline (for classes, the majority class) by more than 2 "
    "standard errors; such a model has learned nothing that counts here. A verdict has the mark if neither row is "
    "better."
)
"""Mark of scores that are not better than the simplest baseline."""
UNIGRAM_MARK = " †"
UNIGRAM_NOTE = (
    f"{UNIGRAM_MARK.strip()}: the pre-training loss is hardly below that of a unigram model, so the model has not got "
    "beyond word frequencies; no claim about it is decided."
)
"""Mark of scores of models that have not got beyond word frequencies."""
BUSY_FACTOR = 1.1
"""Wall-clock time of one-core steps relative to their CPU time, from which the machine had other work."""
ACTION_NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning"}
_AMOUNT_FORMATS: Mapping[str, Callable[[float], str]] = {
    "seconds": format_duration,
    "co2e_kg": format_kilograms,
    "trained_share": "{:.2%}".format,
    "memory": lambda size: f"{size / 2**30:.2f} GiB",
    "kwh": "{:.3g} kWh".format,
    "dollars": "{:.3g} $".format,
}


LAW_HEAD = ("law", "", "95 % interval")
LAW_NOTE = (
    "loss = floor + size / parameters ^ size power + tokens / tokens read ^ tokens power, fitted to the rows that are "
    "no check. Parameters are those of the blocks; repeated tokens count less than new ones. Intervals: bootstrap over "
    "runs."
)
"""The law of the loss by parameters and tokens."""


def render_study_text(results: StudyResults) -> str:
    """Render study.md."""
    study, measures = results["study"], results["measures"]
    paper, paper_table = study["paper"], study["paper"]["table"]
    claims = [
        (claim["text"], f"**{format_verdict(results, claim)}**", claim["measure"], format_difference(claim))
        for claim in results["claims"]
    ]
    failures = [(failure["label"], failure["message"]) for failure in results["failures"]]
    claims_table = _format_table(("claim", "verdict", "measure", "difference"), claims)
    parts = [
        f"# {_escape(study['title'])}",
        _escape(study["question"] or ""),
        f"Source: {_escape(paper['citation'])}" if paper["citation"] else "",
        *(["## Claims", claims_table, f"{results['rule']}\n{format_tuning(results)}"] if claims else []),
        "## Table",
        _format_table(("", *(measure["name"] for measure in measures)), list_rows(results)),
        format_marks(results),
        *(["## Law", _format_table(LAW_HEAD, law), LAW_NOTE] if (law := list_law(results)) else []),
        f"The paper: {_escape(paper_table['caption'])}" if paper_table else "",
        _format_table(("", *paper_table["columns"]), list_paper_rows(paper_table)) if paper_table else "",
        _escape(paper["note"] or ""),
        "## Setting",
        _format_table(("", ""), list_settings(results)),
        "## Cost",
        _format_table(("", ""), list_costs(results)),
        format_other_devices(results),
        *(["## Not finished", _format_table(("step", "error"), failures)] if failures else []),
        f"```sh\n{format_command(results)}\n```\n",
    ]
    return "\n\n".join(filter(None, parts))


def _format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown, its cells escaped."""
    header, *lines = [[_escape(str(cell)).replace("|", "/") for cell in row] for row in (head, *rows)]
    return format_markdown(header, lines)


def _escape(text: str) -> str:
    """Return a text in one line of Markdown, without links and HTML.

    >>> print(_escape("[a](javascript:b) <b>"))
    \\[a](javascript:b) \\<b>
    """
    return re.sub(r"([\\\[<])", r"\\\1", " ".join(text.split()))


def format_verdict(results: StudyResults, claim: StudyClaim) -> str:
    """Return the verdict of a claim, marked if neither of its rows is better than the simplest baseline.

    A claim about rows that have not got beyond word frequencies is undecided for this reason.
    """
    if rows := claim.get("plateau_rows"):
        return f"undecided ({' and '.join(rows)} {'has' if len(rows) == 1 else 'have'} not got beyond word frequencies)"
    sides = (claim["better"], claim["measure"]), (claim["worse"], claim["against"])
    cells = [results["table"].get(row, {}).get(measure) for row, measure in sides]
    has_learned = any(cell is None or cell.get("is_above_baseline", True) for cell in cells)
    details = ["one pre-training"] if claim.get("is_one_pretraining") else []
    details += [format_deciding_budget(budget)] if (budget := claim.get("deciding_budget")) else []
    detail = f" ({'; '.join(details)})" if details else ""
    return f"{OUTCOME_LABELS.get(claim['outcome'], claim['outcome'])}{detail}{'' if has_learned else BASELINE_MARK}"


def format_deciding_budget(budget: DecidingBudget) -> str:
    """Return the seeds and test examples that would decide a claim, in words."""
    examples = f" and {budget['examples']:,} test examples" if "examples" in budget else ""
    return f"this difference would need {budget['seeds']:,} seeds{examples}"


def format_difference(claim: StudyClaim) -> str:
    """Return the mean paired difference of a claim with its standard error."""
    if claim.get("difference") is None:
        return ""
    error = "" if claim.get("error") is None else f" ± {claim['error']:.2g}"
    margin = f" (margin {claim['margin']:+g})" if claim["margin"] else ""
    return f"{claim['difference']:+.3g}{error}{margin}"


def format_tuning(results: StudyResults) -> str:
    """Return what was tuned, and which rows chose the largest or smallest of the learning rates that were tried."""
    default_note = "every cell uses the one of its settings, or the default of its model and method."
    tuned_actions = results.get("tuned_actions", [])
    if not tuned_actions:
        return f"Learning rates are not tuned: {default_note}"
    tries = " and ".join(f"{len(results['rates'][action])} of {ACTION_NAMES[action]}" for action in tuned_actions)
    untuned_names = [name for action, name in ACTION_NAMES.items() if action not in tuned_actions]
    text = f"Learning rates are tuned per cell on dev with the first seed; tries: {tries}."
    if not results["is_tuned"]:
        text += f" Those of {' and '.join(untuned_names)} are not: {default_note}"
    if edges := ", ".join(_list_edges(results)):
        text += f" The best is the largest or smallest of those tried for {edges}: a wider range may be better."
    return text


def _list_edges(results: StudyResults) -> list[str]:
    """Return the rows, with the factor, whose best learning rate has none beyond it that was tried."""
    edges: dict[str, None] = {}
    for choice in results.get("chosen_rates", []):
        factors = results["rates"][choice["action"]]
        if len(factors) > 2 and choice["factor"] in (min(factors), max(factors)):
            edges[f"{choice['row']} ({choice['factor']:g} x)"] = None
    return [*edges]


def list_rows(results: StudyResults) -> list[tuple[str, ...]]:
    """Return the rows of the table as text."""
    tables, measures = results["table"], results["measures"]
    return [
        (row, *(format_value(tables[row][name], m) if (name := m["name"]) in tables[row] else "" for m in measures))
        for row in results["rows"]
    ]


def list_law(results: StudyResults) -> list[tuple[str, str, str]]:
    """Return the numbers of a law, and the runs that check it, with their intervals; nothing without a law."""
    law = results.get("law")
    if law is None:
        return []
    rows = [
        (name.replace("_", " "), f"{value:.3g}", f"{low:.3g} to {high:.3g}")
        for name, (value, low, high) in law["coefficients"].items()
    ]
    for point in (point for point in law["points"] if point["is_check"]):
        text = f"{point['expected']:.4g} expected, {point['loss']:.4g} measured"
        rows.append((f"{law['loss']}, {point['row']}", text, f"{point['low']:.4g} to {point['high']:.4g}"))
    return rows


def list_paper_rows(paper_table: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the paper's table as text."""
    return [
        (row["name"], *("" if value is None else f"{value:g}" for value in row["values"]))
        for row in paper_table["rows"]
    ]


def is_score(measure: StudyMeasure) -> bool:
    """Return whether a measure is a score, not a cost."""
    return measure["amount"] is None


def find_best(results: StudyResults) -> dict[str, str]:
    """Return the row with the best mean of every score."""
    best: dict[str, str] = {}
    for measure in filter(is_score, results["measures"]):
        name, sign = measure["name"], -1 if measure["better"] == "lower" else 1
        means = {row: sign * cells[name]["mean"] for row, cells in results["table"].items() if name in cells}
        if len(means) > 1:
            best[name] = max(means, key=lambda row: means[row])
    return best


def format_value(cell: StudyCell, measure: StudyMeasure) -> str:
    """Return the mean of a cell, of a score with half of its interval."""
    if measure["amount"] is not None:
        return format_amount(cell["mean"], measure["amount"])
    low, high = cell["low"], cell["high"]
    half = "" if low is None or high is None else f" ± {(high - low) / 2:.2g}"
    plateau = "" if cell.get("is_beyond_unigram", True) else UNIGRAM_MARK
    return f"{cell['mean']:.4g}{half}{'' if cell.get('is_above_baseline', True) else BASELINE_MARK}{plateau}"


def format_marks(results: StudyResults) -> str:
    """Return the meaning of the marks in the table; empty without any."""
    cells = [cell for row in results["table"].values() for cell in row.values()]
    checks = {BASELINE_NOTE: "is_above_baseline", UNIGRAM_NOTE: "is_beyond_unigram"}
    return " ".join(text for text, check in checks.items() if not all(cell.get(check, True) for cell in cells))


def format_amount(value: float, amount: str) -> str:
    """Return an amount of a cost with its unit."""
    if amount in _AMOUNT_FORMATS:
        return _AMOUNT_FORMATS[amount](value)
    return f"{format_number(value, billion='G')}{'FLOP' if amount == 'flops' else ''}"


def list_settings(results: StudyResults) -> list[tuple[str, str]]:
    """Return the setting of a study as names and values."""
    budget = ", ".join(format_budget(name, value) for name, value in results["budget"].items())
    study = results["study"]
    rows = [
        ("study", f"{study['name']}, scale {results['scale']}"),
        ("matched budget", budget or "none"),
        ("seeds", ", ".join(map(str, results["seeds"]))),
        ("learning rates", format_tuning(results)),
        ("scale", results["scale_about"]),
    ]
    common = {setting["path"]: setting["value"] for setting in study["settings"]}
    scale = next((entry["scale"] for entry in study["scales"] if entry["name"] == results["scale"]), None)
    if scale is not None:
        common |= {setting["path"]: setting["value"] for setting in scale["settings"]}
    rows += [*(common | results.get("overrides", {})).items()]
    return [(name, value) for name, value in rows if value]


def format_budget(name: str, value: float) -> str:
    """Return one limit of a budget."""
    if name == "seconds":
        return f"{format_duration(value)} of wall-clock time"
    if name == "flops":
        return f"{format_number(value, billion='G')}FLOP (generator and teacher included)"
    return f"{format_number(value)} {name}"


def list_costs(results: StudyResults) -> list[tuple[str, str]]:
    """Return the cost of the whole study as names and values."""
    cost = results["cost"]
    rows = [
        ("steps", f"{cost['steps']:,} of {cost['planned_steps']:,}"),
        *_list_times(cost),
        ("training FLOPs", f"{format_number(cost['flops'], billion='G')}FLOP"),
        *_list_utilisation(cost),
        ("energy", f"{cost['kwh']:.3g} kWh"),
        ("CO2e", format_kilograms(cost["co2e_kg"])),
        ("price", f"{cost['dollars']:.2f} $"),
        ("device", ", ".join(cost["devices"])),
    ]
    if cost["jobs"] > 1:
        note = "" if cost["devices"] == ["cpu"] else "; they share energy and price of the device"
        rows.append(("side by side", f"up to {cost['jobs']} steps{note}"))
    return rows


def _list_utilisation(cost: StudyCost) -> Iterator[tuple[str, str]]:
    """Yield the MFU over all pre-trainings: their FLOPs relative to the peak of the device while any of them ran."""
    devices = [device for name in cost["devices"] if (device := find_device(name)) is not None]
    seconds = cost.get("pretrain_seconds")
    if len(devices) == 1 and seconds:
        peak = devices[0].flops[devices[0].precision]
        share = cost.get("pretrain_flops", 0.0) / (seconds * peak)
        time_text = f"{format_duration(seconds)} with start, compilation and validation"
        yield "MFU over all pre-trainings", f"{share:.1%} of {format_number(peak, billion='G')}FLOP/s; {time_text}"


def _list_times(cost: StudyCost) -> Iterator[tuple[str, str]]:
    """Yield CPU time and wall-clock time of all steps; other work of the machine lengthens only the latter."""
    cpu_seconds, estimate = cost.get("cpu_seconds") or 0.0, cost.get("estimated_seconds")
    on_cpu = cost["devices"] == ["cpu"]
    plan_text = f" (planned: {format_duration(estimate)})" if estimate else ""
    if cpu_seconds:
        yield "CPU time of all steps", f"{format_duration(cpu_seconds)}{plan_text if on_cpu else ''}"
    wall_seconds = cost.get("wall_seconds") or cost["seconds"]
    is_shared = on_cpu and wall_seconds > BUSY_FACTOR * cpu_seconds > 0
    busy = "; the machine had other work" if is_shared else ""
    wall_text = f"{format_duration(wall_seconds)}{busy}{'' if on_cpu else plan_text}"
    yield "wall-clock time, one after the other", wall_text


def format_other_devices(results: StudyResults) -> str:
    """Return the time of the arithmetic alone on known devices."""
    times = [f"{name} {format_duration(value)}" for name, value in results["cost"]["arithmetic_seconds"].items()]
    return f"Arithmetic alone on other devices: {', '.join(times)}."


def format_command(results: StudyResults) -> str:
    """Return the command that repeats the study."""
    source, seeds = shlex.quote(results["source"]), len(results["seeds"])
    changes = [f" --set {shlex.quote(f'{path}={value}')}" for path, value in results.get("overrides", {}).items()]
    out = f"runs/{results['study']['name']}"
    return f"pretune compare {source} --scale {results['scale']} --seeds {seeds}{''.join(changes)} --out {out}"
