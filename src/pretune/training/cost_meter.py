"""Counting what a run uses: time, FLOPs and energy, over all processes that it takes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch

from pretune.core.config import spec
from pretune.training.batch_stats import BatchStats
from pretune.training.energy import Gauge, find_gauges


@spec
class Energy:
    """What one part of the machine drew."""

    what: str
    how: str
    measured: bool
    joules: float


@spec
class Totals:
    """All that was counted, by one rank, in all processes of a run so far."""

    seconds: float = 0.0
    flops: float = 0.0
    energy: tuple[Energy, ...] = ()


class CostMeter:
    """Counts while it runs, on top of what was counted `before`. On each machine one rank counts the `host`."""

    def __init__(
        self,
        count_flops: Callable[[BatchStats], float],
        device: torch.device | str,
        *,
        initial_totals: Totals | None = None,
        include_host: bool = True,
    ) -> None:
        self._count_flops, self._device, self._include_host = count_flops, torch.device(device), include_host
        self._initial_totals = initial_totals or Totals()
        self._stats, self._start_time = BatchStats(), 0.0
        self._gauges: list[Gauge] = []
        self._joules: list[float] = []
        self._lock, self._stop_event = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to count."""
        self._start_time, self._gauges = time.monotonic(), find_gauges(self._device, host=self._include_host)
        self._joules = [0.0] * len(self._gauges)
        self._stop_event.clear()
        every = min((gauge.max_interval for gauge in self._gauges if gauge.max_interval), default=None)
        self._thread = threading.Thread(target=self._poll, args=(every,), daemon=True) if every else None
        if self._thread:
            self._thread.start()

    def stop(self) -> None:
        """End; `start` would go on."""
        self._initial_totals = self.compute_totals()
        self._stop_event.set()
        if self._thread:
            self._thread.join()
        self._stats, self._start_time, self._gauges = BatchStats(), 0.0, []

    def add(self, stats: BatchStats) -> None:
        """Count a step."""
        self._stats += stats

    @property
    def flops(self) -> float:
        """All so far."""
        return self._initial_totals.flops + self._count_flops(self._stats)

    def compute_totals(self) -> Totals:
        """All so far."""
        if not self._start_time:
            return self._initial_totals
        self._read_gauges()
        drawn = [
            Energy(what=gauge.component, how=gauge.method, measured=gauge.is_measured, joules=joules)
            for gauge, joules in zip(self._gauges, self._joules, strict=True)
        ]
        return Totals(
            seconds=self._initial_totals.seconds + time.monotonic() - self._start_time,
            flops=self.flops,
            energy=merge_energy([*self._initial_totals.energy, *drawn]),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _poll(self, interval: float) -> None:
        """Read counters that start again, or that are no counters, before it is too late."""
        while not self._stop_event.wait(interval):
            self._read_gauges()

    def _read_gauges(self) -> None:
        with self._lock:
            for number, gauge in enumerate(self._gauges):
                with contextlib.suppress(OSError):  # a counter that fails must not end a run
                    self._joules[number] = gauge.read_joules()


def merge_energy(parts: Iterable[Energy]) -> tuple[Energy, ...]:
    """What was known of the same thing in the same way, summed."""
    found: dict[tuple[str, str], Energy] = {}
    for part in parts:
        before = found.get((part.what, part.how))
        joules = part.joules + (before.joules if before else 0.0)
        found[part.what, part.how] = replace(part, joules=joules)
    return tuple(found.values())
