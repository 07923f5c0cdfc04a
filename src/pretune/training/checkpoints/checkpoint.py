"""One checkpoint: a directory that says what it is, and whether it is still what was written."""

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
from pretune.core.errors import CheckpointError, suggest
from pretune.core.io.strict_json import MAX_BYTES
from pretune.models import tensor_files
from pretune.training.checkpoints.snapshot import TensorSnapshot
from pretune.training.records import StateFile

STATE_FILE = "state.json"
FORMAT_VERSION = 1
OLD_SUFFIX = ".old"
"""Ends the name of a checkpoint while another of the same step takes its place."""

_NAME_PATTERN = re.compile(r"step-(\d{8,15})")
_GROUP_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,60}")
_REMEDY = "copy or make the directory again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose every file is as it was written."""

    folder: Path
    step: int
    score: float | None  # the held-out loss of its weights
    facts: dict[str, Any]
    groups: tuple[str, ...]
    tied: dict[str, dict[str, str]]

    def load_tensors(self, group: str) -> dict[str, Tensor]:
        """The tensors of a group, on the CPU; names that shared one tensor share one again."""
        with tensor_files.open_tensors(self._find_file(group)) as stored:
            found = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118 (not a mapping)
        tied = self.tied.get(group, {})
        for first in tied.values():
            if first not in found:
                raise CheckpointError(
                    f"{self.folder / STATE_FILE}: {format_value(first)} is tied, but not in '{group}'; {_REMEDY}"
                )
        return found | {name: found[first] for name, first in tied.items()}

    @torch.no_grad()
    def copy_into(self, group: str, targets: Mapping[str, Tensor]) -> None:
        """Copy a group into tensors of the same names, shapes and types; the first difference is an error, before."""
        file, found = self._find_file(group), self.load_tensors(group)
        for name in [*targets, *found]:
            if name not in found:
                raise CheckpointError(f"{file}: tensor {format_value(name)} is missing{suggest(name, found)}")
            if name not in targets:
                raise CheckpointError(f"{file}: tensor {format_value(name)} has no place in this run")
            here, there = _describe_tensor(targets[name]), _describe_tensor(found[name])
            if here != there:
                raise CheckpointError(f"{file}: tensor {format_value(name)} is {there}, but this run's is {here}")
        for name, target in targets.items():
            target.copy_(found[name])

    def _find_file(self, group: str) -> Path:
        if group not in self.groups:
            raise CheckpointError(f"{self.folder}: no '{group}' in it; it has {', '.join(self.groups)}")
        return self.folder / f"{group}.safetensors"


def format_folder_name(step: int) -> str:
    """
    >>> format_folder_name(1000)
    'step-00001000'
    """
    return f"step-{step:08}"


def parse_step(folder: Path) -> int | None:
    """The step that a directory's name says, one set aside included; None for any other name."""
    found = _NAME_PATTERN.fullmatch(folder.name.removesuffix(OLD_SUFFIX))
    step = int(found[1]) if found else None
    return step if step is not None and folder.name.removesuffix(OLD_SUFFIX) == format_folder_name(step) else None


def list_checkpoints(directory: Path) -> list[Path]:
    """What lies in a directory under the name of a checkpoint, the newest first; whether it is one is not asked."""
    try:
        found = [(step, path) for path in directory.iterdir() if (step := parse_step(path)) is not None]
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise CheckpointError(f"{directory}: cannot be read: {fault.strerror}") from fault
    return [
        path for step, path in sorted(found, key=lambda entry: (entry[0], entry[1].suffix != OLD_SUFFIX), reverse=True)
    ]


def describe_state(step: int, snapshot: TensorSnapshot, facts: Mapping[str, Any], score: float | None) -> str:
    """The state of a checkpoint as text, as it is now; what is no JSON (NaN too) is a ValueError."""
    for group in snapshot.groups:
        if not _GROUP_PATTERN.fullmatch(group):
            raise ValueError(f"a group of tensors cannot be called {group!r}: it names a file")
    known = None if score is None or not math.isfinite(score) else float(score)
    state = {
        "format": FORMAT_VERSION,
        "step": step,
        "score": known,
        "groups": sorted(snapshot.groups),
        "tied": snapshot.tied,
    }
    text = json.dumps({**state, "facts": dict(facts)}, allow_nan=False)
    if len(text) > MAX_BYTES:
        raise ValueError(f"the facts of a checkpoint take {len(text):,} bytes; at most {MAX_BYTES:,} can be read back")
    return text


def write_checkpoint(folder: Path, snapshot: TensorSnapshot, description: str) -> None:
    """Publish a checkpoint under a name that is free: whole, or not at all."""
    state = json.loads(description)
    with io.atomic_directory(folder) as made:
        for group, tensors in snapshot.groups.items():
            tensor_files.save_tensors(tensors, made / f"{group}.safetensors")
        io.atomic_write(made / STATE_FILE, description)
        io.write_manifest(made, _list_files(state), _select_manifest_facts(state))


def open_checkpoint(folder: Path, check_hashes: bool = True) -> Checkpoint:
    """Read every byte of a checkpoint; the first part that is not as it was written is a CheckpointError.

    Without `hashes` the tensors are not read, only the sizes of their files.
    """
    manifest = io.check_manifest(folder, check_hashes)
    where = folder / io.MANIFEST
    if STATE_FILE not in manifest["files"]:
        raise CheckpointError(f"{where}: does not list '{STATE_FILE}'; {_REMEDY}")
    state = io.read_json(folder / STATE_FILE, CheckpointError)
    found = _parse_state(folder, state)
    # NOTE: the manifest has no hash of its own: what it says must be what the hashed files say.
    if set(manifest["files"]) != set(_list_files(state)):
        raise CheckpointError(f"{where}: 'files' are not those that {STATE_FILE} needs; {_REMEDY}")
    told = _select_manifest_facts(state)
    for key in [*told, *manifest]:
        if key != "files" and (key not in told or manifest.get(key) != told[key]):
            raise CheckpointError(f"{where}: {format_value(key)} is not as in {STATE_FILE}; {_REMEDY}")
    if parse_step(folder) not in (None, found.step):
        raise CheckpointError(
            f"{folder}: holds step {found.step}; give it its name back: {format_folder_name(found.step)}"
        )
    return found


def read_score(folder: Path) -> float:
    """The held-out loss that a directory says, read without a check; infinite where it says none."""
    try:
        score = _parse_state(folder, io.read_json(folder / STATE_FILE, CheckpointError)).score
    except CheckpointError:
        return math.inf
    return math.inf if score is None else score


def _parse_state(folder: Path, state: dict[str, Any]) -> Checkpoint:
    where = folder / STATE_FILE
    if state.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"{where}: has format {format_value(state.get('format'))}, this version reads {FORMAT_VERSION}"
        )
    read = config.check_record(StateFile, state, CheckpointError, str(where))
    for group in read["groups"]:
        if not _GROUP_PATTERN.fullmatch(group):
            raise CheckpointError(f"{where}: {format_value(group)} is no name of a group of tensors; {_REMEDY}")
    groups, step, score = tuple(read["groups"]), read["step"], read["score"]
    return Checkpoint(folder=folder, step=step, score=score, facts=read["facts"], groups=groups, tied=read["tied"])


def _list_files(state: Mapping[str, Any]) -> list[str]:
    return [STATE_FILE, *(f"{group}.safetensors" for group in state["groups"])]


def _select_manifest_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest repeats: the step, and every fact that is a text (hashes of config, data and tokenizer)."""
    return {"step": state["step"], "run": {key: fact for key, fact in state["facts"].items() if isinstance(fact, str)}}


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
