"""Parts of a training step: the model with its loss, counts over micro-batches and ranks, metrics, and the train state.

Sums and counts are computed on the device. Step metrics are copied to the host asynchronously and read one step late,
so the loop never waits for the GPU.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, get_type_hints

import torch
from torch import Tensor, nn

from pretune.core import config
from pretune.core.errors import CheckpointError
from pretune.core.types import Batch, Loss
from pretune.data.plan import BatchShape
from pretune.models.cost import estimate_memory
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.cache import Memory
from pretune.training.config import TrainConfig
from pretune.training.distributed import Ranks

MICRO_TOKENS = 8192
"""Tokens of a micro-batch on a CPU, where more is not faster."""
MEMORY_SHARE = 0.85
"""Usable share of a GPU's memory."""


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Counters over the whole run, across processes. Data order, corruption and dropout are functions of `step`."""

    step: int = 0  # the next step
    tokens: int = 0  # padding excluded
    elapsed_seconds: float = 0.0  # seconds of training, evaluation and saving
    skipped_steps: int = 0  # steps with a non-finite gradient
    consecutive_skips: int = 0  # consecutive skipped steps
    micro: int = 1  # micro-batches per rank and step
    min_micro: int = 1  # minimum of `micro` after running out of memory
    phases: list[int] = field(default_factory=lambda: [0])  # first step of each phase so far
    progress: list[float] = field(default_factory=list)  # of each step in a run with a time budget (`--budget`)
    planned_ends: list[int] = field(default_factory=list)  # end step of each phase, when repeating a run with a budget
    anchor: tuple[float, float] = (0.0, -1.0)  # progress and elapsed time at the start of the phase; -1: unknown
    lead: float = 0.0  # seconds of the first step of a phase
    last_eval_step: int = -1  # step of the last evaluation
    eval_metrics: dict[str, float] = field(default_factory=dict)  # metrics of the last evaluation
    best: float | None = None  # validation loss
    best_step: int | None = None
    data_wait: float = 0.0  # seconds waiting for data
    saving: float = 0.0  # seconds saving checkpoints
    evaluating: float = 0.0  # seconds evaluating
    metrics_bytes: int = 0  # bytes of metrics.jsonl
    meter: dict[str, Any] = field(default_factory=dict)  # totals of FLOPs and energy

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "TrainState":
        """Build from JSON values; raises a CheckpointError for a missing, unknown or mistyped entry."""
        names = {part.name for part in fields(cls)}
        for name in sorted(names ^ set(facts)):
            problem = "lacks" if name in names else "has unknown entry"
            raise CheckpointError(f"train state {problem} '{name}'; it was written by another version of pretune")
        for name, annotation in get_type_hints(cls).items():
            config.check_record(annotation, facts[name], CheckpointError, f"'{name}' of the train state")
        return cls(**{**facts, "anchor": tuple(facts["anchor"])})


class TrainingObjective(Protocol):
    """Training objective: a pre-training objective, a task head, a distillation loss."""

    def counts(self, batch: Any) -> Mapping[str, Tensor]:
        """Return the number of targets of each loss term, known before the forward pass."""

    def loss(self, model: Any, batch: Any) -> Loss:
        """Return the summed loss of a batch."""


class StreamState:
    """State of contiguous streams between steps (`Batch.continues`): a memory's tensors, one row for each stream.

    Each micro-batch of a step continues its part of the streams. The state is detached: gradients reach the start of a
    window.
    """

    def __init__(self, length: int = 0) -> None:
        self.length = length  # of a memory of attention, in tokens; 0: nothing is carried
        self.tensors: dict[str, Tensor] = {}
        self._parts: list[dict[str, Tensor]] = []  # after this step, of its micro-batches so far
        self._rows = 0  # of these micro-batches

    def restart_step(self) -> None:
        """Forget the micro-batches of this step, which starts again."""
        self._parts, self._rows = [], 0

    def read(self, batch: Batch, memory: Memory) -> None:
        """Fill the memory of the next micro-batch with the state of its streams."""
        if batch.continues:
            part = slice(self._rows, self._rows + batch.rows)
            memory.load({name: tensor[part] for name, tensor in self.tensors.items()})

    def write(self, batch: Batch, memory: Memory) -> None:
        """Add the state of a micro-batch after its window."""
        self._parts.append(memory.state_dict())
        self._rows += batch.rows

    def finish_step(self, ok: Tensor | None = None) -> None:
        """Replace the state by that after the step; by zeros if the step is not `ok`: it may not be finite."""
        if self._parts:
            states = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
            self.tensors = states if ok is None else {n: torch.where(ok, t, 0) for n, t in states.items()}
        self.restart_step()

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Start without a state inside the block, and restore it afterwards: for an evaluation."""
        tensors, self.tensors = self.tensors, {}
        try:
            yield
        finally:
            self.tensors = tensors
            self.restart_step()


