"""Progress of a run, a bar if stderr is a terminal, otherwise an occasional line; and the summary table at its end.

    with Progress("bert-mini", total=10_000) as progress:
        progress(step, loss=3.2, tokens=tokens_so_far, flops=flops_so_far, elapsed_seconds=seconds_so_far)

Rates cover the last half minute; the remaining time follows a smoothed mean. Calling it after every step is cheap.
Everything goes to stderr; stdout is reserved for results.
"""

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, Self

from pretune.core import log
from pretune.core.log import (
    COST_SPAN,
    TRAINING_TIME,
    align_columns,
    format_dollars,
    format_duration,
    format_energy,
    format_kilograms,
    format_number,
)
from pretune.training.records import CostFile, RunSummaryRecord

_LINE_SECONDS = 10.0  # between lines
_FRAME_SECONDS = 0.1  # between updates of the bar
_WINDOW_SECONDS = 30.0  # window of rates


class OverheadEstimator(Protocol):
    """Estimate of the work besides training steps: evaluation between steps and after the last."""

    def get_elapsed(self) -> float:
        """Return the seconds of such work so far."""

    def estimate_remaining(self, step_seconds: float, step: int) -> float:
        """Return the expected seconds of such work after a step, given the mean seconds of a step."""


class _ProgressPoint(NamedTuple):
    time: float
    step: int
    tokens: int
    flops: float
    overhead: float  # seconds outside training steps


