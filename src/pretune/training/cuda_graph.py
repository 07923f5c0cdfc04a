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
from pretune.training.batch_buffer import PackedBatches

PassFunction = Callable[[Batch, Mapping[str, Tensor]], Loss]
"""The forward and the backward pass of a batch, given the counts of its step."""
RecordFunction = Callable[[Callable[[], Loss]], tuple[Callable[[], None], Loss]]
"""Records what a function starts: what does it again, and where its result lies."""
WARMUP_STEPS = 3
"""Steps of a form before it is recorded: what is compiled or looked up once happens in them."""
MAX_GRAPHS, MIN_IDLE_PASSES = 8, 32
"""Forms that are kept, and the passes that one of them must have been idle for to make room: where more forms than that
come in turn (one for each of many tasks), the rest goes kernel by kernel, and nothing is recorded over and over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """A pass, with what it reads and what it writes."""

    replay: Callable[[], None]
    memory: Tensor  # of the batch, flat
    counts: Mapping[str, Tensor]
    loss: Loss
    gradients: tuple[tuple[nn.Parameter, Tensor], ...]


class CudaGraphRunner:
    """Records the passes of forms that come again, and replays them; `loss` and gradients hold until the next."""

    def __init__(self, module: nn.Module, record: RecordFunction | None = None) -> None:
        self._parameters = list(module.parameters())
        self._record = record or CudaGraphRecorder()
        self._pass_counts: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}  # those used last at the end
        self._last_used: dict[Hashable, int] = {}  # in which pass
        self._passes = 0
        self._is_disabled = False

    def __call__(self, run: PassFunction, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """What `run` does; gradients must be None before."""
        if self._is_disabled:
            return run(batch, counts)
        packed = PackedBatches.from_batches([batch])
        # NOTE: a recording knows addresses: weights that were put elsewhere, or frozen, are another form.
        key = (packed.layout, tuple(counts), tuple((p.data_ptr(), p.requires_grad) for p in self._parameters))
        self._passes += 1
        kept = self._recordings.pop(key, None)
        if kept is None:
            self._pass_counts[key] += 1
            made = (
                None
                if self._pass_counts[key] <= WARMUP_STEPS or not self._make_room()
                else self._record_pass(packed, run, counts)
            )
            if made is None:
                return run(batch, counts)
            kept = made
        self._recordings[key], self._last_used[key] = kept, self._passes
        packed.write(kept.memory)
        for name, value in counts.items():
            kept.counts[name].copy_(value)
        kept.replay()
        for parameter, slope in kept.gradients:
            parameter.grad = slope
        return kept.loss

    def _make_room(self) -> bool:
        """Whether another form may be recorded; one that was not used for long goes."""
        oldest = next(iter(self._recordings), None)
        if len(self._recordings) < MAX_GRAPHS or oldest is None:
            return True
        if self._passes - self._last_used[oldest] < MIN_IDLE_PASSES:
            return False
        del self._recordings[oldest], self._last_used[oldest]
        return True

    def _record_pass(self, packed: PackedBatches, run: PassFunction, counts: Mapping[str, Tensor]) -> _Recording | None:
        """A recording, or None where something in the pass cannot be recorded: nothing is from then on."""
        device = next(iter(counts.values())).device
        memory = torch.empty(packed.layout.size, dtype=torch.uint8, device=device)
        packed.write(memory)
        (batch,), given = packed.layout.read(memory), {name: value.clone() for name, value in counts.items()}
        try:
            again, loss = self._record(lambda: run(batch, given))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            said = str(error).strip() or type(error).__name__
            log.warn(f"steps go on kernel by kernel: {said.splitlines()[0][:200]}")
            self._is_disabled = True
            self._recordings.clear()
            clear_gradients(self._parameters)
            return None
        slopes = tuple((p, p.grad) for p in self._parameters if p.grad is not None)
        clear_gradients(self._parameters)
        return _Recording(replay=again, memory=memory, counts=given, loss=loss, gradients=slopes)


class CudaGraphRecorder:
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


def clear_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """No gradients."""
    for parameter in parameters:
        parameter.grad = None
