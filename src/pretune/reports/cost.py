"""What runs cost, beside what is familiar; what was read; and the commands that repeat it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.core.counted import counted
from pretune.core.format import SPAN, TRAINING_TIME, amount, clock, dollars, energy, weight
from pretune.reports import facts
from pretune.reports.charts import magnitude_chart
from pretune.reports.co2_reference import driven, familiar
from pretune.reports.load import Ran, Results
from pretune.reports.markup import NOTHING, Child, Markup, code, element, joined, note, notes, pairs, table

Facts = Mapping[str, Any]
SUMS = ("seconds", "flops", "kwh", "co2e_kg", "dollars")
UNKNOWN = {"und": "unknown"}
LEAST = 0.0005
"""The share of a language that is told."""


def cost(runs: Sequence[Ran], results: Sequence[Results]) -> Markup:
    """A table of what each run took, the sum, and the sum among familiar figures."""
    paid = [(run, run.cost) for run in runs if run.cost is not None]
    others = _others(runs, results)
    if not paid:
        return NOTHING
    total = summed(runs, results)
    rows: list[Sequence[Child]] = [(run.name, _device(one), *_row(one)) for run, one in paid]
    if others:
        devices = dict.fromkeys(map(_device, others))
        rows.append((f"{counted(len(others), 'other runs')} of the table", ", ".join(devices), *_row(_sum(others))))
    if len(rows) > 1:
        rows.append(("together", "", *_row(total)))
    known, ours = familiar(), total["co2e_kg"]
    bars = [
        ("all of the above" if len(rows) > 1 else "this run", ours, True),
        *((one.name, one.kilograms, False) for one in known),
    ]
    return joined(
        [
            table(("", "device", TRAINING_TIME, "FLOPs", "energy", "CO2e", "price"), rows),
            note(f"Energy, CO2e and price are {SPAN}."),
            *(
                [note("Counted is the training of networks, not what preparing text and simple baselines took.")]
                if results
                else []
            ),
            element("p", f"{weight(ours)} of CO2e: as much as driving a car for {driven(ours)}."),
            magnitude_chart(bars, unit="kg of CO2e", show=[_heavy(value) for _, value, _ in bars]),
            notes("A logarithmic scale.", *(f"{one.name}: {one.source}." for one in known)),
            *(_how(run, one) for run, one in paid),
        ]
    )


def summed(runs: Sequence[Ran], results: Sequence[Results]) -> dict[str, float]:
    """What all runs took together, those of a comparison that are not shown among them."""
    return _sum([*(run.cost for run in runs if run.cost is not None), *_others(runs, results)])


def _others(runs: Sequence[Ran], results: Sequence[Results]) -> list[Facts]:
    """Of runs that lie beside results and are not shown, each once."""
    found = {path: one for result in results for path, one in result.others.items()}
    return [one for path, one in found.items() if path not in {run.path.resolve() for run in runs}]


def _sum(costs: Sequence[Facts]) -> dict[str, float]:
    return {name: sum(float(one[name]) for one in costs) for name in SUMS}


def _row(cost: Facts) -> tuple[str, ...]:
    flops = f"{amount(cost['flops'], billion='G')}FLOP"
    return clock(cost["seconds"]), flops, energy(cost["kwh"]), weight(cost["co2e_kg"]), dollars(cost["dollars"])


def _device(cost: Facts) -> str:
    return f"{cost['devices']} x {cost['device']}"


def _heavy(kilograms: float) -> str:
    return f"{kilograms / 1000:,.3g} t" if kilograms >= 1000 else weight(kilograms)


def _how(run: Ran, cost: Facts) -> Markup:
    return element("details", element("summary", f"{run.name}: how this is known"), pairs(facts.cost_rows(cost)))


def data(runs: Sequence[Ran], results: Sequence[Results]) -> Markup:
    """The data cards, each once."""
    cards = [card for card in [*(one.card for one in results), *(run.card for run in runs)] if card is not None]
    once = {str(card.get("fingerprint", number)): card for number, card in enumerate(cards)}
    named = [str((run.tree.get("data") or {}).get("path")) for run in runs if run.pretrained and run.card is None]
    missing = [note(f"{path}: its data card is not there any more (card.json).") for path in dict.fromkeys(named)]
    return joined([*(part for card in once.values() for part in _card(card)), *missing])


def _card(card: Facts) -> Iterator[Markup]:
    yield element("p", "; ".join(facts.splits(card)) + ".")
    yield table(("source", "licence", "documents", "tokens"), facts.sources(card))
    languages = [one for one in (card.get("languages") or {}).items() if one[1] >= LEAST][:8]
    told = [
        ("languages", ", ".join(f"{UNKNOWN.get(name, name)} {share:.1%}" for name, share in languages)),
        ("left out", ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in _left(card))),
        ("tokenizer", f"vocabulary {card['tokenizer']['vocab']:,}" if card.get("tokenizer") else ""),
        ("made by", str(card.get("command", ""))),
        ("fingerprint", str(card.get("fingerprint", ""))),
    ]
    yield pairs([(name, value) for name, value in told if value])


def _left(card: Facts) -> list[tuple[str, int]]:
    found = {**(card.get("skipped") or {}), **(card.get("dropped") or {})}
    return [(name, count) for name, count in found.items() if isinstance(count, int) and count]


def repeat(runs: Sequence[Ran], results: Sequence[Results], given: Sequence[Path], out: Path) -> Markup:
    """Commands that make all of it again, in order."""
    lines: list[str] = []
    for one in results:
        command = one.about.get("command")
        lines += [command] if isinstance(command, str) else map(str, command) if isinstance(command, list) else []
    lines += dict.fromkeys(line for line in map(prepared, runs) if line is not None)
    for run in (one for one in runs if one.tuned or one.pretrained):
        verb = "finetune" if run.tuned else "pretrain"
        lines.append(_typed(verb, "--config", run.path / "run.json", "--out", f"{run.path}-again"))
    lines.append(_typed("report", *given, "--out", out))
    return joined(
        [code(*lines), note("On a CPU the same settings, data and threads give the same weights, bit for bit.")]
    )


def prepared(run: Ran) -> str | None:
    """How its data is made again, where run.json looks for it: a card does not know where it lies.

    The tokenizer is the run's own, which is there even where the data is not.
    """
    command = (run.card or {}).get("command")
    if not command:
        return None
    place = str((run.tree.get("data") or {}).get("path") or "DATA")
    tokenizer = run.path if (run.path / "tokenizer.json").is_file() else Path(place, "tokenizer")
    names = {"DATA": place, "DATA/tokenizer": str(tokenizer)}
    return shlex.join(names.get(word, word) for word in shlex.split(str(command)))


def _typed(*words: object) -> str:
    """A command as a shell reads it."""
    return shlex.join(["pretune", *map(str, words)])
