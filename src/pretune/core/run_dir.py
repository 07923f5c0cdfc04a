"""Directory of a run: names of its files, whether it is free or finished, the command that resumes it, and its lock;
and paths in run.json.

In `core`, because models, training, reports and commands all look into runs.

Paths are stored as typed, relative to the run and absolute, so that a run finds them from any working directory.

    {"data": {"path": "data/books"}, "paths": {"data.path": {"relative": "../../data/books", "absolute": "/…"}}}

A run that was moved together with its data finds them by the relative path, one that was moved alone by the other.
"""

import contextlib
import copy
import errno
import fcntl
import json
import os
import shlex
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from pretune.core import io, log
from pretune.core.config import PathText, check_path, check_record
from pretune.core.errors import CheckpointError, DataError, ResourceError, UsageError, refuse_broken_link
from pretune.core.io.directories import HeldLock

PATHS_KEY = "paths"
MODEL_PATHS = ("base.path", "base.tokenizer", "objective.teacher", "train.init_from", "tune.distill.teacher")
DATA_PATHS = ("data.path", "task.train", "task.dev", "task.test", "task.data", "plan.forgetting", "plan.vectors")
"""Settings that name a file or directory."""


class PathRecord(TypedDict):
    """Places of a path when the run was started."""

    relative: str  # to the directory of the run
    absolute: str


class PathsFile(TypedDict, total=False):
    """run.json, as far as it describes its paths."""

    paths: dict[str, PathRecord]


class MovedPath(NamedTuple):
    """Path that is not where run.json says."""

    place: str
    typed: str  # in run.json


@dataclass(frozen=True, slots=True)
class LocatedSettings:
    """Settings of a run.json with its paths as they are found now.

    `moved` has the paths that are found elsewhere, `missing` the places of those that are not found.
    """

    tree: dict[str, Any]
    moved: dict[str, MovedPath]
    missing: dict[str, list[str]]

    def check(self, tree: Mapping[str, object], optional: Collection[str] = ()) -> None:
        """Raise an error that names all places of the first path that is missing and that `tree` still has."""
        for name, places in self.missing.items():
            if name not in optional and get_path(tree, name) == get_path(self.tree, name):
                error = CheckpointError if name in MODEL_PATHS else DataError
                text = " or ".join(place[:500] for place in places)
                raise error(f"{name}: not found at {text}; move it back, or pass its new path")


def get_path(tree: Mapping[str, object], name: str) -> str | None:
    """Return a path of a tree of settings by its name, such as `data.path`; None if there is none."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None


def describe_paths(tree: Mapping[str, object], directory: str | os.PathLike[str]) -> dict[str, PathRecord]:
    """Return the places of the paths of a run in a directory; names of installed models and of the hub have none."""
    start = os.path.realpath(directory)
    records: dict[str, PathRecord] = {}
    for name in (*MODEL_PATHS, *DATA_PATHS):
        path = get_path(tree, name)
        if path and _find_file(path) is not None:
            relative = os.path.relpath(os.path.realpath(path), start)
            records[name] = {"relative": relative, "absolute": str(Path(path).absolute())}
    return records


def locate_paths(tree: Mapping[str, object], directory: str | os.PathLike[str]) -> LocatedSettings:
    """Return the settings of the run in a directory, with paths as they are found from the working directory."""
    source = f"{os.fspath(directory)}: run.json"
    records = check_record(PathsFile, {**tree}, CheckpointError, source).get("paths", {})
    located_settings = LocatedSettings(copy.deepcopy({**tree}), {}, {})
    for name in (*MODEL_PATHS, *DATA_PATHS):
        path, record = get_path(tree, name), records.get(name)
        if path is None:
            continue
        check_record(PathText, path, CheckpointError, f"{source}: '{name}'")
        if record is None:
            continue
        near = os.path.normpath(Path(os.path.realpath(directory), record["relative"]))
        files = {place: file for place in (near, record["absolute"], path) if (file := _find_file(place)) is not None}
        if not files:
            located_settings.missing[name] = [*dict.fromkeys((near, record["absolute"]))]
        elif path not in files or not os.path.samestat(files[path], next(iter(files.values()))):
            located_settings.moved[name] = MovedPath(next(iter(files)), path)
            *sections, key = name.split(".")
            parent: Any = located_settings.tree
            for section in sections:
                parent = parent[section]
            parent[key] = next(iter(files))
    return located_settings


def _find_file(path: str) -> os.stat_result | None:
    """Return the status of a file or directory; None if there is none, or the name is impossible."""
    try:
        return Path(path).stat() if path else None
    except (OSError, ValueError):
        return None


LOG_SUFFIXES = (".log", ".out", ".err", ".jsonl")
"""Suffixes of files that may already be there: the run's own output, opened by a scheduler or shell."""

