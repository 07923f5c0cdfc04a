"""Files of a model directory: safetensors (headers, tensors, sharded writing), those of sentence-transformers, others.

Pickles are never loaded: they are refused by suffix, and under any other name by their first bytes.
"""

import itertools
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pretune.core import io
from pretune.core.config import read_record
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.hub import WeightIndex, is_gguf
from pretune.models.compact import COMPACT_FILE, SCALE, restore_rows
from pretune.text.tokenizer.open_vocabulary import OpenTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

    from pretune.text.tokenizer import Tokenizer

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
PICKLE_PREFIXES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of a pickle: torch's zip archive, or a bare pickle."""

FLOAT_DTYPES = frozenset({"F32", "F16", "BF16", "F64"})
"""Allowed dtypes of stored weights."""

REMEDY = f"save the weights as {SINGLE_FILE}"

BODY_VARIANT = "body"
BODY_FILE = f"model.{BODY_VARIANT}.safetensors"
"""File of a body whose head is stored in modules of sentence-transformers: the name that transformers gives a variant,
so that no class of transformers loads it without the head."""

CHUNK_VALUES = 1 << 22
"""Values checked at a time, to bound memory."""

WEIGHT_FILES = (SINGLE_FILE, INDEX_FILE, BODY_FILE, COMPACT_FILE, "model-?????-of-?????.safetensors")
"""Patterns of the files that `write_shards` writes."""


@dataclass(frozen=True)
class TensorInfo:
    """Header of a tensor: file, key, shape and dtype (as safetensors names it), and the key of its scales."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str
    scale: str | None = None

    def with_scale(self, scale: "TensorInfo") -> "TensorInfo":
        """Return the header of a matrix in 8 bits, which is read as float32."""
        if scale.file != self.file or len(self.shape) != 2:
            raise CheckpointError(f"{self.file}: tensor {format_value(self.key)}: its scales are not those of a matrix")
        return replace(self, dtype="F32", scale=scale.key)


def read_headers(folder: Path) -> dict[str, TensorInfo]:
    """Return the headers of all tensors of a directory, by key."""
    infos: dict[str, TensorInfo] = {}
    for file in list_weight_files(folder):
        with open_tensors(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118 (not a mapping)
                part = tensors.get_slice(key)
                if key in infos:
                    raise CheckpointError(f"{file}: tensor {format_value(key)} is also in {infos[key].file.name}")
                infos[key] = TensorInfo(file, key, tuple(part.get_shape()), part.get_dtype())
    for key, name in _read_index(folder).items():
        if key not in infos or infos[key].file.name != name:
            raise CheckpointError(f"{folder / name}: tensor {format_value(key)} is missing, but {INDEX_FILE} lists it")
    return _join_scales(infos)


def _join_scales(infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return the headers of the matrices and vectors, those in 8 bits with their scales: they are read as float32."""
    matrices = {}
    for name, info in infos.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in infos:
            continue
        scale = infos.get(name + SCALE)
        if scale is None:
            matrices[name] = info
            continue
        if info.dtype != "I8" or scale.dtype != "F32" or scale.shape != info.shape[:1]:
            raise CheckpointError(
                f"{info.file}: tensor {format_value(name)} in 8 bits needs a scale in F32 for each of its rows"
            )
        matrices[name] = info.with_scale(scale)
    return matrices