class Progress:
    """Shows a run of `total` steps or `budget` seconds; nothing with --quiet. `peak` FLOP/s are needed for the MFU.

    Without a terminal, it prints a line every ten seconds, or every `every` steps. `overhead` adds the time of
    evaluation and baselines to the remaining time.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int | None = None,
        budget: float | None = None,
        peak: float | None = None,
        every: int | None = None,
        overhead: OverheadEstimator | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._budget, self._peak, self._every = title, total, budget, peak, every
        self._timer, self._overhead = timer, overhead
        self._step_timer = _StepTimer()
        self._recent_points: deque[_ProgressPoint] = deque()
        self._last_shown: tuple[float, int] | None = None  # time and step
        self._bar: Any = None
        self._task: Any = None
        self._exit_stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if not log.is_quiet() and sys.stderr.isatty():
            self._bar = self._exit_stack.enter_context(_build_bar())
            self._task = self._bar.add_task(self._title, total=1.0, words="")
        return self

    def __exit__(self, *error: object) -> None:
        self._exit_stack.close()
        self._bar = None

    def __call__(
        self, step: int, *, elapsed_seconds: float, tokens: int = 0, flops: float = 0.0, loss: float | None = None
    ) -> None:
        """Show the completed steps; all values are totals of the run, including the processes it resumed."""
        if log.is_quiet():
            return
        timestamp = self._timer()
        overhead = 0.0 if self._overhead is None else self._overhead.get_elapsed()
        if self._recent_points:
            last = self._recent_points[-1]
            self._step_timer.add(step - last.step, timestamp - last.time - (overhead - last.overhead))
        self._recent_points.append(_ProgressPoint(timestamp, step, tokens, flops, overhead))
        while len(self._recent_points) > 2 and timestamp - self._recent_points[0].time > _WINDOW_SECONDS:
            self._recent_points.popleft()
        if self._is_due(timestamp, step):
            self._last_shown = (timestamp, step)
            self._show(step, elapsed_seconds, loss)

    def _is_due(self, timestamp: float, step: int) -> bool:
        if self._last_shown is None or step == self._total:
            return True
        last_timestamp, last_step = self._last_shown
        if self._bar is None and self._every:
            return step - last_step >= self._every
        return timestamp - last_timestamp >= (_LINE_SECONDS if self._bar is None else _FRAME_SECONDS)

    def _show(self, step: int, elapsed_seconds: float, loss: float | None) -> None:
        fraction, remaining = self._estimate_remaining(step, elapsed_seconds)
        text = self.format_status(step, loss, remaining)
        if self._bar is not None:
            self._bar.update(self._task, completed=fraction, words=text)
        else:
            log.info(f"{self._title}: {text}" if self._budget is None else f"{self._title}: {fraction:.0%}, {text}")

    def format_status(self, step: int, loss: float | None, remaining: float | None) -> str:
        """Format a progress line."""
        first, last = self._recent_points[0], self._recent_points[-1]
        seconds = last.time - first.time
        parts = [f"step {step:,}" + (f"/{self._total:,}" if self._total else "")]
        if loss is not None:
            parts.append(f"loss {loss:.4g}")
        if seconds > 0 and last.tokens > first.tokens:
            parts.append(f"{format_number((last.tokens - first.tokens) / seconds)} tok/s")
        if seconds > 0 and self._peak and last.flops > first.flops:
            parts.append(f"MFU {(last.flops - first.flops) / seconds / self._peak:.0%}")
        if remaining is not None:
            parts.append(f"{format_duration(remaining)} left")
        return ", ".join(parts)

    def _estimate_remaining(self, step: int, elapsed_seconds: float) -> tuple[float, float | None]:
        """Return the completed fraction, and the remaining seconds if known."""
        if self._budget is not None:
            return min(elapsed_seconds / self._budget, 1.0), max(self._budget - elapsed_seconds, 0.0)
        if self._total is None:
            return 0.0, None
        fraction, step_seconds = min(step / max(self._total, 1), 1.0), self._step_timer.step_seconds
        if step_seconds is None:
            return fraction, None
        overhead = 0.0 if self._overhead is None else self._overhead.estimate_remaining(step_seconds, step)
        return fraction, (self._total - step) * step_seconds + overhead


class _StepTimer:
    """Exponentially weighted mean seconds of a step, over a third of the run so far or half a minute."""

    def __init__(self) -> None:
        self._steps = self._seconds = self._total = 0.0

    def add(self, steps: int, seconds: float) -> None:
        self._total += seconds
        decay = math.exp(-seconds / max(_WINDOW_SECONDS, self._total / 3))
        self._steps, self._seconds = self._steps * decay + steps, self._seconds * decay + seconds

    @property
    def step_seconds(self) -> float | None:
        return self._seconds / self._steps if self._steps else None


def _build_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    status = TextColumn("{task.fields[words]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), status)
    return Bar(*columns, console=Console(stderr=True), transient=True)


def build_rows(summary: RunSummaryRecord) -> list[tuple[str, str]]:
    """Return the (name, value) rows of the summary table."""
    return [*_iter_results(summary), *_iter_times(summary), *_iter_costs(summary["cost"])]


def _iter_results(summary: RunSummaryRecord) -> Iterator[tuple[str, str]]:
    loss, unigram_loss = summary.get("loss"), summary.get("unigram_loss")
    held_out, skipped_steps = summary.get("held_out") or {}, summary.get("skipped")
    if loss is not None:
        yield "loss", f"{loss:.4f}"
    if "loss" in held_out:
        yield "validation loss", f"{held_out['loss']:.4f}"
    for name, value in held_out.items():
        if name != "loss":
            yield f"validation {name.replace('_', ' ')}", f"{value:.4g}"
    if unigram_loss is not None:
        yield "unigram loss", f"{unigram_loss:.4f}"
    suffix = f" ({skipped_steps:,} skipped: non-finite)" if skipped_steps else ""
    yield "steps", f"{summary['steps']:,}{suffix}"
    yield "tokens", f"{summary['tokens']:,}"
    for warning in summary["warnings"]:
        yield "warning", warning


def _iter_times(summary: RunSummaryRecord) -> Iterator[tuple[str, str]]:
    seconds, cost = max(summary["seconds"], 1e-9), summary["cost"]
    yield TRAINING_TIME, format_duration(summary["seconds"])
    yield "tokens/s", format_number(summary["tokens"] / seconds)
    if cost["mfu"] is not None:
        yield "MFU", f"{cost['mfu']:.1%} of {format_number(cost.get('peak_flops') or 0, billion='G')}FLOP/s"
    yield "waiting for data", f"{summary['waiting'] / seconds:.1%}"
    yield "saving", f"{summary['saving'] / seconds:.1%}"
    yield "evaluating", f"{summary['evaluating'] / seconds:.1%}"


def _iter_costs(cost: CostFile) -> Iterator[tuple[str, str]]:
    methods = "; ".join(f"{part['what']}: {part['how']}" for part in cost["energy"])
    details = "; ".join([cost["energy_label"], *([methods] if methods else []), COST_SPAN])
    yield "FLOPs", f"{format_number(cost['flops'], billion='G')}FLOP"
    yield "energy", f"{format_energy(cost['kwh'])} ({details})"
    yield "CO2e", f"{format_kilograms(cost['co2e_kg'])} (at {cost['grid_g_per_kwh']:g} g/kWh)"
    prices = [f"${cost['dollars_per_device_hour']:g} per hour"] if cost["dollars_per_device_hour"] else []
    prices += [f"${cost['dollars_per_kwh']:g} per kWh"] if cost["dollars_per_kwh"] else []
    yield "price", f"{format_dollars(cost['dollars'])} ({cost['price_label']}: {', '.join(prices) or 'no cost'})"


def show_summary(title: str, summary: RunSummaryRecord) -> None:
    """Print the summary of a run; nothing with --quiet."""
    if log.is_quiet():
        return
    if not sys.stderr.isatty():
        log.info("\n".join([title, *align_columns(build_rows(summary))]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    for name, value in build_rows(summary):
        table.add_row(Text(name, style="dim"), Text(value))
    console = Console(stderr=True, highlight=False)
    console.print(Text(log.escape(title), style="bold"))
    console.print(table)
