"""The one training loop: pre-training, fine-tuning and distillation are values and hooks of it.

A step reads its micro-batches, adds up their gradients, each loss divided by the count of the whole step, and changes
the weights unless the gradient is not finite. Nothing in it makes the host wait for the device: whether a step counts
is decided there, and the host reads it a step later.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pretune.core.errors import ResourceError
from pretune.core.seed import mix
from pretune.core.types import Batch, Loss
from pretune.training.accumulate import finer, over_ranks, totals
from pretune.training.async_metrics import TOLD, Late, Report
from pretune.training.batch_stats import Tally
from pretune.training.cuda_graph import Replay
from pretune.training.distributed import Ranks
from pretune.training.loss_module import Trainee
from pretune.training.optim import clip, set_rates, step
from pretune.training.train_state import State

DROPOUT = 11
"""The purpose of the numbers that dropout draws; those of the data count from 1. NOTE: a change changes every run."""


class Batches(Protocol):
    """Where a step's micro-batches come from."""

    waited: float

    @property
    def seen(self) -> Tally:
        """What the last step was made of."""

    def __next__(self) -> Sequence[Batch]: ...

    def split(self, micro: int) -> None:
        """Go on from the step that was given last, in so many micro-batches."""


class Hook(Protocol):
    """What happens after steps: watching, logging, evaluating, saving, unfreezing. It may raise to end the run."""

    def __call__(self, loop: "Loop", reports: Sequence[Report]) -> None:
        """After every step, with what is known of steps since the last call."""


@dataclass(slots=True, kw_only=True)
class Loop:
    """Everything a step needs."""

    trainee: Trainee
    optimizer: Optimizer
    batches: Batches
    state: State
    ranks: Ranks
    rate: Callable[[State], float]  # the factor of every group's learning rate
    until: Callable[[State], bool]
    hooks: Sequence[Hook] = ()
    seed: int = 0
    clip: float | None = 1.0
    precision: torch.dtype | None = None  # of autocast
    wrapped: nn.Module | None = None  # the trainee, spread over devices; None: gradients are averaged after the pass
    replay: Replay | None = None  # of passes whose kernels are not worth starting one by one
    late: Late | None = None
    asked: int = 0  # a signal that asks this rank to stop
    begun: float = field(default_factory=time.monotonic)  # less the time of earlier processes

    def run(self) -> State:
        """Take steps until it is time to end; all that was reported late is given to the hooks."""
        self.late = self.late or Late(self.ranks.device)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        while not self.until(self.state):
            set_rates(self.optimizer, self.rate(self.state))
            batches = next(self.batches)
            told = totals(
                self.trainee.work, batches, self.ranks, asked=self.asked, elapsed=time.monotonic() - self.begun
            )
            losses = self._gradients(batches, told)
            if self.wrapped is None:
                self.ranks.average(parameters)
            norm = clip(parameters, self.clip)
            ok = torch.isfinite(norm) & torch.isfinite(losses.mean())
            step(self.optimizer, ok)
            self.optimizer.zero_grad(set_to_none=True)
            self._tell(losses, ok, norm, told)
            self.state.step += 1
            self._hear([*self.late.take()])
        self.settle()
        return self.state

    def settle(self) -> None:
        """Wait for the device, and hear what is still unread."""
        reports = [*self.late.take(all_of_them=True)] if self.late else []
        if reports:
            self._hear(reports)

    def _hear(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self.state.tokens += report.tokens
            self.state.elapsed = report.elapsed
        for hook in self.hooks:
            hook(self, reports)

    def _gradients(self, batches: Sequence[Batch], told: Mapping[str, Tensor]) -> Loss:
        """Forward and backward of a step, with half the micro-batch where memory does not suffice."""
        while True:
            try:
                return self._accumulate(batches, told)
            except torch.OutOfMemoryError:
                if self.ranks.world > 1 or batches[0].rows == 1:
                    raise ResourceError(
                        f"out of memory with micro-batches of {batches[0].rows} x {batches[0].length} tokens; "
                        "lower train.batch_tokens or data.max_length, or set train.recompute=true"
                    ) from None
            # NOTE: outside the handler, whose traceback holds the activations.
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
            self.state.micro = self.state.least = finer(self.state.micro, batches[0].rows)
            self.batches.split(self.state.micro)
            batches = next(self.batches)

    def _accumulate(self, batches: Sequence[Batch], told: Mapping[str, Tensor]) -> Loss:
        summed: Loss | None = None
        alone = self.replay if len(batches) == 1 else None  # what is replayed does not add to gradients
        for number, batch in enumerate(batches):
            self.ranks.seed(mix(self.seed, DROPOUT, self.state.step, self.ranks.rank, number) >> 1)
            with self.ranks.accumulating(self.wrapped or self.trainee, last=number == len(batches) - 1):
                loss = alone(self._pass, batch, told) if alone else self._pass(batch, told)
            summed = loss if summed is None else summed + loss
        assert summed is not None
        return over_ranks(summed, self.ranks)

    def _pass(self, batch: Batch, told: Mapping[str, Tensor]) -> Loss:
        """Forward and backward of a micro-batch."""
        module = self.wrapped or self.trainee
        with torch.autocast(self.ranks.device.type, self.precision, enabled=self.precision is not None):
            loss: Loss = module(batch)
        # The wrappers average over ranks; we want their sum.
        (loss.over(told) * self.ranks.world).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _tell(self, loss: Loss, ok: Tensor, norm: Tensor, told: Mapping[str, Tensor]) -> None:
        assert self.late is not None
        pairs = [value for term in loss.terms().values() for value in (term.sum, term.count)]
        values = torch.stack([value.double() for value in (ok, norm, *(told[name] for name in TOLD), *pairs)])
        weights = {name: term.weight for name, term in loss.terms().items()}
        self.late.put(self.state.step, self.optimizer.param_groups[0]["lr"], weights, values)
