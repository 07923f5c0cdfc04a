"""Errors a person can act on, one class per exit code.

A message is ONE line and says, in this order: what was found, where (file, line, byte, field), what is allowed, what to
do. It starts in lower case, quotes the offending value, and ends without a full stop:

    unknown family 'brt'; did you mean 'bert'? (`pretune list families` shows all)
    runs/a/MANIFEST.json: 'model.safetensors' has 120 bytes, the manifest says 4096; copy the directory again

Raise where the value is used. Anything that is not a `PretuneError` is a bug of ours and is reported as one.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


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


class DivergedError(PretuneError):
    """Training went to NaN or infinity and cannot go on."""

    exit_code = 5


class ResourceError(PretuneError):
    """The disk is full or not writable, memory ran out, a device is missing."""

    exit_code = 6


class Stopped(PretuneError):
    """A signal asked us to stop; the state is saved and the run can be resumed."""

    exit_code = 75


class Interrupted(PretuneError):
    """The user pressed Ctrl-C; the state is saved."""

    exit_code = 130


def nearest(word: str, options: Iterable[str]) -> str:
    """The tail of a message that names the option closest to `word`, or nothing when none is close.

    >>> nearest("brt", ["bert", "gpt2"])
    "; did you mean 'bert'?"
    """
    # Both sides in lower case, so that 'BERT' finds 'bert'. Long words are cut: difflib is quadratic in the worst case.
    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(word[:200].lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""
