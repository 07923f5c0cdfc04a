"""Exceptions of worker processes, in a picklable form."""

import traceback
from dataclasses import dataclass
from typing import NoReturn

from pretune.core import errors
from pretune.core.errors import PretuneError, ResourceError


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Exception of a worker, re-raised in the parent: a `PretuneError` unchanged, others as RuntimeError."""

    kind: type[PretuneError] | None  # None: not a PretuneError
    message: str

    @classmethod
    def from_exception(cls, error: BaseException, *, memory_message: str) -> "RemoteError":
        """Wrap an exception; `memory_message` replaces the message of a MemoryError."""
        if isinstance(error, PretuneError):  # the classes of `core.errors` are the same in every process
            return cls(next(base for base in type(error).__mro__ if base.__module__ == errors.__name__), str(error))
        if isinstance(error, MemoryError):
            return cls(ResourceError, memory_message)
        return cls(None, "".join(traceback.format_exception(error)))

    def throw(self) -> NoReturn:
        """Raise the error in this process."""
        raise self.kind(self.message) if self.kind else RuntimeError(f"a worker failed:\n{self.message}")
