"""Checkpoints of a run: atomic, verified before loading, never all lost.

    RUN/.lock                              the process that writes here
    RUN/checkpoints/step-00001000/
        model.safetensors  optimizer.safetensors  …    one file per group of tensors
        state.json                                     step, validation loss, and facts needed to resume
        MANIFEST.json                                  sizes and SHA-256 of these files, written last

    with RunLock(run, on_warning=print) as lock:
        manager = CheckpointManager(run / "checkpoints", on_warning=print)
        manager.remove_unfinished(lock)
        checkpoint = manager.find_latest({"config": …, "data": …, "tokenizer": …})     # None: a new run
        …
        manager.save(step, {"model": …, "optimizer": …}, facts)                        # writes in the background
        manager.wait()

With several processes, only rank 0 locks, saves, waits and removes. The others take part in gathering the tensors
before `save` (which is the barrier), and all may read the checkpoint that `find_latest` returns.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretune.core import config, io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.io.files import MAX_BYTES
from pretune.models import tensor_files
from pretune.training.records import StateFile


@dataclass(frozen=True, slots=True)
class TensorSnapshot:
    """Copies of tensors by group and name, and the tied names (name -> name of the stored tensor)."""

    groups: dict[str, dict[str, Tensor]]
    tied_names: dict[str, dict[str, str]]
    events: list[torch.cuda.Event]

    def wait(self) -> None:
        """Wait until the device has copied all tensors."""
        for event in self.events:
            event.synchronize()


class SnapshotBuffers:
    """Reusable host buffers for copies: a snapshot must be written before the next one is taken."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    @torch.no_grad()
    def copy(self, groups: Mapping[str, Mapping[str, Tensor]]) -> TensorSnapshot:
        """Copy all tensors; copies from a CUDA device complete later, in the order of its current stream.

        NOTE: on that stream itself, not a side stream, so that later kernels may change or free the tensors.
        """
        copies: dict[str, dict[str, Tensor]] = {group: {} for group in groups}
        tied_names: dict[str, dict[str, str]] = {}
        buffers: dict[tuple[object, ...], Tensor] = {}
        for group, tensors in groups.items():
            first_names: dict[tuple[object, ...], str] = {}
            for name, tensor in tensors.items():
                first = first_names.setdefault(_build_memory_key(tensor), name) if tensor.numel() else name
                if first != name:
                    tied_names.setdefault(group, {})[name] = first
                    continue
                key = (group, name, tensor.shape, tensor.dtype, tensor.is_cuda)
                buffer = self._buffers.get(key)
                if buffer is None:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                copies[group][name] = buffers[key] = buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._buffers = buffers
        devices = {tensor.device for tensors in groups.values() for tensor in tensors.values() if tensor.is_cuda}
        return TensorSnapshot(copies, tied_names, [_record_event(device) for device in devices])


def _build_memory_key(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors with the same memory and layout."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _record_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


STATE_FILE = "state.json"
OLD_SUFFIX = ".old"
"""Suffix of a checkpoint while another one of the same step replaces it."""

FOLDER_NAME = r"step-(\d{8,15})"
_GROUP_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,60}")
_REMEDY = "copy or create the directory again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files have all been verified."""

    folder: Path
    step: int
    score: float | None  # validation loss of its weights
    facts: dict[str, Any]
    groups: tuple[str, ...]
    tied_names: dict[str, dict[str, str]]

    def load_tensors(self, group: str) -> dict[str, Tensor]:
        """Load the tensors of a group to the CPU; tied names share one tensor."""
        if group not in self.groups:
            raise CheckpointError(f"{self.folder}: no group '{group}'; available: {', '.join(self.groups)}")
        with tensor_files.open_tensors(self.folder / f"{group}.safetensors") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
        tied_names = self.tied_names.get(group, {})
        for first in tied_names.values():
            if first not in tensors:
                raise CheckpointError(
                    f"{self.folder / STATE_FILE}: {format_value(first)} is tied, but not in '{group}'; {_REMEDY}"
                )
        return tensors | {name: tensors[first] for name, first in tied_names.items()}


def format_folder_name(step: int) -> str:
    """Return the name of a checkpoint's directory.

    >>> format_folder_name(1000)
    'step-00001000'
    """
    return f"step-{step:08}"


def parse_step(folder: Path) -> int | None:
    """Return the step of a checkpoint directory, also of a replaced one; None for other names."""
    match = re.fullmatch(FOLDER_NAME, folder.name.removesuffix(OLD_SUFFIX))
    step = int(match[1]) if match else None
    return step if step is not None and folder.name.removesuffix(OLD_SUFFIX) == format_folder_name(step) else None


