"""What runs cost, beside what is familiar; what was read; and the commands that repeat it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.core.format import (
    COST_SPAN,
    TRAINING_TIME,
    format_count,
    format_dollars,
    format_duration,
    format_energy,
    format_kilograms,
    format_number,
)
from pretune.reports import facts
from pretune.reports.charts import draw_magnitude_chart
from pretune.reports.co2_reference import format_distance, load_references
from pretune.reports.load import ComparisonResults, RunRecord
from pretune.reports.markup import NO_MARKUP, Child, Markup, code, element, join, note, notes, pairs, table

Facts = Mapping[str, Any]
SUMMED_FIELDS = ("seconds", "flops", "kwh", "co2e_kg", "dollars")
UNKNOWN = {"und": "unknown"}
MIN_LANGUAGE_SHARE = 0.0005
"""The share of a language that is told."""


def render_cost(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Markup:
    """A table of what each run took, the sum, and the sum among familiar figures."""
    paid = [(run, run.cost) for run in runs if run.cost is not None]
    others = _find_other_costs(runs, results)
    if not paid:
        return NO_MARKUP
    total = sum_costs(runs, results)
    rows: list[Sequence[Child]] = [(run.name, _format_device(one), *_format_row(one)) for run, one in paid]
    if others:
        devices = dict.fromkeys(map(_format_device, others))
        rows.append(
            (
                f"{format_count(len(others), 'other runs')} of the table",
                ", ".join(devices),
                *_format_row(_add_costs(others)),
            )
        )
    if len(rows) > 1:
        rows.append(("together", "", *_format_row(total)))
    known, ours = load_references(), total["co2e_kg"]
    bars = [
        ("all of the above" if len(rows) > 1 else "this run", ours, True),
        *((one.name, one.kilograms, False) for one in known),
    ]
    return join(
        [
            table(("", "device", TRAINING_TIME, "FLOPs", "energy", "CO2e", "price"), rows),
            note(f"Energy, CO2e and price are {COST_SPAN}."),
            *(
                [note("Counted is the training of networks, not what preparing text and simple baselines took.")]
                if results
                else []
            ),
            element("p", f"{format_kilograms(ours)} of CO2e: as much as driving a car for {format_distance(ours)}."),
            draw_magnitude_chart(bars, unit="kg of CO2e", labels=[_format_kilograms(value) for _, value, _ in bars]),
            notes("A logarithmic scale.", *(f"{one.name}: {one.source}." for one in known)),
            *(_render_details(run, one) for run, one in paid),
        ]
    )


def sum_costs(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> dict[str, float]:
    """What all runs took together, those of a comparison that are not shown among them."""
    return _add_costs([*(run.cost for run in runs if run.cost is not None), *_find_other_costs(runs, results)])


def _find_other_costs(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> list[Facts]:
    """Of runs that lie beside results and are not shown, each once."""
    found = {path: one for result in results for path, one in result.other_costs.items()}
    return [one for path, one in found.items() if path not in {run.path.resolve() for run in runs}]


def _add_costs(costs: Sequence[Facts]) -> dict[str, float]:
    return {name: sum(float(one[name]) for one in costs) for name in SUMMED_FIELDS}


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


def _format_kilograms(kilograms: float) -> str:
    return f"{kilograms / 1000:,.3g} t" if kilograms >= 1000 else format_kilograms(kilograms)


def _render_details(run: RunRecord, cost: Facts) -> Markup:
    return element("details", element("summary", f"{run.name}: how this is known"), pairs(facts.build_cost_rows(cost)))


def render_data(runs: Sequence[RunRecord], results: Sequence[ComparisonResults]) -> Markup:
    """The data cards, each once."""
    cards = [card for card in [*(one.card for one in results), *(run.card for run in runs)] if card is not None]
    once = {str(card.get("fingerprint", number)): card for number, card in enumerate(cards)}
    named = [str((run.config.get("data") or {}).get("path")) for run in runs if run.is_pretrained and run.card is None]
    missing = [note(f"{path}: its data card is not there any more (card.json).") for path in dict.fromkeys(named)]
    return join([*(part for card in once.values() for part in _render_card(card)), *missing])


def _render_card(card: Facts) -> Iterator[Markup]:
    yield element("p", "; ".join(facts.describe_splits(card)) + ".")
    yield table(("source", "licence", "documents", "tokens"), facts.list_sources(card))
    languages = [one for one in (card.get("languages") or {}).items() if one[1] >= MIN_LANGUAGE_SHARE][:8]
    told = [
        ("languages", ", ".join(f"{UNKNOWN.get(name, name)} {share:.1%}" for name, share in languages)),
        ("left out", ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in _list_dropped(card))),
        ("tokenizer", f"vocabulary {card['tokenizer']['vocab']:,}" if card.get("tokenizer") else ""),
        ("made by", str(card.get("command", ""))),
        ("fingerprint", str(card.get("fingerprint", ""))),
    ]
    yield pairs([(name, value) for name, value in told if value])


def _list_dropped(card: Facts) -> list[tuple[str, int]]:
    found = {**(card.get("skipped") or {}), **(card.get("dropped") or {})}
    return [(name, count) for name, count in found.items() if isinstance(count, int) and count]


def render_commands(
    runs: Sequence[RunRecord], results: Sequence[ComparisonResults], paths: Sequence[Path], out: Path
) -> Markup:
    """Commands that make all of it again, in order."""
    lines: list[str] = []
    for one in results:
        command = one.metadata.get("command")
        lines += [command] if isinstance(command, str) else map(str, command) if isinstance(command, list) else []
    lines += dict.fromkeys(line for line in map(build_prepare_command, runs) if line is not None)
    for run in (one for one in runs if one.is_finetuned or one.is_pretrained):
        verb = "finetune" if run.is_finetuned else "pretrain"
        lines.append(_format_command(verb, "--config", run.path / "run.json", "--out", f"{run.path}-again"))
    lines.append(_format_command("report", *paths, "--out", out))
    return join(
        [code(*lines), note("On a CPU the same settings, data and threads give the same weights, bit for bit.")]
    )


def build_prepare_command(run: RunRecord) -> str | None:
    """How its data is made again, where run.json looks for it: a card does not know where it lies.

    The tokenizer is the run's own, which is there even where the data is not.
    """
    command = (run.card or {}).get("command")
    if not command:
        return None
    place = str((run.config.get("data") or {}).get("path") or "DATA")
    tokenizer = run.path if (run.path / "tokenizer.json").is_file() else Path(place, "tokenizer")
    names = {"DATA": place, "DATA/tokenizer": str(tokenizer)}
    return shlex.join(names.get(word, word) for word in shlex.split(str(command)))


def _format_command(*words: object) -> str:
    """A command as a shell reads it."""
    return shlex.join(["pretune", *map(str, words)])
