"""Errors a person can act on, one class per exit code.

A message is ONE line and says, in this order: what was found, where (file, line, byte, field), what is allowed, what to
do. It starts in lower case, quotes the offending value, and ends without a full stop:

    unknown family 'brt'; did you mean 'bert'? (`pretune list families` shows all)
    runs/a/MANIFEST.json: 'model.safetensors' has 120 bytes, the manifest says 4096; copy the directory again

Raise where the value is used. Anything that is not a `PretuneError` is a bug of ours and is reported as one.
"""

import difflib
import itertools
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from pretune.core.synonyms import find_synonyms

MAX_FILES = 10_000
"""So many names of a folder are compared with one that is not there."""


class PretuneError(Exception):
    """Base of every error we raise on purpose; the message is shown to the user as it is."""

    exit_code: ClassVar[int] = 1


class UsageError(PretuneError):
    """The command, the config or an argument asks for something that does not exist or cannot be."""

    exit_code = 2


class DataError(PretuneError):
    """A corpus, task file or shard is not what it should be."""

    exit_code = 3


class CheckpointError(PretuneError):
    """A run, checkpoint or model directory is incomplete, damaged or does not fit."""

    exit_code = 4


class NonFiniteError(CheckpointError):
    """The weights or the outputs of a model hold NaN or infinity."""


class DivergedError(PretuneError):
    """Training went to NaN or infinity and cannot go on."""

    exit_code = 5


class ResourceError(PretuneError):
    """The disk is full or not writable, memory ran out, a device is missing."""

    exit_code = 6


class StoppedError(PretuneError):
    """A signal asked us to stop; the state is saved and the run can be resumed."""

    exit_code = 75


class UserInterruptError(PretuneError):
    """The user pressed Ctrl-C; the state is saved."""

    exit_code = 130


class StopRequest(BaseException):
    """Raised by a handler of signals while there is nothing to save; `error` is raised where handling ends.

    NOTE: no Exception, which a library that is being imported may catch and forget.
    """

    def __init__(self, error: PretuneError) -> None:
        super().__init__(str(error))
        self.error = error


def suggest(word: str, options: Iterable[str]) -> str:
    """The tail of a message that names the option closest to `word`, or nothing when none is close.

    >>> suggest("brt", ["bert", "gpt2"])
    "; did you mean 'bert'?"
    """
    found = find_closest(word, options)
    return "" if found is None else f"; did you mean '{found}'?"


def find_closest(word: str, options: Iterable[str]) -> str | None:
    """The option that is `word` in our words, or closest to it, if one is close.

    >>> find_closest("train.learning_rate", ["train.steps", "train.lr"]), find_closest("stes", ["steps", "lr"])
    ('train.lr', 'steps')
    """
    # Both sides in lower case, so that 'BERT' finds 'bert'. Long words are cut: difflib is quadratic in the worst case.
    known = list(options)
    same = [one for name in find_synonyms(word) for one in known if one.rpartition(".")[2].strip("-") == name]
    if same:
        return min(same, key=len)
    close = difflib.get_close_matches(word[:200].lower(), {option.lower() for option in known}, n=1, cutoff=0.6)
    alike = [option for option in known if close and option.lower() == close[0]]  # 'b.txt' and 'B.txt'
    return max(alike, key=lambda option: sum(a == b for a, b in zip(option, word, strict=False)), default=None)


def get_file_type(path: str | os.PathLike[str]) -> str:
    """Name what a path leads to: a folder, a file, or something that is not stored as one.

    >>> get_file_type("/dev/null"), get_file_type("/")
    ('device', 'folder')
    """
    mode = Path(path).stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "file")


def explain_missing(path: str | os.PathLike[str], expected: str = "file", remedy: str = "") -> str:
    """Return why a path is not the file or directory that was expected; `remedy` is for where no name is near.

    >>> explain_missing("/dev/null"), explain_missing("9f3/x", "directory")
    ('it is a device, not a file', "no such directory; there is no folder '9f3'")
    """
    try:
        if Path(path).name and Path(path).exists():
            return f"it is a {get_file_type(path)}, not a {expected}"
    except (OSError, ValueError):  # no name at all
        pass
    return f"no such {expected}{suggest_file(path) or remedy}"


def suggest_file(path: str | os.PathLike[str]) -> str:
    """The same for a file or folder that is not there: the closest name beside it, or the folder that lacks.

    >>> suggest_file("9f3/notes.txt")
    "; there is no folder '9f3'"
    """
    wanted = Path(path)
    try:
        lacking = next((one for one in [*reversed(wanted.parents), wanted] if not one.exists()), wanted)
        names = itertools.islice((entry.name for entry in lacking.parent.iterdir()), MAX_FILES)
        found = find_closest(lacking.name, names)
    except (OSError, ValueError):  # not to be read, or no name at all
        return ""
    if found is None:
        return "" if lacking == wanted else f"; there is no folder '{lacking}'"
    whole = lacking.parent / found / wanted.relative_to(lacking)
    return f"; did you mean '{whole if whole.exists() else lacking.parent / found}'?"
