"""The model card of a run: what it is, what it read, how it learnt, what it cost."""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.core.config import kind
from pretune.recipes.reading import Source
from pretune.recipes.settings import Settings
from pretune.train.figures import amount, clock, dollars, energy, weight

Rows = list[tuple[str, str]]


def card(name: str, settings: Settings, source: Source, summary: dict[str, Any]) -> str:
    """The text of README.md."""
    return "\n".join(
        [
            *_head(name, settings, source.data.card),
            *table(_learnt(settings, summary)),
            "",
            "## What it read",
            *_read(source.data.card, source.data.fingerprint),
            "",
            "## What it cost",
            *table(cost_rows(summary["cost"])),
            "",
            "The whole configuration is in `run.json`; `pretune pretrain --config run.json --out DIR` repeats the run.",
            "",
        ]
    )


def _head(name: str, settings: Settings, data: Mapping[str, Any]) -> Iterator[str]:
    family, objective, start = settings.model.family, kind(settings.objective), settings.train.start
    yield from ("---", "library_name: pretune", f"tags: [{family}, {objective}]")
    languages = [one for one in data.get("languages", {}) if one.isalpha() and len(one) in (2, 3)]
    if languages:
        yield f"language: [{', '.join(languages[:20])}]"
    yield from ("---", f"# {plain(name)}", "")
    begun = "from scratch" if start is None else f"from the weights of `{plain(start)}`"
    made = "[pretune](https://pypi.org/project/pretune/)"
    yield f"A model of the family `{family}`, pre-trained {begun} with the objective `{objective}` by {made}."
    yield ""


def _learnt(settings: Settings, summary: Mapping[str, Any]) -> Rows:
    train, held = settings.train, summary.get("held_out") or {}
    return [
        ("parameters", f"{summary['parameters']:,}"),
        ("steps", f"{summary['steps']:,} of {train.batch_tokens:,} tokens ({summary['skipped']:,} skipped)"),
        ("tokens read", f"{summary['tokens']:,}"),
        ("sequence length", " then ".join(f"{phase.length:,}" for phase in settings.data.schedule.phases)),
        ("optimiser", f"{kind(train.optimizer)}, peak rate {train.lr:g}, {kind(train.schedule)} schedule"),
        ("seed", str(train.seed)),
        *((f"held-out {term.replace('_', ' ')}", f"{value:.4g}") for term, value in held.items()),
    ]


def _read(data: Mapping[str, Any], fingerprint: str) -> Iterator[str]:
    for name, split in data["splits"].items():
        yield f"- {name}: {split['tokens']:,} tokens in {split['documents']:,} documents ({split['bytes']:,} bytes)"
    yield from ("", "| source | licence | documents | tokens |", "|---|---|---|---|")
    for one in data["sources"]:
        used = one.get("train", {})
        licence = one.get("licence") or "not stated"
        yield (
            f"| {plain(one['name'])} | {plain(licence)} | {used.get('documents', 0):,} | {used.get('tokens', 0):,} |"
        )
    yield from ("", f"Fingerprint `{fingerprint}`; the data card beside the tokens says more.")


def cost_rows(cost: Mapping[str, Any]) -> Rows:
    """What a run cost, by name."""
    of = f" ({cost['mfu']:.1%} of the peak)" if cost["mfu"] else ""
    how = "; ".join(f"{part['what']}: {part['how']}" for part in cost["energy"])
    return [
        ("device", f"{cost['devices']} x {plain(cost['device'])}"),
        ("time", clock(cost["seconds"])),
        ("FLOPs", f"{amount(cost['flops'], billion='G')}FLOP{of}"),
        ("energy", f"{energy(cost['kwh'])} ({cost['energy_label']}; {how}; without {', '.join(cost['left_out'])})"),
        ("CO2e", f"{weight(cost['co2e_kg'])} (at {cost['grid_g_per_kwh']:g} g/kWh)"),
        ("price", f"{dollars(cost['dollars'])} ({cost['price_label']})"),
    ]


def table(rows: Rows) -> list[str]:
    """Names and values in Markdown."""
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def plain(text: str) -> str:
    """Text that is nothing but text in Markdown's tables and code."""
    return "".join(letter if letter.isprintable() and letter not in "|`<>" else "?" for letter in text)
