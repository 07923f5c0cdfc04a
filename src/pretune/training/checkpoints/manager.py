"""Checkpoints of a run: saved by a hook in the background, found, restored, verified, removed when they expire."""

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir, RunLock
from pretune.training.checkpoints import (
    FOLDER_NAME,
    OLD_SUFFIX,
    Checkpoint,
    SnapshotBuffers,
    TensorSnapshot,
    describe_state,
    format_folder_name,
    list_checkpoints,
    open_checkpoint,
    parse_step,
    read_score,
    write_checkpoint,
)
from pretune.training.distributed import Ranks, fill, unshard_all
from pretune.training.loop import Loop
from pretune.training.optim import get_state_tensors, load_state, use_averages
from pretune.training.optim.sgd import AveragedDescent
from pretune.training.step import StepMetrics, StreamState, TrainState


class CheckpointManager:
    """Manager of RUN/checkpoints. Only the holder of the run's lock may save; any process may read."""

    def __init__(self, directory: Path, *, max_checkpoints: int = 2, on_warning: Callable[[str], None]) -> None:
        if max_checkpoints < 2:
            raise UsageError(f"max_checkpoints must be >= 2 to survive a damaged one, got {max_checkpoints}")
        self.directory, self.max_checkpoints, self.on_warning = directory, max_checkpoints, on_warning
        self._snapshot = SnapshotBuffers()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(
        self,
        step: int,
        groups: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, object],
        *,
        score: float | None = None,
        wait: bool = False,
    ) -> float:
        """Copy tensors and write them in the background; returns the seconds the caller was blocked.

        groups: one file each, named by its key. facts: JSON; strings identify the run and data of the checkpoint (see
        `find_latest`). score: validation loss of these weights, if known. A save waits for the previous one and raises
        its error (a full disk); older checkpoints are never affected.
        """
        start_time = time.perf_counter()
        self.wait()
        snapshot = self._snapshot.copy(groups)
        description = describe_state(step, snapshot, facts, score)
        self._pending = self._writer.submit(self._write, step, snapshot, description)
        if wait:
            self.wait()
        return time.perf_counter() - start_time

    def wait(self) -> None:
        """Wait until the last save is on disk; raises its error, once."""
        if self._pending is not None:
            try:
                self._pending.result()
            finally:
                if self._pending.done():  # False if the wait was interrupted
                    self._pending = None

    def raise_pending_error(self) -> None:
        """Raise the error of the last save if it has failed; does not wait."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def find_latest(self, expected_facts: Mapping[str, str]) -> Checkpoint | None:
        """Return the newest valid checkpoint, or None if there are no checkpoints.

        Damaged checkpoints are skipped with a warning. Raises a CheckpointError if all are damaged, or if the newest
        valid one does not have the expected facts: it belongs to another run, or the run's inputs have changed.
        """
        newest_error: CheckpointError | None = None
        for folder in list_checkpoints(self.directory):
            try:
                checkpoint = open_checkpoint(folder)
            except CheckpointError as error:
                newest_error = newest_error or error
                self.on_warning(f"skipping a damaged checkpoint: {error}")
                continue
            _check_facts(checkpoint, expected_facts)
            return checkpoint
        if newest_error is not None:
            raise CheckpointError(
                f"{self.directory}: all checkpoints are damaged; the newest: {newest_error}"
            ) from newest_error
        return None

    def remove_unfinished(self, lock: RunLock) -> None:
        """Remove files of killed writers at the start of a run; requires the lock, so no other process is writing."""
        if self.directory.is_symlink():
            raise UsageError(f"{self.directory}: is a symbolic link, perhaps to another run's; link the whole run")
        if not lock.is_held or lock.directory.resolve() not in self.directory.resolve().parents:
            raise ValueError(f"{self.directory}: removing unfinished files needs the lock of the run")
        self.wait()
        if count := io.sweep(self.directory):
            self.on_warning(f"{self.directory}: removed {count} unfinished, of a run that was killed")

    def _write(self, step: int, snapshot: TensorSnapshot, description: str) -> None:
        snapshot.wait()
        folder = self.directory / format_folder_name(step)
        if folder.exists():
            _move_to_old(folder)
        write_checkpoint(folder, snapshot, description)
        for path in find_expired(self.directory, self.max_checkpoints, folder):
            _remove(path)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, but not through a link to the checkpoints of another run."""
    run, name = folder.parent.parent, f"{folder.parent.name}/{folder.name}"
    io.remove(run, name, f"{re.escape(folder.parent.name)}/{FOLDER_NAME}(?:{re.escape(OLD_SUFFIX)})?")