PREPARED_FILE = "data.json"
"""File of prepared data."""


def refuse_other_files(folder: Path, own_names: Collection[str] = ()) -> None:
    """Raise a UsageError if a directory holds files besides hidden ones, logs and those of `own_names`."""
    paths = [path for path in folder.iterdir() if path.name not in own_names and not path.name.startswith(".")]
    names = sorted(path.name for path in paths if path.suffix.lower() not in LOG_SUFFIXES)
    if names:
        more = ", …" if names[3:] else ""
        raise UsageError(f"{folder}: holds other files ({', '.join(names[:3])}{more}); choose another --out")


class RunDir:
    """Directory of a run. A fine-tuning run with several trials has a directory for each of them in `trials`."""

    def __init__(self, path: Path) -> None:
        self.path = check_path(path)
        self.settings = path / "run.json"
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.task = path / "task.json"
        self.data = path / "data"  # prepared from the text of a recipe
        self.initial = path / "initial"  # model that a recipe continues, with a new vocabulary
        self.trials = path / "trials"
        self.trial = path / "trial.json"  # facts of a finished trial
        self.predictions = path / "predictions.jsonl"
        self.scores = path / "scores.json"
        self.card = path / "README.md"
        self.analysis = path / "analysis"  # results of `pretune analyze`
        self.results = path / "results.json"  # of a comparison of several runs
        self.cost = path / "cost.json"  # written last: marks the run as finished
        self.model_config = path / "config.json"  # of the saved model

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """True if the run has written all its results."""
        return self.cost.is_file()

    @property
    def is_finetuned(self) -> bool:
        """True if the directory holds a fine-tuned model with its task."""
        return self.task.is_file()

    @property
    def has_checkpoints(self) -> bool:
        """True if there are checkpoints, valid or not, of the run or of its trials."""
        return any(any(folder.glob("checkpoints/step-*")) for folder in (self.path, *self.trials.glob("*")))

    def can_resume(self, *, can_start: bool) -> bool:
        """Return False if there is no run yet, or one that was killed before it wrote its settings, and it can start.

        `can_start` tells that the command has all settings; without them the result is True, and `read_settings`
        raises.
        """
        is_new = can_start and not self.settings.is_file() and not self.has_checkpoints
        if is_new:
            log.warn(f"{self.path}: no run to resume ({self.settings.name} is missing); starting from the beginning")
        return not is_new

    def has_progress(self) -> bool:
        """Return True if there are checkpoints, valid or not; False if the run was killed before its first one.

        Raises a CheckpointError if the run has saved its model, and the checkpoints are lost.
        """
        if self.has_checkpoints:
            return True
        if self.model_config.exists():
            raise CheckpointError(f"{self.path}: holds a model, but its checkpoints are lost; choose another --out")
        log.info(f"{self.path}: no checkpoint yet; starting from the beginning")
        return False

    def get_trial(self, name: str) -> "RunDir":
        """Return the directory of a trial."""
        return RunDir(self.trials / name)

    def remove_trial(self, name: str) -> None:
        """Remove the directory of a trial."""
        io.remove(self.path, f"{self.trials.name}/{name}", rf"{self.trials.name}/[\w.+-]+")

    def remove_settings(self) -> None:
        """Remove run.json."""
        io.remove(self.path, self.settings.name, self.settings.name)

    def remove_checkpoints(self) -> None:
        """Remove all checkpoints."""
        io.remove(self.path, self.checkpoints.name, self.checkpoints.name)

    def check_free(self) -> None:
        """Raise a UsageError if the directory holds a run, a model or other files.

        Log files, prepared text and the settings of a run without a checkpoint are allowed. A path that is no directory
        fails when it is written, except a broken link.
        """
        refuse_broken_link(self.path)
        if not self.path.is_dir():
            return
        if self.has_checkpoints or self.is_finetuned:
            raise UsageError(f"{self.path}: already holds a run; use --resume, or choose another --out")
        if not self.settings.exists():
            own_names = (self.data.name, self.initial.name) if (self.data / PREPARED_FILE).is_file() else ()
            refuse_other_files(self.path, own_names)
        if self.model_config.exists():
            raise UsageError(f"{self.path}: already holds a model; choose another --out")

    def build_resume_command(self, verb: str) -> str:
        """Return the command that resumes the run."""
        return f"pretune {verb} --out {shlex.quote(str(self.path))} --resume"

    def write_settings(self, tree: Mapping[str, object]) -> None:
        """Write run.json, with what finds its paths again."""
        settings = {name: value for name, value in tree.items() if name != PATHS_KEY}
        paths = describe_paths(settings, self.path)
        io.write_json(self.settings, {**io.FORMAT, **settings, PATHS_KEY: paths})

    def read_settings(self) -> dict[str, Any]:
        """Return run.json; a run that has none cannot be resumed."""
        if not self.settings.is_file():
            raise CheckpointError(
                f"{self.path}: no run to resume ({self.settings.name} is missing); start it without --resume"
            )
        return io.read_formatted_json(self.settings, CheckpointError)

    def locate_settings(self) -> LocatedSettings:
        """Return run.json as `read_settings` does, with its paths as they are found now."""
        return locate_paths(self.read_settings(), self.path)

    def write_cost(self, summary: Mapping[str, Any]) -> None:
        """Write cost.json from the summary of a run, which marks it as finished."""
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(self.cost, {**summary["cost"], "run": about})


