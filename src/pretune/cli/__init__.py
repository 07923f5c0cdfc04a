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

from pretune.cli.app import VERBS, main

__all__ = ["VERBS", "main"]
