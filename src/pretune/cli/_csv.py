"""Tables as CSV (RFC 4180): a header, one record a line, lines that end with CRLF."""

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from pretune.core import log
from pretune.core.errors import UsageError

AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
"""The option of every command that prints a table."""


def check_format(as_json: bool, as_csv: bool) -> None:
    """Refuse two output formats at once."""
    if as_json and as_csv:
        raise UsageError("--json and --csv are both given; choose one")


def print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print records to stdout; None is an empty field. On a terminal control characters are escaped."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(header)
    shown = log.escape if sys.stdout.isatty() else str
    writer.writerows(["" if cell is None else shown(str(cell)) for cell in row] for row in rows)
    sys.stdout.write(text.getvalue())
