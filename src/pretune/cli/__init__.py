"""Command line: one file per verb.

To add a verb, write `cli/VERB.py` with one function whose docstring is the help (a summary line, then an example) and
whose parameters are annotated for typer, and add one line to `VERBS`, in the order of the help:

    def show(name: Annotated[str, typer.Argument(metavar="FAMILY[-SIZE]", help="Model to show.")]) -> None:
        '''Show a model's size and cost without building it.

        Example: pretune show bert-base
        '''
        from pretune.models.catalog import resolve   # heavy imports go inside the function

The function prints its result to stdout, logs everything else through `pretune.core.log`, and raises a `PretuneError`
on failure. Nothing here or at the top of a verb's file may import torch or numpy.
"""

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pretune.cli._signals import EXIT_INTERRUPTED, exit_at_once

if TYPE_CHECKING:
    from pretune.cli.app import VERBS

__all__ = ["VERBS", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to those of the process.

    Ctrl-C never prints a traceback, not even during imports or shutdown.
    """
    if arguments is not None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from pretune.cli.app import main as run

        return run(arguments)  # called by a program, which handles signals itself
    signal.signal(signal.SIGINT, exit_at_once)
    from pretune.cli.app import main as run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was handled
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def __getattr__(name: str) -> Any:
    if name == "VERBS":
        from pretune.cli.app import VERBS

        return VERBS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
