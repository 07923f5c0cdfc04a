"""What the library says when it fails, as errors of ours."""

import contextlib
from collections.abc import Iterator

from pretune.core.errors import PretuneError


@contextlib.contextmanager
def translate_errors(error: type[PretuneError], message: str) -> Iterator[None]:
    """Turn the library's exceptions into one line: `what` failed, and why."""
    try:
        yield
    except (PretuneError, MemoryError, TypeError):
        raise
    except BaseException as fault:
        # NOTE: the library raises bare Exception, and where it panics something that is not even one.
        if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
            raise
        words = " ".join(str(fault).split())[:200] or type(fault).__name__
        raise error(f"{message} ({''.join(c if c.isprintable() else '?' for c in words)})") from None
