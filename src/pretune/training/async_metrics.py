"""Step metrics, copied to the host asynchronously and read one step late, so the loop never waits for the GPU."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

REDUCED_METRICS = ("tokens", "stop_signal", "elapsed_seconds")
"""Values summed over the ranks together with the counts of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Metrics of one training step."""

    step: int
    ok: bool  # the gradient was finite and the weights were updated
    norm: float  # of the gradient, before clipping
    tokens: int
    stop_requested: bool  # some rank received a stop signal
    elapsed_seconds: float  # of the run, at the start of the step
    lr: float  # learning rate of the first parameter group
    terms: dict[str, tuple[float, float]]  # sum and count of each loss term
    loss: float  # weighted sum of the terms' means


class MetricBuffer:
    """Queue of metric vectors being copied to the host; on a CPU they are available immediately."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._pending: deque[tuple[int, float, list[str], list[float], Tensor, torch.cuda.Event | None]] = deque()

    def put(self, step: int, lr: float, weights: dict[str, float], values: Tensor) -> None:
        """Enqueue `values` (float64): ok, norm, the REDUCED_METRICS, then sum and count of each loss term."""
        event = None
        if self._cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((step, lr, list(weights), list(weights.values()), values, event))

    def take(self, *, include_newest: bool = False) -> Iterator[StepMetrics]:
        """Yield the metrics of the steps before the newest (on a CPU or with `include_newest`: of all), in order."""
        while len(self._pending) > (1 if self._cuda and not include_newest else 0):
            step, lr, names, weights, values, event = self._pending.popleft()
            if event is not None:
                event.synchronize()
            ok, norm, tokens, stop_signal, elapsed_seconds, *pairs = values.tolist()
            terms = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(names)}
            means = (total / max(count, 1.0) for total, count in terms.values())
            yield StepMetrics(
                step=step,
                ok=bool(ok),
                norm=norm,
                tokens=int(tokens),
                stop_requested=stop_signal > 0,
                elapsed_seconds=elapsed_seconds,
                lr=lr,
                terms=terms,
                loss=sum(weight * mean for weight, mean in zip(weights, means, strict=True)),
            )