class ModelWithLoss(nn.Module):
    """Model whose forward returns the loss, so that DDP and FSDP hooks see all of the computation."""

    def __init__(self, model: nn.Module, objective: TrainingObjective, memory: int = 0) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.stream_state = StreamState(memory)

    def forward(self, batch: Batch) -> Loss:
        if not self.stream_state.length or getattr(batch, "continues", None) is None:
            return self.objective.loss(self.model, batch)
        assert isinstance(self.model, LanguageModel)
        memory = self.model.memory = self.model.new_memory(self.stream_state.length)
        try:
            self.stream_state.read(batch, memory)
            loss = self.objective.loss(self.model, batch)
            self.stream_state.write(batch, memory)
        finally:
            self.model.memory = None
        return loss


def sum_step_counts(
    objective: TrainingObjective, batches: Sequence[Batch], ranks: Ranks, stop_signal: int, elapsed_seconds: float
) -> dict[str, Tensor]:
    """Sum the target counts of each loss term and the tokens of a step over micro-batches and ranks.

    Also reduces the values the ranks must agree on: the stop signal and the mean elapsed time.
    """
    batch_counts = [{**objective.counts(batch), "tokens": count_tokens(batch)} for batch in batches]
    totals = torch.stack([torch.stack([*counts.values()]).double() for counts in batch_counts]).sum(0)
    rank_values = torch.tensor([stop_signal, elapsed_seconds / ranks.world], dtype=torch.float64)
    totals = torch.cat((totals, rank_values.to(totals.device, non_blocking=True)))
    return dict(zip([*batch_counts[0], "stop_signal", "elapsed_seconds"], ranks.sum(totals).unbind(), strict=True))


def count_tokens(batch: Batch) -> Tensor:
    """Count the tokens of a batch and its source, padding excluded."""
    tokens = (batch.sequence >= 0).sum()
    return tokens if batch.source is None else tokens + (batch.source.sequence >= 0).sum()


def reduce_over_ranks(loss: Loss, ranks: Ranks) -> Loss:
    """Sum losses and counts over all ranks, in float64."""
    terms: Mapping[str, Loss] = loss.get_terms()
    stacked_sums = [_stack_sums(term) for term in terms.values()]
    sums = torch.split(ranks.sum(torch.cat(stacked_sums)), [len(row) for row in stacked_sums])
    totals = {
        name: Loss(sum=row[0], count=row[1], weight=term.weight, correct=row[2] if len(row) > 2 else None)
        for (name, term), row in zip(terms.items(), sums, strict=True)
    }
    return Loss.from_parts(totals)


def _stack_sums(term: Loss) -> Tensor:
    """Stack sum, count and, if known, the number of correct predictions."""
    values = (term.sum, term.count) if term.correct is None else (term.sum, term.count, term.correct)
    return torch.stack([value.double() for value in values])


def count_micro_batches(
    shape: BatchShape, model: Model, ranks: Ranks, config: TrainConfig, min_micro_batches: int
) -> int:
    """Return the micro-batches per rank and step: as few as memory allows, at least `min_micro_batches`."""
    rows, row = shape.rows // ranks.world, shape.length + (shape.source or 0)
    precision = config.resolve_precision(ranks.device)
    room, micro = config.micro_tokens or _fit_micro_tokens(row, rows * row, model, ranks, precision), 1
    while rows // micro > 1 and (rows // micro * row > room or micro < min_micro_batches):
        micro = increase_micro_batches(micro, rows // micro)
    return micro


def _fit_micro_tokens(row: int, max_tokens: int, model: Model, ranks: Ranks, precision: torch.dtype | None) -> int:
    """Return the tokens of a micro-batch that fit into memory."""
    if ranks.device.type != "cuda":
        return MICRO_TOKENS
    free = MEMORY_SHARE * torch.cuda.get_device_properties(ranks.device).total_memory
    half: Literal["fp32", "bf16"] = "fp32" if precision is None else "bf16"

    def fits(tokens: int) -> bool:
        return estimate_memory(model, tokens=tokens, length=row, training=True, precision=half).total <= free

    tokens = max_tokens
    while tokens > row and not fits(tokens):
        tokens //= 2
    return tokens


def increase_micro_batches(micro: int, rows: int) -> int:
    """Return the next number of micro-batches above `micro` that divides the rows equally.

    >>> increase_micro_batches(4, 6), increase_micro_batches(4, 9)
    (8, 12)
    """
    return micro * next(factor for factor in range(2, rows + 1) if rows % factor == 0)


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
        self._pending: deque[tuple[int, float, dict[str, float], Tensor, torch.cuda.Event | None]] = deque()

    def put(self, step: int, lr: float, weights: dict[str, float], values: Tensor) -> None:
        """Enqueue `values` (float64): ok, norm, the REDUCED_METRICS, then sum and count of each loss term."""
        event = None
        if self._cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((step, lr, weights, values, event))

    def take(self, *, include_newest: bool = False) -> Iterator[StepMetrics]:
        """Yield the metrics of the steps before the newest (on a CPU or with `include_newest`: of all), in order."""
        while len(self._pending) > (1 if self._cuda and not include_newest else 0):
            step, lr, weights, values, event = self._pending.popleft()
            if event is not None:
                event.synchronize()
            ok, norm, tokens, stop_signal, elapsed_seconds, *pairs = values.tolist()
            terms = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(weights)}
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
                loss=sum(weight * mean for weight, mean in zip(weights.values(), means, strict=True)),
            )
