"""What went wrong in another process, in a form that every exception can take."""

import traceback
from dataclasses import dataclass
from typing import NoReturn

from pretune.core import errors
from pretune.core.errors import PretuneError, ResourceError


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Sent by a worker, thrown where its work was asked for: our own errors as they were, others with their trace."""

    kind: type[PretuneError] | None  # None: not an error of ours
    message: str

    @classmethod
    def from_exception(cls, error: BaseException, *, memory_message: str) -> "RemoteError":
        """Of an exception, wherever it was raised; `memory` is what is said where it was memory."""
        if isinstance(error, PretuneError):  # the classes of `core.errors` are the same in every process
            return cls(next(one for one in type(error).__mro__ if one.__module__ == errors.__name__), str(error))
        if isinstance(error, MemoryError):
            return cls(ResourceError, memory_message)
        return cls(None, "".join(traceback.format_exception(error)))

    def throw(self) -> NoReturn:
        """Raise it here."""
        raise self.kind(self.message) if self.kind else RuntimeError(f"a worker failed:\n{self.message}")
