"""What the device says of a step, read by the host a step later, so that it never waits for the device."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

REDUCED_METRICS = ("tokens", "asked", "elapsed")
"""What is summed over the ranks with the counts of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One step, in numbers."""

    step: int
    ok: bool  # the gradient was finite and the weights were changed
    norm: float  # of the gradient, before it was clipped
    tokens: int
    stop_requested: bool  # some rank was asked to stop
    elapsed: float  # seconds of the run, when the step began
    lr: float  # the learning rate, of the first group
    terms: dict[str, tuple[float, float]]  # sum and count of each term of the loss
    loss: float  # their means, weighted


class MetricBuffer:
    """Small vectors on their way to the host; on a CPU they are there at once."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._pending: deque[tuple[int, float, list[str], list[float], Tensor, torch.cuda.Event | None]] = deque()

    def put(self, step: int, lr: float, weights: dict[str, float], values: Tensor) -> None:
        """`values` are ok, norm, what is `REDUCED_METRICS`, and sum and count of each term, in float64."""
        event = None
        if self._cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((step, lr, list(weights), list(weights.values()), values, event))

    def take(self, *, include_newest: bool = False) -> Iterator[StepMetrics]:
        """Those of the steps before the newest (with `all_of_them`, and on a CPU, that one too), in order."""
        while len(self._pending) > (1 if self._cuda and not include_newest else 0):
            step, rate, names, weights, values, event = self._pending.popleft()
            if event is not None:
                event.synchronize()
            ok, norm, tokens, asked, elapsed, *pairs = values.tolist()
            terms = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(names)}
            means = (total / max(count, 1.0) for total, count in terms.values())
            yield StepMetrics(
                step=step,
                ok=bool(ok),
                norm=norm,
                tokens=int(tokens),
                stop_requested=asked > 0,
                elapsed=elapsed,
                lr=rate,
                terms=terms,
                loss=sum(weight * mean for weight, mean in zip(weights, means, strict=True)),
            )