def list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a directory: the single file, or those of the index."""
    if is_gguf(folder):
        return [folder]
    names = sorted(set(_read_index(folder).values())) or [find_main_file(folder).name]
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: missing, but {INDEX_FILE} lists it; copy the directory again")
    return [folder / name for name in names]


def find_main_file(folder: Path) -> Path:
    """Return the single weight file of a directory, or the index of its shards."""
    if is_gguf(folder):
        return folder
    for name in (SINGLE_FILE, INDEX_FILE, BODY_FILE, COMPACT_FILE):
        if (folder / name).is_file():
            return folder / name
    try:
        pickles = [file.name for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES]
    except OSError as fault:
        raise CheckpointError(f"{folder}: cannot be read: {fault.strerror}") from fault
    if pickles:
        first = min(pickles, key=lambda name: ("model" not in name, name))
        raise CheckpointError(f"{folder / first}: pickles can run code and are not supported; {REMEDY}")
    raise CheckpointError(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}")


def _read_index(folder: Path) -> dict[str, str]:
    """Return tensor -> file from the index; empty for a single file."""
    main = find_main_file(folder)
    if main.name != INDEX_FILE:
        return {}
    table = read_record(WeightIndex, main, CheckpointError)["weight_map"]
    if not table:
        raise CheckpointError(f"{main}: key 'weight_map' must be an object of tensor names to file names")
    for key, name in table.items():
        if not name.endswith(".safetensors"):
            raise CheckpointError(f"{main}: tensor {format_value(key)}: {format_value(name)} is not a safetensors file")
    for name in set(table.values()):
        io.resolve_inside(folder, name, CheckpointError, main)
    return table


@contextmanager
def open_tensors(file: Path) -> Iterator[Any]:
    """Open a safetensors or GGUF file; errors become one-line `CheckpointError`s."""
    if is_gguf(file):
        from pretune.models.gguf import GgufTensors

        yield GgufTensors(file)
        return
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError, ValueError, OverflowError, RuntimeError) as error:
        # NOTE: only after a failure: the header length of a valid file may look like a pickle.
        if _read_start(file).startswith(PICKLE_PREFIXES):
            raise CheckpointError(f"{file}: is a pickle, which can run code and is not supported; {REMEDY}") from None
        raise CheckpointError(f"{file}: not a readable safetensors file ({format_error(error)})") from None


def read_tensors(infos: Iterable[TensorInfo]) -> Iterator[Tensor]:
    """Yield the tensors in order; consecutive tensors of a file share one open file.

    NOTE: they are views of the memory-mapped file; copy before the file changes.
    """
    for file, entries in itertools.groupby(infos, key=lambda entry: entry.file):
        with open_tensors(file) as tensors:
            for entry in entries:
                tensor = tensors.get_tensor(entry.key)
                yield tensor if entry.scale is None else restore_rows(tensor, tensors.get_tensor(entry.scale))


def are_equal(first: TensorInfo, second: TensorInfo) -> bool:
    """Return True if two stored tensors have the same values."""
    if first == second:
        return True
    return (
        first.shape == second.shape
        and {first.dtype, second.dtype} <= FLOAT_DTYPES
        and torch.equal(*read_tensors([first, second]))
    )


def find_nonfinite(tensor: Tensor) -> int | None:
    """Return the index of the first value that is not finite, or None."""
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHUNK_VALUES):
        good = torch.isfinite(flat[start : start + CHUNK_VALUES])
        if not good.all():
            return start + int(good.logical_not().nonzero()[0])
    return None


def write_shards(folder: Path, tensors: Mapping[str, Tensor], limit: int) -> list[str]:
    """Write tensors as one file, or as shards of at most `limit` bytes with an index; return the file names."""
    groups: list[dict[str, Tensor]] = [{}]
    shard_bytes = 0
    for name, tensor in tensors.items():
        if groups[-1] and shard_bytes + tensor.nbytes > limit:
            groups.append({})
            shard_bytes = 0
        groups[-1][name] = tensor
        shard_bytes += tensor.nbytes
    if len(groups) == 1:
        save_tensors(groups[0], folder / SINGLE_FILE)
        return [SINGLE_FILE]
    names, table = [], {}
    for i, group in enumerate(groups, 1):
        names.append(f"model-{i:05}-of-{len(groups):05}.safetensors")
        save_tensors(group, folder / names[-1])
        table.update(dict.fromkeys(group, names[-1]))
    size = sum(tensor.nbytes for tensor in tensors.values())
    io.write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": table})
    return [*names, INDEX_FILE]


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write one safetensors file; a full or read-only disk becomes a one-line error."""
    with io.translate_write_errors(file):
        with file.open("ab") as handle:
            mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
        save_file(dict(tensors), file, metadata={"format": "pt"})
        file.chmod(mode)  # NOTE: save_file's temporary file is readable by its owner only, whatever the umask
        with file.open("rb") as handle:  # a full disk may be reported only now
            os.fsync(handle.fileno())


def format_error(error: Exception) -> str:
    """Format a library's error as one short printable line; it may quote the file."""
    text = " ".join((str(error) or type(error).__name__).split())
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])


def _read_start(file: Path) -> bytes:
    try:
        with file.open("rb") as raw:
            return raw.read(4)
    except OSError:
        return b""


MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE_PATTERN = "sentence_*_config.json"
"""File with the maximum sequence length; its name differs between releases."""

SENTENCE_FILES = (MODULES_FILE, PROMPTS_FILE, LENGTH_FILE_PATTERN)
"""Patterns of the files at the top level."""

