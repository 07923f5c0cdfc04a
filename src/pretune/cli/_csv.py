"""CSV output (RFC 4180): a header, one record per line, CRLF line ends."""

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from pretune.core import log
from pretune.core.errors import UsageError

AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
"""Option of every verb that prints a table."""


def check_format(as_json: bool, as_csv: bool) -> None:
    """Raise where two output formats are requested."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; choose one")


def print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print records to stdout; None is an empty field. On a terminal, control characters are escaped."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(header)
    render = log.escape if sys.stdout.isatty() else str
    writer.writerows(["" if cell is None else render(str(cell)) for cell in row] for row in rows)
    sys.stdout.write(text.getvalue())
