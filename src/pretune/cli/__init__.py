"""Command line: one file per verb.

To add a verb, write `cli/VERB.py` with one function whose docstring is the help (a summary line, then an example), and
add one line to `VERBS`, in the order of the help. Its parameters are options values, which stand for all of their
fields:

    @option_set
    class CountOptions(Options):
        text: str = option("TEXT", "Text to count.", is_required=True)
        words: bool = option("--words", "Count words, not characters.", default=False)

    def count(options: CountOptions, output: OutputFormat) -> None:
        '''Count the characters of a text.

        Example: pretune count "a lovely film" --words
        '''
        from pretune.text.words import split_words   # heavy imports go inside the function

The function prints its result to stdout, logs everything else through `pretune.core.log`, and raises a `PretuneError`
on failure. Nothing here or at the top of a verb's file may import torch or numpy.
"""

import collections
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

# NOTE: imported before Ctrl-C is handled, so this imports almost nothing.
if TYPE_CHECKING:
    from pretune.cli.app import VERBS

__all__ = ["VERBS", "main"]

EXIT_INTERRUPTED = 130
"""Exit code of `UserInterruptError`."""
EXIT_STOPPED = 75
"""Exit code of `StoppedError`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to those of the process.

    Ctrl-C never prints a traceback, not even during imports or shutdown.
    """
    _replace_closed_streams()
    if arguments is not None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from pretune.cli.app import main as run

        return run(arguments)  # called by a program, which handles signals itself
    signal.signal(signal.SIGINT, exit_at_once)
    terminate = signal.getsignal(signal.SIGTERM)
    if terminate is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, exit_before_start)
    from pretune.cli.app import main as run

    try:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was handled
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # NOTE: after a Ctrl-C inside code from a string, as a namedtuple is made of, `python -m` ends as if killed by
        # SIGINT, although it was handled. Running such code to its end resets that.
        collections.namedtuple("Reset", ())


def _replace_closed_streams() -> None:
    """Open the null device for standard streams that the caller has closed (`>&-`).

    The lowest free descriptor is that of the stream: no file that is opened later takes its place.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 (open to the end)


def exit_at_once(number: int = signal.SIGINT, frame: object = None) -> NoReturn:
    """Exit without cleaning up."""
    os.write(2, b"pretune: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def exit_before_start(number: int, frame: object) -> NoReturn:
    """Exit before the verb has begun: a server has then stopped as asked, anything else can be run again."""
    os.write(2, b"pretune: stopped by SIGTERM before it began\n")
    os._exit(0 if sys.argv[1:2] == ["serve"] else EXIT_STOPPED)


@contextlib.contextmanager
def shut_down_cleanly() -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into an exception, so that the block removes its unfinished files.

    A second signal does not interrupt the cleanup. A third one ends the process at once.
    """
    from pretune.core.errors import StoppedError, StopRequest

    count = 0

    def stop(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        if count == 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        if count == 1:
            name = signal.Signals(number).name
            raise StopRequest(StoppedError(f"stopped by {name}; no output was written; run the command again"))
        if count == 2:  # NOTE: not print, which may be interrupted within a line.
            hint = b"; press Ctrl-C again to stop at once" if number == signal.SIGINT else b""
            os.write(2, b"pretune: removing unfinished files" + hint + b"\n")
        else:
            exit_at_once()

    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in handlers.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # background jobs of a shell ignore it
            signal.signal(number, stop)
    try:
        yield
    except StopRequest as request:
        raise request.error from None
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(number, handler)


def __getattr__(name: str) -> Any:
    if name == "VERBS":
        from pretune.cli.app import VERBS

        return VERBS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
