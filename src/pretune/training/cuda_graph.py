"""A step as one CUDA graph, for models so small that it takes longer to start their kernels than to run them.

Shapes are the same step after step, so the fourth step of a form is recorded while it is started, kernel by kernel, and
from then on one call starts all of them. What a recording reads and writes stays where it is: batches are copied to its
inputs, and the gradients are its own. Dropout draws what it would have drawn.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pretune.core import log
from pretune.core.types import Batch, Loss
from pretune.training.batch_buffer import Packed

Run = Callable[[Batch, Mapping[str, Tensor]], Loss]
"""The forward and the backward pass of a batch, given the counts of its step."""
Record = Callable[[Callable[[], Loss]], tuple[Callable[[], None], Loss]]
"""Records what a function starts: what does it again, and where its result lies."""
WARM = 3
"""Steps of a form before it is recorded: what is compiled or looked up once happens in them."""
MOST, IDLE = 8, 32
"""Forms that are kept, and the passes that one of them must have been idle for to make room: where more forms than that
come in turn (one for each of many tasks), the rest goes kernel by kernel, and nothing is recorded over and over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """A pass, with what it reads and what it writes."""

    again: Callable[[], None]
    memory: Tensor  # of the batch, flat
    told: Mapping[str, Tensor]
    loss: Loss
    slopes: tuple[tuple[nn.Parameter, Tensor], ...]


class Replay:
    """Records the passes of forms that come again, and replays them; `loss` and gradients hold until the next."""

    def __init__(self, module: nn.Module, record: Record | None = None) -> None:
        self._parameters = list(module.parameters())
        self._record = record or Recorder()
        self._seen: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, _Recording] = {}  # those used last at the end
        self._used: dict[Hashable, int] = {}  # in which pass
        self._passes = 0
        self._off = False

    def __call__(self, run: Run, batch: Batch, told: Mapping[str, Tensor]) -> Loss:
        """What `run` does; gradients must be None before."""
        if self._off:
            return run(batch, told)
        packed = Packed.of([batch])
        # NOTE: a recording knows addresses: weights that were put elsewhere, or frozen, are another form.
        key = (packed.form, tuple(told), tuple((p.data_ptr(), p.requires_grad) for p in self._parameters))
        self._passes += 1
        kept = self._kept.pop(key, None)
        if kept is None:
            self._seen[key] += 1
            made = None if self._seen[key] <= WARM or not self._room() else self._keep(packed, run, told)
            if made is None:
                return run(batch, told)
            kept = made
        self._kept[key], self._used[key] = kept, self._passes
        packed.write(kept.memory)
        for name, value in told.items():
            kept.told[name].copy_(value)
        kept.again()
        for parameter, slope in kept.slopes:
            parameter.grad = slope
        return kept.loss

    def _room(self) -> bool:
        """Whether another form may be recorded; one that was not used for long goes."""
        oldest = next(iter(self._kept), None)
        if len(self._kept) < MOST or oldest is None:
            return True
        if self._passes - self._used[oldest] < IDLE:
            return False
        del self._kept[oldest], self._used[oldest]
        return True

    def _keep(self, packed: Packed, run: Run, told: Mapping[str, Tensor]) -> _Recording | None:
        """A recording, or None where something in the pass cannot be recorded: nothing is from then on."""
        device = next(iter(told.values())).device
        memory = torch.empty(packed.form.size, dtype=torch.uint8, device=device)
        packed.write(memory)
        (batch,), given = packed.form.read(memory), {name: value.clone() for name, value in told.items()}
        try:
            again, loss = self._record(lambda: run(batch, given))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            said = str(error).strip() or type(error).__name__
            log.warn(f"steps go on kernel by kernel: {said.splitlines()[0][:200]}")
            self._off = True
            self._kept.clear()
            clear(self._parameters)
            return None
        slopes = tuple((p, p.grad) for p in self._parameters if p.grad is not None)
        clear(self._parameters)
        return _Recording(again=again, memory=memory, told=given, loss=loss, slopes=slopes)


class Recorder:
    """By CUDA graphs that share their memory: one is replayed at a time."""

    def __init__(self) -> None:
        self._pool: Any = None  # a handle that torch gives out

    def __call__(self, run: Callable[[], Loss]) -> tuple[Callable[[], None], Loss]:
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        seed = generator.initial_seed()
        try:
            # NOTE: a thread of its own sends the next batch meanwhile, which is not to be taken for a part of this.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                loss = run()
        except RuntimeError:
            # NOTE: the generator still believes that it is recorded; with a state of its own it draws again.
            generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())
            generator.manual_seed(seed)
            raise
        self._pool = graph.pool()
        return graph.replay, loss


def clear(parameters: Iterable[nn.Parameter]) -> None:
    """No gradients."""
    for parameter in parameters:
        parameter.grad = None
