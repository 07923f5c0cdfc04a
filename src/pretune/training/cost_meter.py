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
from pretune.training.batch_stats import Tally
from pretune.training.energy import Gauge, gauges


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


class Meter:
    """Counts while it runs, on top of what was counted `before`. On each machine one rank counts the `host`."""

    def __init__(
        self,
        flops: Callable[[Tally], float],
        device: torch.device | str,
        *,
        before: Totals | None = None,
        host: bool = True,
    ) -> None:
        self._flops, self._device, self._host = flops, torch.device(device), host
        self._before = before or Totals()
        self._seen, self._begun = Tally(), 0.0
        self._gauges: list[Gauge] = []
        self._joules: list[float] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to count."""
        self._begun, self._gauges = time.monotonic(), gauges(self._device, host=self._host)
        self._joules = [0.0] * len(self._gauges)
        self._over.clear()
        every = min((gauge.every for gauge in self._gauges if gauge.every), default=None)
        self._thread = threading.Thread(target=self._watch, args=(every,), daemon=True) if every else None
        if self._thread:
            self._thread.start()

    def stop(self) -> None:
        """End; `start` would go on."""
        self._before = self.totals()
        self._over.set()
        if self._thread:
            self._thread.join()
        self._seen, self._begun, self._gauges = Tally(), 0.0, []

    def add(self, tally: Tally) -> None:
        """Count a step."""
        self._seen += tally

    @property
    def flops(self) -> float:
        """All so far."""
        return self._before.flops + self._flops(self._seen)

    def totals(self) -> Totals:
        """All so far."""
        if not self._begun:
            return self._before
        self._read()
        drawn = [
            Energy(what=gauge.what, how=gauge.how, measured=gauge.measured, joules=joules)
            for gauge, joules in zip(self._gauges, self._joules, strict=True)
        ]
        return Totals(
            seconds=self._before.seconds + time.monotonic() - self._begun,
            flops=self.flops,
            energy=merged([*self._before.energy, *drawn]),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _watch(self, every: float) -> None:
        """Read counters that start again, or that are no counters, before it is too late."""
        while not self._over.wait(every):
            self._read()

    def _read(self) -> None:
        with self._lock:
            for number, gauge in enumerate(self._gauges):
                with contextlib.suppress(OSError):  # a counter that fails must not end a run
                    self._joules[number] = gauge.joules()


def merged(parts: Iterable[Energy]) -> tuple[Energy, ...]:
    """What was known of the same thing in the same way, summed."""
    found: dict[tuple[str, str], Energy] = {}
    for part in parts:
        before = found.get((part.what, part.how))
        joules = part.joules + (before.joules if before else 0.0)
        found[part.what, part.how] = replace(part, joules=joules)
    return tuple(found.values())
