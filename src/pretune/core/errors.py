"""Errors that users can act on, one class per exit code.

A message is ONE line and states, in this order: the problem, its location (file, line, byte, field), the allowed
values, the fix. It starts in lower case, quotes the offending value, and ends without a full stop:

    unknown family 'brt'; did you mean 'bert'? (`pretune list families` shows all)
    runs/a/MANIFEST.json: 'model.safetensors' has 120 bytes, the manifest says 4096; copy the directory again

Raise an error where the value is used. Anything that is not a `PretuneError` is a bug and is reported as one. Names
that papers and other libraries use for our settings (`SYNONYMS`) are suggestions of ours.
"""

import difflib
import importlib
import itertools
import os
import stat
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

SYNONYMS: dict[str, str] = {
    "width": "hidden_size d_model n_embd dim embed_dim model_dim",
    "depth": "num_hidden_layers num_layers n_layer n_layers layers",
    "heads": "num_attention_heads num_heads n_head n_heads",
    "hidden": "intermediate_size d_ff ffn_dim",
    "vocab": "vocab_size n_vocab",
    "max_length": "max_seq_length max_seq_len max_len seq_len seq_length sequence_length block_size",
    "lr": "learning_rate",
    "batch": "batch_size train_batch_size per_device_train_batch_size",
    "batch_tokens": "batch_size train_batch_size per_device_train_batch_size",
    "epochs": "num_epochs num_train_epochs n_epochs",
    "steps": "max_steps num_steps train_steps",
    "warmup": "warmup_steps warmup_ratio num_warmup_steps",
    "clip": "max_grad_norm grad_clip gradient_clip gradient_clipping",
    "precision": "fp16 bf16 amp mixed_precision",
    "eval_every": "eval_steps eval_interval",
    "checkpoint_every": "save_steps save_interval",
    "log_every": "logging_steps log_interval",
    "workers": "num_workers dataloader_num_workers",
    "activation_checkpointing": "gradient_checkpointing",
    "max_checkpoints": "save_total_limit keep_checkpoint_max",
    "causal": "clm lm language_modeling autoregressive",
    "masked": "mlm masked_lm masked_language_modeling cloze",
    "next_sentence": "nsp",
    "sentence_order": "sop",
    "replaced_token": "rtd",
    "permuted": "plm",
    "translation": "tlm",
    "bidirectional": "bilm",
    "frozen": "feature_extraction linear_probe",
}
"""By our name: theirs, separated by spaces."""


def find_synonyms(word: str) -> list[str]:
    """Return our names for a synonym; of a path or an option, the last part counts.

    >>> find_synonyms("train.learning_rate"), find_synonyms("--batch-size"), find_synonyms("lr")
    (['lr'], ['batch', 'batch_tokens'], [])
    """
    last = word[:200].rpartition(".")[2].strip("-").replace("-", "_").lower()
    return [name for name, theirs in SYNONYMS.items() if last in theirs.split()]


MAX_FILES = 10_000
"""Maximum number of directory entries compared with the name of a missing file."""


class PretuneError(Exception):
    """Base class of all expected errors; the message is shown to the user unchanged."""

    exit_code: ClassVar[int] = 1


class UsageError(PretuneError):
    """Invalid command, config or argument."""

    exit_code = 2


class DataError(PretuneError):
    """Invalid corpus, task file or shard."""

    exit_code = 3


class CheckpointError(PretuneError):
    """Incomplete, damaged or incompatible run, checkpoint or model directory."""

    exit_code = 4


class NonFiniteError(CheckpointError):
    """NaN or infinity in the weights or outputs of a model."""


class DivergedError(PretuneError):
    """Training diverged to NaN or infinity."""

    exit_code = 5


class ResourceError(PretuneError):
    """Full or read-only disk, out of memory, or missing device."""

    exit_code = 6


class StoppedError(PretuneError):
    """Stop requested by a signal; the state is saved and the run can be resumed."""

    exit_code = 75


class UserInterruptError(PretuneError):
    """Ctrl-C pressed by the user; the state is saved."""

    exit_code = 130


class StopRequest(BaseException):
    """Exception raised by a signal handler while there is nothing to save; the CLI then raises its `error`.

    NOTE: not a subclass of Exception, which a library that is being imported may catch and drop.
    """

    def __init__(self, error: PretuneError) -> None:
        super().__init__(str(error))
        self.error = error


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library, or raise a UsageError that names the extra it belongs to."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{purpose} the extra '{extra}': pip install 'pretune[{extra}]'") from None


def suggest(word: str, options: Iterable[str]) -> str:
    """Return the end of a message that names the option closest to `word`, or "" if none is close.

    >>> suggest("brt", ["bert", "gpt2"])
    "; did you mean 'bert'?"
    """
    option = find_closest(word, options)
    return "" if option is None else f"; did you mean '{option}'?"