LOCK_FILE = ".lock"
_UNSUPPORTED_ERRNOS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Error numbers of file systems without locks."""


class RunLock:
    """Exclusive right to write into a run directory, which is created if missing.

    The content of the lock file is information for users; the lock itself is the system's and ends with the process. A
    file left by a dead process is therefore simply locked again, even if its pid is in use by another process.
    """

    def __init__(
        self, directory: Path, *, on_warning: Callable[[str], None], wait_seconds: float | None = None
    ) -> None:
        """`wait_seconds` is the time to wait for another holder; without it, the lock must be free."""
        self.directory, self.on_warning, self.wait_seconds = directory, on_warning, wait_seconds
        self.path = directory / LOCK_FILE
        self._lock: HeldLock | None = None

    @property
    def is_held(self) -> bool:
        """True while this object holds the lock."""
        return self._lock is not None and self._lock.descriptor is not None

    def __enter__(self) -> "RunLock":
        if self.directory.exists() and not self.directory.is_dir():
            raise UsageError(f"cannot write '{self.directory}': it is a file, not a directory; use another directory")
        with io.translate_write_errors(self.path):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = self._acquire()
        lock = HeldLock(descriptor)
        try:
            io.recover(self.directory)
            if previous_holder := _read_holder(descriptor):
                self.on_warning(f"{self.directory}: {previous_holder} was killed; its lock is taken over")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            with io.translate_write_errors(self.path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(holder, allow_nan=False).encode(), 0)
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None and self.is_held:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._lock.close()

    def _acquire(self) -> int:
        deadline = time.monotonic() + (self.wait_seconds or 0.0)
        while True:
            descriptor = io.open_in_place(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read_holder(descriptor) or "another process"
                os.close(descriptor)
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                if self.wait_seconds is not None:
                    raise ResourceError(
                        f"{self.directory}: in use by {holder} for more than {self.wait_seconds:g} s; try again later"
                    ) from None
                raise UsageError(
                    f"{self.directory}: in use by {holder}; wait for it, stop it, or use another directory"
                ) from None
            except OSError as error:
                if error.errno not in _UNSUPPORTED_ERRNOS:
                    os.close(descriptor)
                    raise
                self.on_warning(
                    f"{self.directory}: this file system does not support locks; do not start a second run there"
                )
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return descriptor
            os.close(descriptor)  # the previous holder removed the file after we opened it


def _read_holder(descriptor: int) -> str:
    """Describe the holder in a lock file; '' if the file is empty, as it is just after its creation."""
    data = os.pread(descriptor, 1000, 0)
    try:
        holder = json.loads(data) if data else {}
        return (
            f"a run (pid {int(holder['pid'])} on {holder['host']!r:.80}, since {holder['since']!r:.40})"
            if holder
            else ""
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return "an unknown run"
