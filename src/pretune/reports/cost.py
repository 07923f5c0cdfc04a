"""Sections of a report: cost, data, and commands to reproduce the runs."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pretune.core import io
from pretune.core.errors import DataError
from pretune.core.log import (
    COST_SPAN,
    TRAINING_TIME,
    format_count,
    format_dollars,
    format_duration,
    format_energy,
    format_kilograms,
    format_number,
)
from pretune.core.run_dir import RunDir
from pretune.reports import NO_MARKUP, Markup, code, element, facts, join, note, notes, pairs, table
from pretune.reports.facts import Facts
from pretune.reports.load import ComparisonResults, RunRecord

SUMMED_FIELDS = ("seconds", "flops", "kwh", "co2e_kg", "dollars")
CAR_KILOGRAMS_PER_METRE = 0.25 / 1000
"""Emissions of a car."""
UNKNOWN = {"und": "unknown"}
MIN_LANGUAGE_SHARE = 0.0005
"""Languages with a smaller share are not shown."""


def render_cost(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Markup:
    """Render the cost of each run, the total, and published emissions for comparison."""
    paid = [(run, run.cost) for run in runs if run.cost is not None]
    other_costs = _find_other_costs(runs, results)
    if not paid:
        return NO_MARKUP
    total = sum_costs(runs, results)
    rows = [(run.name, _format_device(cost), *_format_row(cost)) for run, cost in paid]
    if other_costs:
        devices = ", ".join(dict.fromkeys(map(_format_device, other_costs)))
        name = f"{format_count(len(other_costs), 'other runs')} of the comparison"
        rows.append((name, devices, *_format_row(_add_costs(other_costs))))
    ours, kilograms = "this run" if len(rows) == 1 else "total", total["co2e_kg"]
    rows += [("total", "", *_format_row(total))] if len(rows) > 1 else []
    references = io.read_json(Path(__file__).with_name("co2_references.json"), DataError)["things"]
    span = "Covers the training of networks, without data preparation and simple baselines."
    return join(
        [
            table(("", "device", TRAINING_TIME, "FLOPs", "energy", "CO2e", "price"), rows),
            note(f"Energy, CO2e and price are {COST_SPAN}."),
            note(span) if results else NO_MARKUP,
            element(
                "p",
                f"{format_kilograms(kilograms)} of CO2e, as much as driving a car for {format_distance(kilograms)}.",
            ),
            draw_emissions({ours: kilograms, **{entry["name"]: entry["kilograms"] for entry in references}}),
            notes("Logarithmic scale.", *(f"{entry['name']}: {entry['source']}." for entry in references)),
            *(_render_details(run, cost) for run, cost in paid),
        ]
    )


def draw_emissions(kilograms: Mapping[str, float]) -> Markup:
    """Draw bars on a logarithmic scale; the first one is highlighted."""
    values = [value for value in kilograms.values() if value > 0]
    low, high = min(values, default=1.0) / 3, max(values, default=1.0) * 1.2
    bars: list[Markup] = []
    for name, value in kilograms.items():
        share = max(100 * math.log(value / low) / math.log(high / low), 1.0) if value > 0 else 0.0
        text = f"{value / 1000:,.3g} t" if value >= 1000 else format_kilograms(value)
        track = element("span", element("b", style=f"width:{share:.1f}%"), kind="track")
        parts = element("span", name, kind="what"), track, element("span", text, kind="much")
        bars.append(element("div", *parts, kind="bar" if bars else "bar ours"))
    return element("div", *bars, kind="bars", role="img", aria_label="kg of CO2e, logarithmic scale")


def format_distance(kilograms: float) -> str:
    """Format the distance a car drives for the same emissions.

    >>> format_distance(0.0005), format_distance(2.5), format_distance(1e-6)
    ('2 m', '10 km', '0.4 cm')
    """
    metres = kilograms / CAR_KILOGRAMS_PER_METRE
    if metres < 1:
        return f"{100 * metres:.2g} cm"
    return f"{metres:.3g} m" if metres < 999.5 else f"{metres / 1000:,.3g} km"


def sum_costs(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> dict[str, float]:
    """Return the total cost of all runs, including runs of a comparison that are not shown."""
    return _add_costs([*(run.cost for run in runs if run.cost is not None), *_find_other_costs(runs, results)])


def _find_other_costs(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> list[Facts]:
    """Return the costs of runs that belong to results but are not shown, each once."""
    costs = {path: cost for result in results for path, cost in result.other_costs.items()}
    return [cost for path, cost in costs.items() if path not in {io.real_path(run.path) for run in runs}]


def _add_costs(costs: Sequence[Facts]) -> dict[str, float]:
    return {name: sum(float(cost[name]) for cost in costs) for name in SUMMED_FIELDS}


def _format_row(cost: Facts) -> tuple[str, ...]:
    flops = f"{format_number(cost['flops'], billion='G')}FLOP"
    return (
        format_duration(cost["seconds"]),
        flops,
        format_energy(cost["kwh"]),
        format_kilograms(cost["co2e_kg"]),
        format_dollars(cost["dollars"]),
    )


def _format_device(cost: Facts) -> str:
    return f"{cost['devices']} x {cost['device']}"


def _render_details(run: RunRecord, cost: Facts) -> Markup:
    summary = element("summary", f"{run.name}: measurement details")
    return element("details", summary, pairs(facts.build_cost_rows(cost)))


def render_data(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Markup:
    """Render the data cards, each once."""
    cards = [card for card in [*(result.card for result in results), *(run.card for run in runs)] if card is not None]
    unique_cards = {str(card.get("fingerprint", number)): card for number, card in enumerate(cards)}
    data_paths = [
        str((run.config.get("data") or {}).get("path")) for run in runs if run.is_pretrained and run.card is None
    ]
    missing = [note(f"{path}: data card (card.json) not found.") for path in dict.fromkeys(data_paths)]
    return join([*(part for card in unique_cards.values() for part in _render_card(card)), *missing])


def _render_card(card: Facts) -> Iterator[Markup]:
    yield element("p", "; ".join(facts.describe_splits(card)) + ".")
    yield table(facts.SOURCE_HEADER, facts.list_sources(card))
    yield pairs(build_data_rows(card))


def build_data_rows(card: Facts) -> facts.Rows:
    """Return rows on data: languages, dropped documents, tokenizer, command, fingerprint."""
    languages = [item for item in (card.get("languages") or {}).items() if item[1] >= MIN_LANGUAGE_SHARE][:8]
    rows = [
        ("languages", ", ".join(f"{UNKNOWN.get(name, name)} {share:.1%}" for name, share in languages)),
        ("dropped", ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in _list_dropped(card))),
        ("tokenizer", f"vocabulary {card['tokenizer']['vocab']:,}" if card.get("tokenizer") else ""),
        ("command", str(card.get("command", ""))),
        ("fingerprint", str(card.get("fingerprint", ""))),
    ]
    return [(name, value) for name, value in rows if value]


def _list_dropped(card: Facts) -> list[tuple[str, int]]:
    counts = {**(card.get("skipped") or {}), **(card.get("dropped") or {})}
    return [(name, count) for name, count in counts.items() if isinstance(count, int) and count]


def render_commands(
    runs: Sequence[RunRecord], results: Sequence[ComparisonResults], paths: Sequence[Path], out: Path
) -> Markup:
    """Render the commands that reproduce everything, in order."""
    lines = [line for result in results for line in result.list_lines("command")]
    lines += dict.fromkeys(line for line in map(build_prepare_command, runs) if line is not None)
    for run in (record for record in runs if record.is_finetuned or record.is_pretrained):
        verb = "finetune" if run.is_finetuned else "pretrain"
        lines.append(_format_command(verb, "--config", RunDir(run.path).settings, "--out", f"{run.path}-again"))
    lines.append(_format_command("report", *paths, "--out", out))
    promise = note("On a CPU the same settings, data and threads give the same weights, bit for bit.")
    return join([code(*lines), promise])


def build_prepare_command(run: RunRecord) -> str | None:
    """Return the command that prepares a run's data again at the path of run.json; the card does not know it.

    The tokenizer is the run's copy, which exists even without the data.
    """
    command = (run.card or {}).get("command")
    if not command:
        return None
    place = str((run.config.get("data") or {}).get("path") or "DATA")
    tokenizer = run.path if (run.path / "tokenizer.json").is_file() else Path(place, "tokenizer")
    names = {"DATA": place, "DATA/tokenizer": str(tokenizer)}
    return shlex.join(names.get(word, word) for word in shlex.split(str(command)))


def _format_command(*words: object) -> str:
    """Return a shell-quoted command."""
    return shlex.join(["pretune", *map(str, words)])
