"""Meter of time, FLOPs and energy, over all processes of a run."""

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
    """Energy used by one component of the machine."""

    what: str  # component
    how: str  # method of measurement
    measured: bool
    joules: float


@spec
class Totals:
    """Totals of one rank over all processes of a run."""

    seconds: float = 0.0
    flops: float = 0.0
    energy: tuple[Energy, ...] = ()


class CostMeter:
    """Counts while it runs, starting from `initial_totals`. On each machine one rank counts the host."""

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
        """Start counting."""
        self._start_time, self._gauges = time.monotonic(), find_gauges(self._device, host=self._include_host)
        self._joules = [0.0] * len(self._gauges)
        self._stop_event.clear()
        interval = min((gauge.max_interval for gauge in self._gauges if gauge.max_interval), default=None)
        self._thread = threading.Thread(target=self._poll, args=(interval,), daemon=True) if interval else None
        if self._thread:
            self._thread.start()

    def stop(self) -> None:
        """Stop counting; `start` continues."""
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
        """FLOPs so far."""
        return self._initial_totals.flops + self._count_flops(self._stats)

    def compute_totals(self) -> Totals:
        """Return the totals so far."""
        if not self._start_time:
            return self._initial_totals
        self._read_gauges()
        energy = [
            Energy(what=gauge.component, how=gauge.method, measured=gauge.is_measured, joules=joules)
            for gauge, joules in zip(self._gauges, self._joules, strict=True)
        ]
        return Totals(
            seconds=self._initial_totals.seconds + time.monotonic() - self._start_time,
            flops=self.flops,
            energy=merge_energy([*self._initial_totals.energy, *energy]),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _poll(self, interval: float) -> None:
        """Poll gauges that overflow or that report power, at their maximum interval."""
        while not self._stop_event.wait(interval):
            self._read_gauges()

    def _read_gauges(self) -> None:
        with self._lock:
            for number, gauge in enumerate(self._gauges):
                with contextlib.suppress(OSError):  # a failing counter must not end a run
                    self._joules[number] = gauge.read_joules()


def merge_energy(parts: Iterable[Energy]) -> tuple[Energy, ...]:
    """Sum energy of the same component and method."""
    energy_by_key: dict[tuple[str, str], Energy] = {}
    for part in parts:
        previous = energy_by_key.get((part.what, part.how))
        joules = part.joules + (previous.joules if previous else 0.0)
        energy_by_key[part.what, part.how] = replace(part, joules=joules)
    return tuple(energy_by_key.values())
