"""What the device says of a step, read by the host a step later, so that it never waits for the device."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TOLD = ("tokens", "asked", "elapsed")
"""What is summed over the ranks with the counts of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One step, in numbers."""

    step: int
    ok: bool  # the gradient was finite and the weights were changed
    norm: float  # of the gradient, before it was clipped
    tokens: int
    asked: bool  # some rank was asked to stop
    elapsed: float  # seconds of the run, when the step began
    rate: float  # the learning rate, of the first group
    terms: dict[str, tuple[float, float]]  # sum and count of each term of the loss
    loss: float  # their means, weighted


class Late:
    """Small vectors on their way to the host; on a CPU they are there at once."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._kept: deque[tuple[int, float, list[str], list[float], Tensor, torch.cuda.Event | None]] = deque()

    def put(self, step: int, rate: float, weights: dict[str, float], values: Tensor) -> None:
        """`values` are ok, norm, what is `TOLD`, and sum and count of each term, in float64."""
        event = None
        if self._cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._kept.append((step, rate, list(weights), list(weights.values()), values, event))

    def take(self, *, all_of_them: bool = False) -> Iterator[Report]:
        """Those of the steps before the newest (with `all_of_them`, and on a CPU, that one too), in order."""
        while len(self._kept) > (1 if self._cuda and not all_of_them else 0):
            step, rate, names, weights, values, event = self._kept.popleft()
            if event is not None:
                event.synchronize()
            ok, norm, tokens, asked, elapsed, *pairs = values.tolist()
            terms = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(names)}
            means = (total / max(count, 1.0) for total, count in terms.values())
            yield Report(
                step=step,
                ok=bool(ok),
                norm=norm,
                tokens=int(tokens),
                asked=asked > 0,
                elapsed=elapsed,
                rate=rate,
                terms=terms,
                loss=sum(weight * mean for weight, mean in zip(weights, means, strict=True)),
            )
