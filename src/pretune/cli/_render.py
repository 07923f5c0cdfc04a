"""Terminal output in colour or plain: styled spans, columns, grids of blocks.

Rendered by rich where stdout is a terminal, as plain text otherwise, and in ASCII where the encoding has no more.
"""

import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pretune.core import log

Line = list[tuple[str, str]]
"""Spans of text with their styles."""

WIDTH = 80
MAX_WIDTH = 120
_ASCII = str.maketrans({"■": "#", "─": "-", "·": ".", "…": "...", "×": "x", "’": "'"})
_GAP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Values of a column, with their styles."""

    values: Sequence[str]
    styles: Sequence[str]

    @property
    def width(self) -> int:
        return max(map(count_cells, self.values))


def count_cells(text: str) -> int:
    """Return the width in a terminal: some characters take two cells, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int) -> str:
    """Append spaces up to a width in cells."""
    return text + " " * (width - count_cells(text))


def truncate(text: str, width: int) -> str:
    """Cut a text to a width in cells."""
    if count_cells(text) <= width:
        return text
    while count_cells(text) >= width:
        text = text[:-1]
    return text + "…"


def wrap(text: str, style: str = "", width: int = WIDTH, indent: str = "") -> list[Line]:
    """Wrap a paragraph."""
    return [[(line, style)] for line in textwrap.wrap(text, width, subsequent_indent=indent)]


def render_table(names: Column, columns: Sequence[Column], width: int) -> list[Line]:
    """Render columns side by side behind the row names; columns that do not fit continue below."""
    blocks = _balance(columns, width - names.width - 1)
    lines: list[Line] = []
    for number, block in enumerate(blocks):
        lines += [[]] if number else []
        for row, name in enumerate(names.values):
            line = [(pad(name, names.width), names.styles[row])]
            line += [(" " + pad(column.values[row], column.width), column.styles[row]) for column in block]
            lines.append(line)
    return lines


def _balance(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """Split columns into as few blocks as possible, of about equal width."""
    block_count = len(_fill(columns, room))
    limits = range(sum(column.width + 1 for column in columns) // block_count, room)
    tries = (_fill(columns, limit) for limit in limits)
    return next((blocks for blocks in tries if len(blocks) == block_count), _fill(columns, room))


def _fill(columns: Sequence[Column], room: int) -> list[list[Column]]:
    blocks: list[list[Column]] = [[]]
    width = 0
    for column in columns:
        if blocks[-1] and width + column.width + 1 > room:
            blocks.append([])
            width = 0
        blocks[-1].append(column)
        width += column.width + 1
    return blocks


def place_side_by_side(blocks: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """Place blocks of lines next to each other where they fit, else below."""
    rows: list[list[Sequence[Line]]] = [[]]
    row_width = 0
    for block in blocks:
        size = _measure_width(block)
        if rows[-1] and row_width + _GAP + size > width:
            rows.append([])
            row_width = 0
        row_width += size + (_GAP if rows[-1] else 0)
        rows[-1].append(block)
    lines: list[Line] = []
    for number, row in enumerate(rows):
        lines += [[]] if number else []
        for height in range(max(map(len, row), default=0)):
            line: Line = []
            for place, block in enumerate(row):
                part = block[height] if height < len(block) else []
                fill = _measure_width(block) - sum(count_cells(text) for text, _ in part)
                line += [*part, (" " * (fill + (_GAP if place < len(row) - 1 else 0)), "")]
            lines.append(line)
    return lines


def _measure_width(block: Sequence[Line]) -> int:
    return max(sum(count_cells(text) for text, _ in line) for line in block)


def print_lines(render: Callable[[int, bool], list[Line]]) -> None:
    """Print what `render(width, colour)` returns: at most 120 cells in a terminal, else 80 without colour."""
    encoding = sys.stdout.encoding or "utf-8"  # None: an in-memory stream
    if not sys.stdout.isatty():
        lines = ["".join(text for text, _ in line).rstrip() for line in render(WIDTH, False)]
        log.print_result("\n".join(_to_encodable(line, encoding) for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in render(max(min(console.width, MAX_WIDTH), 40), True):
        console.print(
            Text.assemble(*((_to_encodable(log.escape(text), encoding), style) for text, style in line)),
            no_wrap=True,
            overflow="ignore",
            crop=False,
        )


def _to_encodable(text: str, encoding: str) -> str:
    """Replace characters that the encoding lacks, keeping the width (but for dots)."""
    if not _is_encodable("■·…×─", encoding):
        text = text.translate(_ASCII)
    if _is_encodable(text, encoding):
        return text
    return "".join(c if _is_encodable(c, encoding) else "?" * count_cells(c) for c in text)


def _is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
