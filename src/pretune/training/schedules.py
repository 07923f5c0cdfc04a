"""Learning-rate schedules: pure functions from where a run stands to a factor on the peak rate.

`compute_factor(step, total)` is for a run of known length: `step` of `total` steps are done. `compute_factor_at(progress, step)` is for a run
that ends when a bell rings: `progress` is the share of the time that is gone. Both begin at 0 and end at the floor at
1 = `total` / `total`.

A warm-up below 1 is a share of the run, from 1 on a number of steps. When such a warm-up will be over cannot be said in
time: `compute_factor_at` then lets it rise by steps and the rest fall by time, one multiplied with the other.
"""

import math
from collections.abc import Callable
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import UsageError

DecayFunction = Callable[[float], float]


@spec
class Constant:
    """The same rate after the warm-up."""

    warmup: int | float = 0

    def __post_init__(self) -> None:
        _check_shares(self.warmup)

    def compute_factor(self, step: int, total: int) -> float:
        return _apply_warmup(self.warmup, step, total, lambda x: 1.0)

    def compute_factor_at(self, progress: float, step: int) -> float:
        return _apply_timed_warmup(self.warmup, progress, step, lambda x: 1.0)


@spec(kind="linear")
class LinearSchedule:
    """Up in a line, down in a line (BERT: 10,000 steps up of 1,000,000; RoBERTa: 24,000 of 500,000)."""

    warmup: int | float = 0.01
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(self.warmup, floor=self.floor)

    def compute_factor(self, step: int, total: int) -> float:
        return _apply_warmup(self.warmup, step, total, self._decay)

    def compute_factor_at(self, progress: float, step: int) -> float:
        return _apply_timed_warmup(self.warmup, progress, step, self._decay)

    def _decay(self, x: float) -> float:
        return self.floor + (1 - self.floor) * (1 - x)


@spec
class Cosine:
    """Half a cosine down (Loshchilov and Hutter, 2017; GPT-3 with floor 0.1)."""

    warmup: int | float = 0.01
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(self.warmup, floor=self.floor)

    def compute_factor(self, step: int, total: int) -> float:
        return _apply_warmup(self.warmup, step, total, self._decay)

    def compute_factor_at(self, progress: float, step: int) -> float:
        return _apply_timed_warmup(self.warmup, progress, step, self._decay)

    def _decay(self, x: float) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * x)) / 2


@spec
class InverseSquareRoot:
    """Up in a line, `hold` steps at the peak, then as 1 / √steps (Vaswani et al., 2017; T5: no warm-up, hold 10,000).

    It ends nowhere by itself; with `cooldown` the last share of the run goes down to zero in a line (Zhai et al.,
    2022), which is what a run against the clock wants.
    """

    warmup: int = 0
    hold: int = 0
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(0, cooldown=self.cooldown)
        if self.warmup < 0 or self.hold < 0:
            raise UsageError(f"warmup {self.warmup} and hold {self.hold} are numbers of steps, at least 0")

    def compute_factor(self, step: int, total: int) -> float:
        _check_total(total)
        return self.compute_factor_at(step / total, step)

    def compute_factor_at(self, progress: float, step: int) -> float:
        rise = step / self.warmup if step < self.warmup else 1.0
        peak = max(self.warmup + self.hold, 1)
        return rise * math.sqrt(peak / max(step, peak)) * _compute_cooldown_factor(progress, self.cooldown)


@spec
class Stable:
    """Warm-up, stable, decay (Hu et al., 2024): the peak rate until the last share `decay` of the run.

    Down in a line, or as 1 - √x (`root`), which Hägele et al. (2024) found best.
    """

    warmup: int | float = 0.01
    decay: float = 0.1
    shape: Literal["linear", "root"] = "linear"
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(self.warmup, floor=self.floor, decay=self.decay)
        if 0 < self.warmup < 1 and self.warmup + self.decay > 1:
            raise UsageError(f"warmup {self.warmup} and decay {self.decay} together take more than the whole run")

    def compute_factor(self, step: int, total: int) -> float:
        rise = _compute_warmup_factor(_resolve_warmup(self.warmup, total), step)
        return rise * self._decay(min(step / total, 1.0))

    def compute_factor_at(self, progress: float, step: int) -> float:
        rise = _compute_warmup_factor(self.warmup, progress if self.warmup < 1 else step)
        return rise * self._decay(min(progress, 1.0))

    def _decay(self, progress: float) -> float:
        left = _compute_cooldown_factor(progress, self.decay)
        return self.floor + (1 - self.floor) * (left if self.shape == "linear" else 1 - math.sqrt(1 - left))


@spec
class Slanted:
    """Slanted triangles (Howard and Ruder, 2018): a short rise from 1 / `ratio`, a long fall back to it."""

    cut: float = 0.1  # the share of the run that rises
    ratio: float = 32.0

    def __post_init__(self) -> None:
        if not 0 < self.cut < 1:
            raise UsageError(f"cut {self.cut} must lie between 0 and 1")
        if not self.ratio >= 1:
            raise UsageError(f"ratio {self.ratio} must be at least 1")

    @property
    def floor(self) -> float:
        """Where it begins and ends."""
        return 1 / self.ratio

    def compute_factor(self, step: int, total: int) -> float:
        _check_total(total)
        return self.compute_factor_at(step / total, step)

    def compute_factor_at(self, progress: float, step: int) -> float:
        x = min(progress, 1.0)
        height = x / self.cut if x < self.cut else (1 - x) / (1 - self.cut)
        return (1 + height * (self.ratio - 1)) / self.ratio


Schedule = Constant | LinearSchedule | Cosine | InverseSquareRoot | Stable | Slanted


def _apply_warmup(warmup: float, step: float, total: float, decay: DecayFunction) -> float:
    """Up to 1 until the warm-up's end, then down over what is left of the run."""
    begin = _resolve_warmup(warmup, total)
    if step < begin:
        return step / begin
    return decay(min((step - begin) / (total - begin), 1.0))


def _apply_timed_warmup(warmup: float, progress: float, step: int, decay: DecayFunction) -> float:
    if warmup < 1:
        return _apply_warmup(warmup, progress, 1.0, decay)
    return _compute_warmup_factor(warmup, step) * decay(min(progress, 1.0))


def _compute_warmup_factor(warmup: float, step: float) -> float:
    return step / warmup if step < warmup else 1.0


def _compute_cooldown_factor(progress: float, share: float) -> float:
    """1, and over the last share of the run down to 0."""
    left = max(1 - progress, 0.0)
    return 1.0 if left >= share else left / share


def _resolve_warmup(warmup: float, total: float) -> float:
    """How long a warm-up takes, in the unit of the total."""
    _check_total(total)
    if warmup < 1:
        return warmup * total
    if warmup >= total:
        raise UsageError(f"a warm-up of {warmup} steps leaves nothing of a run of {total}; give a share such as 0.1")
    return warmup


def _check_total(total: float) -> None:
    if not total > 0:
        raise UsageError(f"a run of {total} steps has no schedule; it needs at least 1")


def _check_shares(warmup: float, **shares: float) -> None:
    if warmup < 0 or (warmup >= 1 and warmup != int(warmup)):
        raise UsageError(f"warmup {warmup} must be a share below 1 or a whole number of steps")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UsageError(f"{name} {share} must lie between 0 and 1")