MODULE_FILES = ("config.json", "model.safetensors")
"""Files that are kept from the folder of a module."""

MAX_MODULE_BYTES = 256 << 20


def read_sentence_files(folder: Path) -> dict[str, bytes]:
    """Read the files of sentence-transformers in a directory, by relative path; empty if it has no modules.json.

    `modules.json` lists the modules after the transformer (pooling, dense layer, norm), each in its own folder. The
    files are kept unchanged and saved with the model.
    """
    main = folder / MODULES_FILE
    if not main.is_file():
        return {}
    files = [main, folder / PROMPTS_FILE, *sorted(folder.glob(LENGTH_FILE_PATTERN))]
    files += [module / inside for module in _list_folders(main) for inside in MODULE_FILES]
    return {file.relative_to(folder).as_posix(): _read_bytes(file) for file in files if file.is_file()}


def write_sentence_files(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write the files; return the names of those at the top level."""
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        io.atomic_write(folder / name, data)
    return [name for name in files if "/" not in name]


def _list_folders(main: Path) -> list[Path]:
    """Return the folders that modules.json names, except the directory itself."""
    entries = io.parse_json(_read_bytes(main).decode(errors="replace"), CheckpointError, str(main))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "path" in entry for entry in entries):
        raise CheckpointError(f"{main}: expected a list of modules, each with a 'type' and a 'path'")
    paths = [entry["path"] for entry in entries if entry["path"] != ""]
    return [io.resolve_inside(main.parent, path, CheckpointError, main) for path in paths]


def _read_bytes(file: Path) -> bytes:
    return io.read_bounded(file, CheckpointError, MAX_MODULE_BYTES)


_SHARED_TOKENIZERS: "WeakValueDictionary[tuple[str, str], Tokenizer]" = WeakValueDictionary()
"""Tokenizers in use, by hash and configuration: models with the same files share one, and its cache of known words."""


@dataclass(slots=True)
class Assets:
    """Files next to the weights: the tokenizer, and small files that are saved again unchanged."""

    tokenizer: "Tokenizer | RawTokenizer | None" = None  # the raw file, until it is used
    files: dict[str, bytes] = field(default_factory=dict)
    modules: dict[str, bytes] = field(default_factory=dict)  # files of sentence-transformers, with their folders
    directory: str | None = None  # of the weights: absolute, or hf:OWNER/NAME; None: they were in none

    def load_tokenizer(self, characters: int | None = None) -> "Tokenizer | None":
        """Return the tokenizer with the roles of its special tokens, built on first use; None where there is none.

        For a model that reads words of so many `characters`, it has an open vocabulary.
        """
        from pretune.text.tokenizer import Tokenizer
        from pretune.text.tokenizer.files import (
            CHAT_TEMPLATE_FILE,
            CONFIG_FILE,
            SPECIAL_TOKENS_FILE,
            read_chat_template,
        )

        if isinstance(self.tokenizer, Tokenizer) and isinstance(self.tokenizer, OpenTokenizer) == bool(characters):
            return self.tokenizer
        if self.tokenizer is not None and not isinstance(self.tokenizer, Tokenizer):
            settings: dict[str, object] = {}
            for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):  # the later file wins
                settings |= self.read_json(name)
            if CHAT_TEMPLATE_FILE in self.files:
                settings |= read_chat_template(self.files[CHAT_TEMPLATE_FILE])
            tokenizer = Tokenizer(self.tokenizer, settings)
            key = tokenizer.sha256, json.dumps(settings, sort_keys=True, allow_nan=False)
            self.tokenizer = _SHARED_TOKENIZERS.setdefault(key, tokenizer)
        if characters and isinstance(self.tokenizer, Tokenizer):
            roles = sorted(self.tokenizer.special.items())
            key = self.tokenizer.sha256, f"{characters} characters, {roles}"
            open_tokenizer = _SHARED_TOKENIZERS.get(key) or OpenTokenizer.from_tokenizer(self.tokenizer, characters)
            self.tokenizer = _SHARED_TOKENIZERS.setdefault(key, open_tokenizer)
        return self.tokenizer

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file that came with the weights; empty where there is none."""
        content = io.parse_json(self.files.get(name, b"{}"), CheckpointError, name)
        if not isinstance(content, dict):
            raise CheckpointError(f"{name}: expected a JSON object at the top level")
        return content
