"""Inputs of a study: built-in corpora, the installed encoder, files below $PRETUNE_DATA, and other files."""

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretune.core import config as specs
from pretune.core.errors import PretuneError
from pretune.core.hub import INSTALLED_MODELS, is_short_name
from pretune.models import catalog
from pretune.models.spec import Model
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.defaults import read_base_spec
from pretune.runs.prepare import TASK_PREFIX
from pretune.runs.task_options import FILE_TASKS, FinetuneOptions
from pretune.tasks import TASKS
from pretune.text.corpora.builtin import BUILTINS
from pretune.text.corpora.builtin import PREFIX as BUILTIN_PREFIX
from pretune.text.corpora.file_discovery import PAIR
from pretune.text.corpora.streams import COMPRESSION

DATA_VARIABLE = "$PRETUNE_DATA"
HUB_PREFIX = "hf:"
ENCODER = f"{BUILTIN_PREFIX}encoder"
ENCODER_NAME = "minilm"
"""Short name of the encoder that `builtin:encoder` names, too."""
MODEL_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.txt")
"""Files of a run that a result depends on: its model and tokenizer. A model card or a report may change."""
RUN_FOLDERS = ("checkpoints", "trials")
"""Folders of a run that are not a part of its model."""
MAX_WHOLE_BYTES, BLOCK_BYTES, SAMPLE_BLOCKS = 2**26, 2**16, 256
"""Size up to which all of a file is read for its digest, and the blocks that are read of a larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """File, corpus or task that a step reads, with its size, and a digest of what the user may edit."""

    name: str
    size: int = 0
    digest: str | None = None


COMPRESSED_SUFFIXES = (".xz", ".gz", ".bz2", ".zst")


class StudyInputs:
    """Inputs of a study; each is looked at once, and those that are missing are noted."""

    def __init__(self, data: str | None) -> None:
        self.data = data
        self.missing: dict[str, None] = {}
        self._files: dict[str, tuple[InputFile, str | None]] = {}

    def identify(self, name: str, noun: str) -> list[InputFile]:
        """Return an input with its size and digest; of a model, whose card may change, only the digest."""
        if noun == "task":
            tasks = [task for task in name.split(",") if task in TASKS or task not in FILE_TASKS]
            return [file for task in tasks for file in self._identify_task(task)]
        if name not in self._files:
            _, size, problem = inspect_input(name, self.data)
            size = 0 if noun == "model" else size
            self._files[name] = InputFile(name=name, size=size, digest=identify_input(name, self.data)), problem
        file, problem = self._files[name]
        if problem is not None:
            self.missing[f"{noun} {problem}"] = None
        return [file]

    def _identify_task(self, name: str) -> list[InputFile]:
        task = TASKS.get(name)
        available = task.find_available(self.data)
        if not available:
            try:
                task.find(next(iter(task.splits)), self.data)
                self.missing[f"task '{name}': no data"] = None
            except PretuneError as fault:
                self.missing[str(fault)] = None
        return [
            InputFile(name=f"{name}/{split}", size=sum(path.stat().st_size for path in files.paths))
            for split, files in available.items()
        ]

    def sum_sizes(self, names: Sequence[str]) -> int:
        """Return the size of the text of corpora in bytes, of compressed ones estimated; missing ones count nothing."""
        return sum(
            self.identify(name, "corpus")[0].size * (COMPRESSION if name.endswith(COMPRESSED_SUFFIXES) else 1)
            for name in names
        )


def build_task_config(options: FinetuneOptions, data: str | None) -> TaskConfig:
    """Return the config of a task whose files are below the data directory."""
    config = {**options.list_settings(), **(options.overrides or {}), "task.data": data}
    for split in ("task.train", "task.dev", "task.test"):
        if split in config:
            config[split] = locate(config[split], data)[0]
    changes = {path.removeprefix("task."): value for path, value in config.items() if path.startswith("task.")}
    base = TaskConfig(name=changes.pop("name", None), train=changes.pop("train", None))
    return specs.replace(base, changes, "finetune.task")


def locate(name: str, data: str | None) -> tuple[str, str | None]:
    """Return the path of a file, corpus or model, and the reason if it is missing."""
    path, _, problem = inspect_input(name, data)
    return path, problem


def inspect_input(name: str, data: str | None) -> tuple[str, int, str | None]:
    """Return the path of an input, its size in bytes (0: unknown), and the reason if it is missing."""
    if name == ENCODER or is_short_name(name):
        model = INSTALLED_MODELS[ENCODER_NAME if name == ENCODER else name]
        folder = model.find()
        if folder is None:
            return name, 0, f"'{name}': {model.remedy}"
        return str(folder), _sum_sizes(str(folder)), None
    if name.startswith(BUILTIN_PREFIX):
        try:
            corpus = BUILTINS.get(name.removeprefix(BUILTIN_PREFIX))()
            corpus.check()
            return name, corpus.bytes, None
        except PretuneError as fault:  # its package is not installed
            return name, 0, str(fault)
    if name.startswith((HUB_PREFIX, TASK_PREFIX)):
        return name, 0, None
    path = expand(name, data)
    if DATA_VARIABLE in path:
        return path, 0, f"'{name}': set $PRETUNE_DATA, or --data, to the directory with the data"
    total = 0
    for part in path.removeprefix(PAIR).split(",") if path.startswith(PAIR) else [path]:
        size = _sum_sizes(part)
        if not size:
            return path, 0, f"'{name}': put it at {part}"
        total += size
    return path, total, None


def expand(name: str, data: str | None) -> str:
    """Return a path with the data directory in place of $PRETUNE_DATA: `data`, else that of the environment."""
    root = data or os.environ.get("PRETUNE_DATA")
    return name.replace(DATA_VARIABLE, root.rstrip("/")) if root else name


def identify_input(name: str, data: str | None) -> str | None:
    """Return a digest of the content of a file, corpus, model or tokenizer of the user; None if it is missing.

    None, too, for what has a fixed version: built-in corpora and models, tasks, and files below $PRETUNE_DATA.
    """
    if name.startswith((HUB_PREFIX, TASK_PREFIX, BUILTIN_PREFIX)) or DATA_VARIABLE in name or is_short_name(name):
        return None
    path = expand(name, data)
    digest, is_empty = hashlib.sha256(), True
    for part in path.removeprefix(PAIR).split(",") if path.startswith(PAIR) else [path]:
        is_model = Path(part).is_dir() and (Path(part) / "MANIFEST.json").is_file()
        for file in sorted(_list_files(part)):
            if not is_model or _is_model_file(file.relative_to(part)):
                _add_content(file, digest)
                is_empty = False
    return None if is_empty else digest.hexdigest()[:16]


def _is_model_file(file: Path) -> bool:
    """Return whether a file of a run, relative to it, is one of its model."""
    return file.parts[0] not in RUN_FOLDERS and any(file.match(pattern) for pattern in MODEL_FILES)


def _add_content(file: Path, digest: Any) -> None:
    """Add the name, size and content of a file to a digest; of a large one, blocks at equal distances."""
    size = file.stat().st_size
    digest.update(f"{file.name}\0{size}\0".encode())
    count = -(-size // BLOCK_BYTES) if size <= MAX_WHOLE_BYTES else SAMPLE_BLOCKS
    with file.open("rb") as stream:
        for number in range(count):
            stream.seek(
                number * BLOCK_BYTES if size <= MAX_WHOLE_BYTES else number * (size - BLOCK_BYTES) // (count - 1)
            )
            digest.update(stream.read(BLOCK_BYTES))


def _sum_sizes(pattern: str) -> int:
    return sum(file.stat().st_size for file in _list_files(pattern))


def _list_files(pattern: str) -> list[Path]:
    """Return a file, the files that match a pattern, or those of a folder."""
    paths = [Path(pattern)] if Path(pattern).exists() else [Path(path) for path in glob.glob(pattern, recursive=True)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return [file for file in files if file.is_file()]


def find_spec(name: str, data: str | None) -> Model | None:
    """Return the spec of an existing model; None if it is missing or has none, such as word vectors."""
    if name.startswith(HUB_PREFIX):
        return find_published_spec(name)
    path, problem = locate(name, data)
    try:
        return None if problem is not None else read_base_spec(path)
    except PretuneError:
        return None


def find_published_spec(name: str) -> Model | None:
    """Return the spec of a released model by its name on the hub, without a download; None if it is not in the catalog.

    >>> find_published_spec("hf:google-bert/bert-base-uncased").family
    'bert'
    """
    parts = name.partition("@")[0].rpartition("/")[2].removeprefix(HUB_PREFIX).lower().split("-")
    names = {"-".join(parts[:end]): None for end in range(len(parts), 1, -1)}
    published_names = {*catalog.list_names()}
    return next((catalog.resolve(candidate) for candidate in names if candidate in published_names), None)
