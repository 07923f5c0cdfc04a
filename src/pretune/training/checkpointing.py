"""Checkpoints during training: at fixed steps, every five minutes, and on request."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from pretune.core.errors import CheckpointError
from pretune.training.checkpoints import Checkpoint, CheckpointManager
from pretune.training.distributed import fill, unshard_all
from pretune.training.loop import Loop
from pretune.training.optim import AveragedDescent, get_state_tensors, load_state, use_averages
from pretune.training.step import StepMetrics, TrainState

SAVE_INTERVAL_SECONDS = 300.0
"""Interval between checkpoints if no step interval is set."""
TRIGGER_GROUP = "trigger"
"""Tensor group with the trigger state of averaged SGD."""


class CheckpointHook:
    """Saves weights, optimizer and train state. All ranks take part; rank 0 has the manager and writes.

    With `tensor_names`, other weights are not saved: they are unchanged since the start and reloaded from there.
    """

    def __init__(
        self,
        manager: CheckpointManager | None,
        expected_facts: Mapping[str, str],
        *,
        every: int = 0,
        on_save: Callable[[Loop], None],
        extra_groups: Callable[[], Mapping[str, Mapping[str, Tensor]]] = dict,
        tensor_names: Collection[str] | None = None,
    ) -> None:
        self.tensor_names = tensor_names
        self.manager, self.expected_facts, self.every, self.on_save = manager, expected_facts, every, on_save
        self.extra_groups = extra_groups  # further tensors by group that a run needs to resume
        self.last_step, self.last_time = -1, 0.0
        self.score: float | None = None  # validation loss, if evaluated at this step

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if self.manager is not None:
            self.manager.raise_pending_error()
        state = loop.state
        if (
            state.step % self.every == 0
            if self.every
            else state.elapsed_seconds - self.last_time >= SAVE_INTERVAL_SECONDS
        ):
            self.save(loop)

    def set_score(self, step: int, score: float) -> None:
        """Set the validation loss of the current weights; a checkpoint saved before it was known is saved again."""
        self.score = score
        if self.last_step == step:
            self.last_step = -1

    def save(self, loop: Loop, *, wait: bool = False) -> None:
        """Save a checkpoint, unless this step is already saved."""
        loop.flush()  # NOTE: runs the hooks, including this one, which may save
        if self.last_step != loop.state.step:
            self.last_step, self.last_time = loop.state.step, loop.state.elapsed_seconds
            start_time = time.monotonic()
            self.on_save(loop)
            state = loop.state.to_dict()
            progress = state.pop("progress")
            with use_averages(loop.optimizer):  # a checkpoint holds the model that was evaluated
                groups = {**gather_state(loop, self.tensor_names), **self.extra_groups()}
                if progress:
                    groups["history"] = {"progress": torch.tensor(progress, dtype=torch.float64)}
                if self.manager is not None:
                    self.manager.save(
                        loop.state.step, groups, {**self.expected_facts, "state": state}, score=self.score
                    )
            self.score = None
            loop.state.saving += time.monotonic() - start_time
        if wait and self.manager is not None:
            self.manager.wait()


def gather_state(loop: Loop, tensor_names: Collection[str] | None = None) -> dict[str, Mapping[str, Tensor]]:
    """Collect all tensors of a run, unsharded."""
    model, optimizer = loop.module.model, loop.optimizer
    trigger = {TRIGGER_GROUP: optimizer.get_trigger_state()} if isinstance(optimizer, AveragedDescent) else {}
    return {
        "model": unshard_all(collect_weights(model, tensor_names)),
        "optimizer": unshard_all(get_state_tensors(optimizer, model)),
        **trigger,
    }


def collect_weights(model: nn.Module, tensor_names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Return parameters and buffers by name, without duplicates; optionally only those in `tensor_names`."""
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        weights if tensor_names is None else {name: tensor for name, tensor in weights.items() if name in tensor_names}
    )


def restore_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensor_names: Collection[str] | None = None,
) -> TrainState:
    """Load weights, optimizer and train state from a checkpoint. On a mismatch nothing is changed."""
    weights, stored_tensors = collect_weights(model, tensor_names), checkpoint.load_tensors("model")
    for name in sorted(weights.keys() ^ stored_tensors.keys()):
        side = "this model" if name in stored_tensors else "the checkpoint"
        raise CheckpointError(f"{checkpoint.folder}: tensor '{name}' is missing in {side}; it is of another model")
    for name, tensor in weights.items():
        if tensor.shape != stored_tensors[name].shape:
            raise CheckpointError(
                f"{checkpoint.folder}: tensor '{name}' has shape {list(stored_tensors[name].shape)}; the model's is "
                f"{list(tensor.shape)}"
            )
    load_state(optimizer, model, checkpoint.load_tensors("optimizer"))
    for name, tensor in weights.items():
        fill(tensor, stored_tensors[name])
    if isinstance(optimizer, AveragedDescent):  # saved while the model had the averages
        optimizer.load_trigger_state(checkpoint.load_tensors(TRIGGER_GROUP))
        optimizer.swap()
    return read_state(checkpoint)


def read_state(checkpoint: Checkpoint) -> TrainState:
    """Read the train state of a checkpoint."""
    facts = checkpoint.facts.get("state")
    if not isinstance(facts, dict):
        raise CheckpointError(f"{checkpoint.folder}: no train state; copy or create the directory again")
    progress = checkpoint.load_tensors("history").get("progress") if "history" in checkpoint.groups else torch.empty(0)
    if progress is None or progress.ndim != 1:
        raise CheckpointError(f"{checkpoint.folder}: no progress history; copy or create the directory again")
    return TrainState.from_dict({**facts, "progress": progress.tolist()})
