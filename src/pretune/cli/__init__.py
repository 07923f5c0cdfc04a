"""The command line: verbs first, one file per verb.

To add a verb, write `cli/VERB.py` with one plain function whose docstring is the help (first line: what it does; then
an example) and whose parameters are annotated for typer, and add one line to `VERBS`, in the order of the help:

    def show(name: Annotated[str, typer.Argument(metavar="FAMILY[-SIZE]", help="What to show.")]) -> None:
        '''Show a model's size and cost without building it.

        Example: pretune show bert-base
        '''
        from pretune.models.catalog import resolve   # heavy imports go inside the function

The function prints its result to stdout, says everything else through `pretune.core.log`, and raises a `PretuneError`
when it cannot go on. Nothing here or at the top of a verb's file may import torch or numpy.
"""

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pretune.cli._signals import INTERRUPTED, exit_at_once

if TYPE_CHECKING:
    from pretune.cli.app import VERBS

__all__ = ["VERBS", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` are those of the process by default.

    Ctrl-C never gives a traceback: neither while modules are imported, nor while the process ends.
    """
    if arguments is not None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from pretune.cli.app import main as run

        return run(arguments)  # called by a program, which has its own idea of signals
    signal.signal(signal.SIGINT, exit_at_once)
    from pretune.cli.app import main as run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # the second one, while the first was handled
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def __getattr__(name: str) -> Any:
    if name == "VERBS":
        from pretune.cli.app import VERBS

        return VERBS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
