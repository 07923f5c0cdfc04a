"""Checkpoints of a run at work: every so many steps, every five minutes, and when somebody asks."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from pretune.core.errors import CheckpointError
from pretune.training.async_metrics import Report
from pretune.training.checkpoints import Found, Store
from pretune.training.distributed import fill, whole
from pretune.training.loop import Loop
from pretune.training.optim import AveragedDescent, averaged, load_state, state_tensors
from pretune.training.train_state import State

SECONDS = 300.0
"""Between two checkpoints, where steps are not asked for."""
TRIGGER = "trigger"
"""The group of tensors that decide when weights are averaged."""


class Saver:
    """Saves the weights, the optimiser and the state. All ranks take part; the first one has the store and writes.

    With `only`, weights of other names are left out: they are what they were at the start, and come from there again.
    """

    def __init__(
        self,
        store: Store | None,
        expect: Mapping[str, str],
        *,
        every: int = 0,
        before: Callable[[Loop], None],
        more: Callable[[], Mapping[str, Mapping[str, Tensor]]] = dict,
        only: Collection[str] | None = None,
    ) -> None:
        self.only = only
        self.store, self.expect, self.every, self.before = store, expect, every, before
        self.more = more  # tensors by group that a run needs beside those to go on
        self.last_step, self.last_time = -1, 0.0
        self.score: float | None = None  # the held-out loss, where it was measured at this step

    def __call__(self, loop: Loop, reports: Sequence[Report]) -> None:
        if self.store is not None:
            self.store.heed()
        state = loop.state
        if state.step % self.every == 0 if self.every else state.elapsed - self.last_time >= SECONDS:
            self.save(loop)

    def save(self, loop: Loop, *, wait: bool = False) -> None:
        """Save now, unless this step is saved already."""
        loop.settle()  # NOTE: the hooks hear of it, this one too, which may save
        if self.last_step != loop.state.step:
            self.last_step, self.last_time = loop.state.step, loop.state.elapsed
            begun = time.monotonic()
            self.before(loop)
            state = loop.state.facts()
            progress = state.pop("progress")
            with averaged(loop.optimizer):  # a checkpoint's model is the one that was evaluated
                groups = {**gather(loop, self.only), **self.more()}
                if progress:
                    groups["history"] = {"progress": torch.tensor(progress, dtype=torch.float64)}
                if self.store is not None:
                    self.store.save(loop.state.step, groups, {**self.expect, "state": state}, score=self.score)
            self.score = None
            loop.state.saving += time.monotonic() - begun
        if wait and self.store is not None:
            self.store.wait()


def gather(loop: Loop, only: Collection[str] | None = None) -> dict[str, Mapping[str, Tensor]]:
    """All tensors of a run, whole."""
    model, optimizer = loop.trainee.model, loop.optimizer
    trigger = {TRIGGER: optimizer.trigger_state()} if isinstance(optimizer, AveragedDescent) else {}
    return {"model": whole(weights(model, only)), "optimizer": whole(state_tensors(optimizer, model)), **trigger}


def weights(model: nn.Module, only: Collection[str] | None = None) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once; or those of some names."""
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return found if only is None else {name: tensor for name, tensor in found.items() if name in only}


def restore(
    found: Found, model: nn.Module, optimizer: torch.optim.Optimizer, only: Collection[str] | None = None
) -> State:
    """Put a checkpoint back: weights, optimiser, and where the run was. Nothing is changed where it does not fit."""
    wanted, stored = weights(model, only), found.tensors("model")
    for name in sorted(wanted.keys() ^ stored.keys()):
        where = "this model" if name in stored else "the checkpoint"
        raise CheckpointError(f"{found.folder}: tensor '{name}' is missing in {where}; it is of another model")
    for name, tensor in wanted.items():
        if tensor.shape != stored[name].shape:
            raise CheckpointError(
                f"{found.folder}: tensor '{name}' has shape {list(stored[name].shape)}; the model's is "
                f"{list(tensor.shape)}"
            )
    load_state(optimizer, model, found.tensors("optimizer"))
    for name, tensor in wanted.items():
        fill(tensor, stored[name])
    if isinstance(optimizer, AveragedDescent):  # saved while the model had the averages
        optimizer.load_trigger_state(found.tensors(TRIGGER))
        optimizer.swap()
    return state_of(found)


def state_of(found: Found) -> State:
    """Read the state of the run that a checkpoint holds."""
    facts = found.facts.get("state")
    if not isinstance(facts, dict):
        raise CheckpointError(f"{found.folder}: has no state of a run; copy or make the directory again")
    progress = found.tensors("history").get("progress") if "history" in found.groups else torch.empty(0)
    if progress is None or progress.ndim != 1:
        raise CheckpointError(f"{found.folder}: its history has no progress; copy or make the directory again")
    return State.of({**facts, "progress": progress.tolist()})