def list_checkpoints(directory: Path) -> list[Path]:
    """List the checkpoint directories of a run, newest first, without verifying them."""
    try:
        checkpoints = [(step, path) for path in directory.iterdir() if (step := parse_step(path)) is not None]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error.strerror}") from error
    checkpoints.sort(key=lambda entry: (entry[0], entry[1].suffix != OLD_SUFFIX), reverse=True)
    return [path for _, path in checkpoints]


def describe_state(step: int, snapshot: TensorSnapshot, facts: Mapping[str, object], score: float | None) -> str:
    """Serialize the state of a checkpoint to JSON; raises a ValueError for values that are not JSON (such as NaN)."""
    for group in snapshot.groups:
        if not _GROUP_PATTERN.fullmatch(group):
            raise ValueError(f"invalid group name {group!r}: use lowercase letters, digits and underscores")
    finite_score = None if score is None or not math.isfinite(score) else float(score)
    state = {"step": step, "score": finite_score, "groups": sorted(snapshot.groups), "tied": snapshot.tied_names}
    text = json.dumps({**io.FORMAT, **state, "facts": dict(facts)}, allow_nan=False)
    if len(text) > MAX_BYTES:
        raise ValueError(f"the facts of a checkpoint must have <= {MAX_BYTES:,} bytes, got {len(text):,}")
    return text


def write_checkpoint(folder: Path, snapshot: TensorSnapshot, description: str) -> None:
    """Write a checkpoint atomically under an unused name."""
    state: StateFile = json.loads(description)
    with io.atomic_directory(folder) as temporary_folder:
        for group, tensors in snapshot.groups.items():
            tensor_files.save_tensors(tensors, temporary_folder / f"{group}.safetensors")
        io.atomic_write(temporary_folder / STATE_FILE, description)
        io.write_manifest(temporary_folder, _list_files(state), _select_manifest_facts(state))


def open_checkpoint(folder: Path, check_hashes: bool = True) -> Checkpoint:
    """Open a checkpoint and verify every byte; raises a CheckpointError for the first damaged part.

    Without `check_hashes` only the sizes of the tensor files are checked.
    """
    manifest = io.check_manifest(folder, check_hashes)
    manifest_path = folder / io.MANIFEST
    if STATE_FILE not in manifest["files"]:
        raise CheckpointError(f"{manifest_path}: does not list '{STATE_FILE}'; {_REMEDY}")
    state = _read_state(folder)
    # NOTE: the manifest itself is not hashed: it must agree with the hashed files.
    if set(manifest["files"]) != set(_list_files(state)):
        raise CheckpointError(f"{manifest_path}: 'files' does not match {STATE_FILE}; {_REMEDY}")
    facts = _select_manifest_facts(state)
    for key in [*facts, *manifest]:
        if key != "files" and (key not in facts or manifest.get(key) != facts[key]):
            raise CheckpointError(f"{manifest_path}: {format_value(key)} does not match {STATE_FILE}; {_REMEDY}")
    if parse_step(folder) not in (None, state["step"]):
        raise CheckpointError(f"{folder}: holds step {state['step']}; rename it to {format_folder_name(state['step'])}")
    return Checkpoint(
        folder=folder,
        step=state["step"],
        score=state["score"],
        facts=state["facts"],
        groups=tuple(state["groups"]),
        tied_names=state["tied"],
    )


def read_score(folder: Path) -> float:
    """Read the validation loss of a checkpoint without verification; infinity if it has none."""
    try:
        score = _read_state(folder)["score"]
    except CheckpointError:
        return math.inf
    return math.inf if score is None else score


def _read_state(folder: Path) -> StateFile:
    path = folder / STATE_FILE
    state = config.check_record(StateFile, io.read_formatted_json(path, CheckpointError), CheckpointError, str(path))
    for group in state["groups"]:
        if not _GROUP_PATTERN.fullmatch(group):
            raise CheckpointError(f"{path}: {format_value(group)} is not a valid group name; {_REMEDY}")
    return state


def _list_files(state: StateFile) -> list[str]:
    return [STATE_FILE, *(f"{group}.safetensors" for group in state["groups"])]


def _select_manifest_facts(state: StateFile) -> dict[str, object]:
    """Return the facts repeated in the manifest: the step, and all strings (hashes of config, data and tokenizer)."""
    return {"step": state["step"], "run": {key: fact for key, fact in state["facts"].items() if isinstance(fact, str)}}
