"""CUDA graphs of training steps, for models so small that launching kernels takes longer than running them.

Shapes are static, so the fourth step of a layout is captured, and later steps replay it with a single launch. A graph
reads and writes fixed addresses: batches are copied to its inputs, and it owns its gradients. Dropout draws the same
numbers as without a graph.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pretune.core import log
from pretune.core.types import Batch, Loss
from pretune.data.plan import BatchShape
from pretune.models.cost import estimate_memory
from pretune.models.spec import Model
from pretune.training.batch_transfer import PackedBatches
from pretune.training.config import TrainConfig

PassFunction = Callable[[Batch, Mapping[str, Tensor]], Loss]
"""Forward and backward pass of a batch, given the counts of its step."""
RecordFunction = Callable[[Callable[[], Loss]], tuple[Callable[[], None], Loss]]
"""Captures the kernels of a function; returns a replay function and the static result."""
WARMUP_STEPS = 3
"""Eager steps of a layout before capture, in which kernels are compiled and tuned."""
MAX_GRAPHS, MIN_IDLE_PASSES = 8, 32
"""Maximum number of graphs, and the passes a graph must be idle before it is replaced. If more layouts alternate (one
for each of many tasks), the others run eagerly, which avoids capturing over and over."""

GRAPH_MEMORY_SHARE = 0.5
"""Maximum memory share of a recorded step."""


@dataclass(slots=True, kw_only=True)
class _Recording:
    """A captured pass with its inputs and outputs."""

    replay: Callable[[], None]
    memory: Tensor  # flat buffer of the batch
    counts: Mapping[str, Tensor]
    loss: Loss
    gradients: tuple[tuple[nn.Parameter, Tensor], ...]
    last_used: int = 0  # number of the pass


class CudaGraphRunner:
    """Captures and replays passes of recurring layouts; loss and gradients are valid until the next call."""

    def __init__(self, module: nn.Module, record: RecordFunction | None = None) -> None:
        self._parameters = list(module.parameters())
        self._record = record or CudaGraphRecorder()
        self._pass_counts: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}  # in order of use, most recent last
        self._passes = 0
        self._is_disabled = False

    def __call__(self, run: PassFunction, batch: Batch, counts: Mapping[str, Tensor]) -> Loss:
        """Call `run`, or replay its graph; gradients must be None."""
        if self._is_disabled:
            return run(batch, counts)
        packed_batch = PackedBatches.from_batches([batch])
        # NOTE: a graph holds addresses: moved or newly frozen weights need another graph.
        key = (packed_batch.layout, tuple(counts), tuple((p.data_ptr(), p.requires_grad) for p in self._parameters))
        self._passes += 1
        recording = self._recordings.pop(key, None)
        if recording is None:
            self._pass_counts[key] += 1
            if self._pass_counts[key] > WARMUP_STEPS and self._make_room():
                recording = self._record_pass(packed_batch, run, counts)
            if recording is None:
                return run(batch, counts)
        self._recordings[key], recording.last_used = recording, self._passes
        packed_batch.write(recording.memory)
        for name, value in counts.items():
            recording.counts[name].copy_(value)
        recording.replay()
        for parameter, gradient in recording.gradients:
            parameter.grad = gradient
        return recording.loss

    def _make_room(self) -> bool:
        """Return True if another graph may be captured; evicts one that has been idle for long."""
        oldest = next(iter(self._recordings), None)
        if len(self._recordings) < MAX_GRAPHS or oldest is None:
            return True
        if self._passes - self._recordings[oldest].last_used < MIN_IDLE_PASSES:
            return False
        del self._recordings[oldest]
        return True

    def _record_pass(
        self, packed_batch: PackedBatches, run: PassFunction, counts: Mapping[str, Tensor]
    ) -> _Recording | None:
        """Capture a pass; on failure warn, return None and disable graphs."""
        device = next(iter(counts.values())).device
        memory = torch.empty(packed_batch.layout.size, dtype=torch.uint8, device=device)
        packed_batch.write(memory)
        (batch,) = packed_batch.layout.read(memory)
        static_counts = {name: value.clone() for name, value in counts.items()}
        try:
            replay, loss = self._record(lambda: run(batch, static_counts))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            message = str(error).strip() or type(error).__name__
            log.warn(f"CUDA graphs disabled, steps run eagerly: {message.splitlines()[0][:200]}")
            self._is_disabled = True
            self._recordings.clear()
            clear_gradients(self._parameters)
            return None
        gradients = tuple((p, p.grad) for p in self._parameters if p.grad is not None)
        clear_gradients(self._parameters)
        return _Recording(replay=replay, memory=memory, counts=static_counts, loss=loss, gradients=gradients)


class CudaGraphRecorder:
    """Capture by CUDA graphs that share one memory pool: only one is replayed at a time."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch's handle of the pool

    def __call__(self, run: Callable[[], Loss]) -> tuple[Callable[[], None], Loss]:
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        seed = generator.initial_seed()
        try:
            # NOTE: another thread copies the next batch meanwhile; its work must not become part of the graph.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                loss = run()
        except RuntimeError:
            # NOTE: the generator is still in capture mode; a new state makes it usable again.
            generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())
            generator.manual_seed(seed)
            raise
        self._pool = graph.pool()
        return graph.replay, loss


def clear_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Set all gradients to None."""
    for parameter in parameters:
        parameter.grad = None


def build_cuda_graph(
    shape: BatchShape, model: Model, config: TrainConfig, device: torch.device, loss_module: nn.Module
) -> CudaGraphRunner | None:
    """Return a CUDA graph runner for a GPU if the settings allow it and a recorded step fits into memory."""
    if config.cuda_graphs is False or config.activation_checkpointing or config.deterministic:
        return None
    has_host_sizes = any(getattr(module, "has_host_sizes", False) for module in loss_module.modules())
    if model.is_recurrent or has_host_sizes:  # a recurrent one orders the tokens by time steps; its kernels are long
        if config.cuda_graphs:
            log.warn("CUDA graphs disabled: the model needs the lengths of the sequences on the host")
        return None
    row = shape.length + (shape.source or 0)
    memory = estimate_memory(model, tokens=shape.rows * row, length=row, training=True, precision="bf16").total
    fits = memory < GRAPH_MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory
    return CudaGraphRunner(loss_module) if fits or config.cuda_graphs else None
