"""Translation of exceptions of the `tokenizers` library."""

import contextlib
from collections.abc import Iterator

from pretune.core.errors import PretuneError


@contextlib.contextmanager
def translate_errors(error: type[PretuneError], message: str) -> Iterator[None]:
    """Raise exceptions of the library as `error` with a one-line message."""
    try:
        yield
    except (PretuneError, MemoryError, TypeError):
        raise
    except BaseException as fault:
        # NOTE: the library raises bare Exception, and its panics are not even Exceptions.
        if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
            raise
        words = " ".join(str(fault).split())[:200] or type(fault).__name__
        raise error(f"{message} ({''.join(c if c.isprintable() else '?' for c in words)})") from None
