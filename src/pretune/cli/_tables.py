"""Pages of small tables, by rich where stdout is a terminal, as aligned plain text otherwise."""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pretune.core import log

WIDTH = 80
"""Width at which titles and notes are wrapped; tables are narrower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Title and table; with `align_right`, all columns but the first are right-aligned."""

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] | None = None
    align_right: bool = False


def print_page(title: str, about: str, sections: Sequence[Section], note: str) -> None:
    """Print a page: title, description, sections, closing note."""
    if sys.stdout.isatty():
        _draw(title, about, sections, note)
        return
    lines = [*_wrap(title), *_wrap(about)]
    for section in sections:
        lines += ["", *_wrap(section.title), *_format_table(section)]
    log.print_result("\n".join([*lines, "", *_wrap(note)]))


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)  # as rich wraps, and names stay whole


def _format_table(section: Section) -> Iterator[str]:
    rows = [*([section.header] if section.header else []), *section.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [
            f"{cell:>{width}}" if section.align_right else cell for cell, width in zip(rest, widths[1:], strict=True)
        ]
        yield "  ".join([f"  {first:<{widths[0]}}", *cells]).rstrip()


def _draw(title: str, about: str, sections: Sequence[Section], note: str) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    width = min(console.width, WIDTH)
    console.print(Text(log.escape(title), style="bold"), width=width)
    console.print(Text(log.escape(about), style="dim"), width=width)
    for section in sections:
        console.print()
        console.print(Text(log.escape(section.title), style="bold cyan"), width=width)
        table = Table(box=None, show_header=section.header is not None, pad_edge=False, padding=(0, 2, 0, 0))
        for number, name in enumerate(section.header or section.rows[0]):
            heading = Text(log.escape(name) if section.header else "", style="dim")
            table.add_column(heading, justify="right" if section.align_right and number else "left", no_wrap=True)
        for row in section.rows:
            table.add_row(*(Text(log.escape(cell)) for cell in row))
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print()
    console.print(Text(log.escape(note), style="dim"), width=width)