def _move_to_old(folder: Path) -> None:
    """Rename a checkpoint before another of the same step is written; it stays available until that is complete."""
    if open_if_intact(folder) is None:
        _remove(folder)
        return
    old_folder = folder.with_name(folder.name + OLD_SUFFIX)
    _remove(old_folder)
    with io.translate_write_errors(old_folder):
        folder.rename(old_folder)


def _check_facts(checkpoint: Checkpoint, expected_facts: Mapping[str, str]) -> None:
    for name, expected_fact in expected_facts.items():
        fact = checkpoint.facts.get(name)
        if fact != expected_fact:
            description = "not recorded" if fact is None else repr(fact)[:80]
            raise CheckpointError(
                f"{checkpoint.folder}: belongs to another run: its {name} is {description}, this run's is "
                f"{expected_fact!r:.80}; resume with the original settings and data, or use another directory"
            )


def open_if_intact(folder: Path, check_hashes: bool = True) -> Checkpoint | None:
    """Open a checkpoint; None if it is damaged."""
    try:
        return open_checkpoint(folder, check_hashes)
    except CheckpointError:
        return None


def find_expired(directory: Path, max_checkpoints: int, new_folder: Path) -> list[Path]:
    """List checkpoints to delete: all but the `max_checkpoints` newest valid ones and the one with the lowest loss.

    Damaged checkpoints do not count, and are deleted when older than the valid ones. Every byte of a kept checkpoint is
    read again, except for `new_folder`, which was just hashed.
    """
    valid: list[Checkpoint] = []
    older: list[Path] = []
    replaced_folders: list[Path] = []
    for path in list_checkpoints(directory):
        if valid and path.suffix == OLD_SUFFIX and valid[-1].step == parse_step(path):
            replaced_folders.append(path)  # replaced by another one of this step
        elif len(valid) >= max_checkpoints and path != new_folder:
            older.append(path)
        elif checkpoint := open_if_intact(path, check_hashes=path != new_folder):
            valid.append(checkpoint)
    best = min((checkpoint.score for checkpoint in valid if checkpoint.score is not None), default=math.inf)
    for path in sort_by_score(older):
        if read_score(path) < best and open_if_intact(path):
            older.remove(path)
            break
    return replaced_folders + older


def sort_by_score(folders: list[Path]) -> list[Path]:
    """Return the folders that have a validation loss, lowest first; ties keep their order."""
    scores = [(read_score(folder), folder) for folder in folders]
    return [folder for score, folder in sorted(scores, key=lambda entry: entry[0]) if score < math.inf]


def verify_checkpoints(directory: Path) -> list[str]:
    """Verify every checkpoint of a run, or a single one; returns a line for each.

    Raises one CheckpointError that names the damaged part of every damaged checkpoint.
    """
    valid: list[Checkpoint] = []
    errors: list[str] = []
    is_checkpoint = parse_step(directory.absolute()) is not None
    checkpoints = RunDir(directory).checkpoints
    for folder in [directory] if is_checkpoint else list_checkpoints(checkpoints) if checkpoints.is_dir() else []:
        try:
            valid.append(open_checkpoint(folder))
        except CheckpointError as error:
            if folder.exists():  # the run may just have removed it
                errors.append(str(error))
    if errors:
        suffix = f"; valid: {', '.join(checkpoint.folder.name for checkpoint in valid) or 'none'}"
        raise CheckpointError("; also ".join(errors) + suffix)
    best = min((checkpoint.score for checkpoint in valid if checkpoint.score is not None), default=None)
    return [_format_line(checkpoint, best) for checkpoint in valid]


