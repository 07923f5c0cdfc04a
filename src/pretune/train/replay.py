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
from pretune.train.packed import Packed

Run = Callable[[Batch, Mapping[str, Tensor]], Loss]
"""The forward and the backward pass of a batch, given the counts of its step."""
Record = Callable[[Callable[[], Loss]], tuple[Callable[[], None], Loss]]
"""Records what a function starts: what does it again, and where its result lies."""
WARM = 3
"""Steps of a form before it is recorded: what is compiled or looked up once happens in them."""
MOST = 4
"""Forms that are kept."""


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
        self._kept: dict[Hashable, _Recording] = {}
        self._off = False

    def __call__(self, run: Run, batch: Batch, told: Mapping[str, Tensor]) -> Loss:
        """What `run` does; gradients must be None before."""
        if self._off:
            return run(batch, told)
        packed = Packed.of([batch])
        # NOTE: a recording knows addresses: weights that were put elsewhere, or frozen, are another form.
        key = (packed.form, tuple(told), tuple((p.data_ptr(), p.requires_grad) for p in self._parameters))
        kept = self._kept.get(key)
        if kept is None:
            self._seen[key] += 1
            made = None if self._seen[key] <= WARM else self._keep(packed, run, told)
            if made is None:
                return run(batch, told)
            if len(self._kept) == MOST:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = kept = made
        packed.write(kept.memory)
        for name, value in told.items():
            kept.told[name].copy_(value)
        kept.again()
        for parameter, slope in kept.slopes:
            parameter.grad = slope
        return kept.loss

    def _keep(self, packed: Packed, run: Run, told: Mapping[str, Tensor]) -> _Recording | None:
        """A recording, or None where something in the pass cannot be recorded: nothing is from then on."""
        device = next(iter(told.values())).device
        memory = torch.empty(packed.form.size, dtype=torch.uint8, device=device)
        packed.write(memory)
        (batch,), given = packed.form.read(memory), {name: value.clone() for name, value in told.items()}
        try:
            again, loss = self._record(lambda: run(batch, given))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            log.warn(f"steps go on kernel by kernel: {str(error).strip().splitlines()[0][:200]}")
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