def find_closest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that `word` is a synonym of or, failing that, the closest one; None if none is close.

    >>> find_closest("train.learning_rate", ["train.steps", "train.lr"]), find_closest("stes", ["steps", "lr"])
    ('train.lr', 'steps')
    """
    # Compare in lower case, so that 'BERT' finds 'bert'. Truncate long words: difflib is quadratic in the worst case.
    choices = list(options)
    synonyms = [
        choice for name in find_synonyms(word) for choice in choices if choice.rpartition(".")[2].strip("-") == name
    ]
    if synonyms:
        return min(synonyms, key=len)
    close = difflib.get_close_matches(word[:200].lower(), {option.lower() for option in choices}, n=1, cutoff=0.6)
    alike = [option for option in choices if close and option.lower() == close[0]]  # 'b.txt' and 'B.txt'
    return max(
        alike, key=lambda option: sum(left == right for left, right in zip(option, word, strict=False)), default=None
    )


def get_file_type(path: str | os.PathLike[str]) -> str:
    """Return the type of a path: folder, file, device, pipe or socket.

    >>> get_file_type("/dev/null"), get_file_type("/")
    ('device', 'folder')
    """
    mode = Path(path).stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "file")


def explain_missing(path: str | os.PathLike[str], noun: str = "file", remedy: str = "") -> str:
    """Explain why `path` is not an existing `noun` ("file" or "directory"); append `remedy` if no similar name exists.

    >>> explain_missing("/dev/null"), explain_missing("9f3/x", "directory")
    ('it is a device, not a file', "no such directory; there is no folder '9f3'")
    """
    try:
        if Path(path).name and Path(path).exists():
            return f"it is a {get_file_type(path)}, not a {noun}"
    except (OSError, ValueError):  # an empty path
        pass
    return f"no such {noun}{suggest_file(path) or remedy}"


MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 3_500
"""Limits of a file name, and of a path below which other names fit: systems allow 4,096 bytes."""


def is_possible_path(path: object) -> bool:
    """Return whether a system accepts a path, whether it exists or not: looking it up is no error."""
    try:
        encoded_path = os.fsencode(path)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # no path, or a lone surrogate
        return False
    longest_name = max(map(len, encoded_path.split(os.fsencode(os.sep))))
    return b"\0" not in encoded_path and len(encoded_path) <= MAX_PATH_BYTES and longest_name <= MAX_NAME_BYTES


def refuse_broken_link(path: str | os.PathLike[str]) -> None:
    """Raise a UsageError if a path to be written is impossible, or it or a folder of it is a link without a target."""
    if not is_possible_path(path):
        raise UsageError(f"cannot write {os.fspath(path)[:60]!r}: not a possible path; choose a shorter name")
    try:
        problem = _explain_link(_find_missing(Path(path)))
    except (OSError, ValueError):  # other errors are those of the write
        return
    if problem:
        raise UsageError(f"cannot write '{os.fspath(path)}': {problem}; choose another path")


def _find_missing(path: Path) -> Path:
    """Return the first folder of a path that does not exist, or the path."""
    return next((candidate for candidate in [*reversed(path.parents), path] if not candidate.exists()), path)


def _explain_link(path: Path) -> str:
    """Return a description of a symbolic link without a target; empty for other paths."""
    return f"'{path}' is a broken link to '{path.readlink()}'" if path.is_symlink() and not path.exists() else ""


def suggest_file(path: str | os.PathLike[str]) -> str:
    """Return the end of a message that names a broken link, the closest existing path, or the folder that is missing.

    >>> suggest_file("9f3/notes.txt")
    "; there is no folder '9f3'"
    """
    target = Path(path)
    try:
        missing = _find_missing(target)
        if problem := _explain_link(missing):
            return f"; {problem}"
        names = itertools.islice((entry.name for entry in missing.parent.iterdir()), MAX_FILES)
        closest = find_closest(missing.name, names)
    except (OSError, ValueError):  # an unreadable folder, or an empty path
        return ""
    if closest is None:
        return "" if missing == target else f"; there is no folder '{missing}'"
    similar = missing.parent / closest / target.relative_to(missing)
    return f"; did you mean '{similar if similar.exists() else missing.parent / closest}'?"


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Exception of a worker, re-raised in the parent: a `PretuneError` unchanged, others as RuntimeError."""

    kind: type[PretuneError] | None  # None: not a PretuneError
    message: str

    @classmethod
    def from_exception(cls, error: BaseException, *, memory_message: str) -> "RemoteError":
        """Wrap an exception; `memory_message` replaces the message of a MemoryError."""
        if isinstance(error, PretuneError):  # the classes of `core.errors` are the same in every process
            return cls(next(base for base in type(error).__mro__ if base.__module__ == __name__), str(error))
        if isinstance(error, MemoryError):
            return cls(ResourceError, memory_message)
        return cls(None, "".join(traceback.format_exception(error)))

    def throw(self) -> NoReturn:
        """Raise the error in this process."""
        raise self.kind(self.message) if self.kind else RuntimeError(f"a worker failed:\n{self.message}")