def _format_line(checkpoint: Checkpoint, best_score: float | None) -> str:
    files = format_count(len(checkpoint.groups) + 1, "files")
    line = f"{RunDir(checkpoint.folder).checkpoints.name}/{checkpoint.folder.name}: {files}, sizes and SHA-256 match"
    if checkpoint.score is None:
        return line
    suffix = ", the best so far" if checkpoint.score == best_score else ""
    return f"{line}, validation loss {checkpoint.score:.4f}{suffix}"


SAVE_INTERVAL_SECONDS = 300.0
"""Interval between checkpoints if no step interval is set."""
TRIGGER_GROUP, STREAM_GROUP = "trigger", "streams"
"""Tensor groups with the trigger state of averaged SGD, and with the state of contiguous streams."""


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
        self.evaluation: tuple[int, float] | None = None  # step and validation loss of the last one

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        if self.manager is not None:
            self.manager.raise_pending_error()
        state = loop.state
        seconds = state.elapsed_seconds - self.last_time
        if state.step % self.every == 0 if self.every else seconds >= SAVE_INTERVAL_SECONDS:
            self.save(loop)

    def set_score(self, step: int, score: float) -> None:
        """Set the validation loss of the current weights; a checkpoint saved before it was known is saved again."""
        self.evaluation = step, score
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
                    step, score = self.evaluation or (-1, None)
                    facts = {**self.expected_facts, "state": state}
                    self.manager.save(loop.state.step, groups, facts, score=score if step == loop.state.step else None)
            loop.state.saving += time.monotonic() - start_time
        if wait and self.manager is not None:
            self.manager.wait()


def gather_state(loop: Loop, tensor_names: Collection[str] | None = None) -> dict[str, Mapping[str, Tensor]]:
    """Collect all tensors of a run, unsharded."""
    model, optimizer = loop.module.model, loop.optimizer
    trigger = {TRIGGER_GROUP: optimizer.get_trigger_state()} if isinstance(optimizer, AveragedDescent) else {}
    states = {name: loop.ranks.gather_rows(tensor) for name, tensor in loop.module.stream_state.tensors.items()}
    return {
        "model": unshard_all(collect_weights(model, tensor_names)),
        "optimizer": unshard_all(get_state_tensors(optimizer, model)),
        **trigger,
        **({STREAM_GROUP: states} if states else {}),
    }


def collect_weights(model: nn.Module, tensor_names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Return parameters and buffers by name, without duplicates; optionally only those in `tensor_names`."""
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor for name, tensor in weights.items() if tensor_names is None or name in tensor_names}


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


def restore_stream_state(checkpoint: Checkpoint, state: StreamState, ranks: Ranks) -> None:
    """Load the state of this rank's share of the streams, if the checkpoint has one."""
    if STREAM_GROUP in checkpoint.groups:
        tensors = checkpoint.load_tensors(STREAM_GROUP)
        state.tensors = {
            name: tensor.chunk(ranks.world)[ranks.rank].to(ranks.device) for name, tensor in tensors.items()
        }


def read_state(checkpoint: Checkpoint) -> TrainState:
    """Read the train state of a checkpoint."""
    facts = checkpoint.facts.get("state")
    if not isinstance(facts, dict):
        raise CheckpointError(f"{checkpoint.folder}: no train state; copy or create the directory again")
    progress = checkpoint.load_tensors("history").get("progress") if "history" in checkpoint.groups else torch.empty(0)
    if progress is None or progress.ndim != 1:
        raise CheckpointError(f"{checkpoint.folder}: no progress history; copy or create the directory again")
    return TrainState.from_dict({**facts, "progress": progress.tolist()})
