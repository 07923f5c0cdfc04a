"""Summary table at the end of a run, on stderr; stdout is reserved for results."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pretune.core import log
from pretune.core.format import (
    COST_SPAN,
    TRAINING_TIME,
    align_pairs,
    format_dollars,
    format_duration,
    format_energy,
    format_kilograms,
    format_number,
)
from pretune.training.cost import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Results of a run over all its processes; times are of training, on rank 0."""

    title: str
    steps: int
    tokens: int
    seconds: float
    cost: Cost
    loss: float | None = None
    held_out: float | None = None
    held_out_metrics: Mapping[str, float] = field(default_factory=dict)
    skipped: int = 0
    waiting: float = 0.0  # seconds waiting for data
    saving: float = 0.0  # seconds blocked by checkpoints
    evaluating: float = 0.0

    def build_rows(self) -> list[tuple[str, str]]:
        """Return (name, value) rows."""
        return [*self._iter_results(), *self._iter_times(), *self._iter_costs()]

    def _iter_results(self) -> Iterator[tuple[str, str]]:
        if self.loss is not None:
            yield "loss", f"{self.loss:.4f}"
        if self.held_out is not None:
            yield "validation loss", f"{self.held_out:.4f}"
        for name, value in self.held_out_metrics.items():
            yield f"validation {name.replace('_', ' ')}", f"{value:.4g}"
        suffix = f" ({self.skipped:,} skipped: non-finite)" if self.skipped else ""
        yield "steps", f"{self.steps:,}{suffix}"
        yield "tokens", f"{self.tokens:,}"

    def _iter_times(self) -> Iterator[tuple[str, str]]:
        seconds = max(self.seconds, 1e-9)
        yield TRAINING_TIME, format_duration(self.seconds)
        yield "tokens/s", format_number(self.tokens / seconds)
        if self.cost.mfu is not None:
            yield "MFU", f"{self.cost.mfu:.1%} of {format_number(self.cost.peak_flops or 0, billion='G')}FLOP/s"
        for name, part in (
            ("waiting for data", self.waiting),
            ("saving", self.saving),
            ("evaluating", self.evaluating),
        ):
            yield name, f"{part / seconds:.1%}"

    def _iter_costs(self) -> Iterator[tuple[str, str]]:
        cost = self.cost
        methods = "; ".join(f"{part.what}: {part.how}" for part in cost.energy)
        yield "FLOPs", f"{format_number(cost.flops, billion='G')}FLOP"
        yield (
            "energy",
            f"{format_energy(cost.kwh)} ({'; '.join([cost.energy_label, *([methods] if methods else []), COST_SPAN])})",
        )
        yield "CO2e", f"{format_kilograms(cost.co2e_kg)} (at {cost.grid_g_per_kwh:g} g/kWh)"
        prices = [f"${cost.dollars_per_device_hour:g} per hour"] if cost.dollars_per_device_hour else []
        prices += [f"${cost.dollars_per_kwh:g} per kWh"] if cost.dollars_per_kwh else []
        yield "price", f"{format_dollars(cost.dollars)} ({cost.price_label}: {', '.join(prices) or 'no cost'})"


def show_summary(summary: RunSummary) -> None:
    """Print the summary of a run; nothing with --quiet."""
    if log.is_quiet():
        return
    if not sys.stderr.isatty():
        log.info("\n".join([summary.title, *align_pairs(summary.build_rows())]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    for name, value in summary.build_rows():
        table.add_row(Text(name, style="dim"), Text(value))
    console = Console(stderr=True, highlight=False)
    console.print(Text(log.escape(summary.title), style="bold"))
    console.print(table)
