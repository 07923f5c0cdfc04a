"""Lines in colour or without: spans of text with a style, columns under each other, and grids of blocks.

Drawn by rich where stdout is a terminal, plain text where it is not, in ASCII where it can do no more.
"""

import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pretune.core import log

Line = list[tuple[str, str]]
"""Pieces of text, each with a style."""

WIDTH = 80
MAX_WIDTH = 120
_ASCII = str.maketrans({"■": "#", "─": "-", "·": ".", "…": "...", "×": "x", "’": "'"})
_GAP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Values under each other, with their styles."""

    values: Sequence[str]
    styles: Sequence[str]

    @property
    def width(self) -> int:
        return max(map(count_cells, self.values))


def count_cells(text: str) -> int:
    """How wide a text is in a terminal: some characters take two cells, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int) -> str:
    """A text with spaces behind it."""
    return text + " " * (width - count_cells(text))


def truncate(text: str, width: int) -> str:
    """A text that is not wider than so many cells."""
    if count_cells(text) <= width:
        return text
    while count_cells(text) >= width:
        text = text[:-1]
    return text + "…"


def wrap(text: str, style: str = "", width: int = WIDTH, indent: str = "") -> list[Line]:
    """A paragraph."""
    return [[(line, style)] for line in textwrap.wrap(text, width, subsequent_indent=indent)]


def render_table(names: Column, columns: Sequence[Column], width: int) -> list[Line]:
    """Columns side by side behind the names of their rows; those that do not fit follow below, and so on."""
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
    """Columns in as few blocks as there must be, and those about equally wide."""
    fewest = len(_fill(columns, room))
    limits = range(sum(column.width + 1 for column in columns) // fewest, room)
    tries = (_fill(columns, limit) for limit in limits)
    return next((blocks for blocks in tries if len(blocks) == fewest), _fill(columns, room))


def _fill(columns: Sequence[Column], room: int) -> list[list[Column]]:
    blocks: list[list[Column]] = [[]]
    used = 0
    for column in columns:
        if blocks[-1] and used + column.width + 1 > room:
            blocks.append([])
            used = 0
        blocks[-1].append(column)
        used += column.width + 1
    return blocks


def place_side_by_side(blocks: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """Blocks of lines next to each other where there is room, else below."""
    rows: list[list[Sequence[Line]]] = [[]]
    used = 0
    for block in blocks:
        size = _measure_width(block)
        if rows[-1] and used + _GAP + size > width:
            rows.append([])
            used = 0
        used += size + (_GAP if rows[-1] else 0)
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
    """Print lines that are made for a width, that of the terminal up to a limit or 80, in colour or not."""
    encoding = sys.stdout.encoding or "utf-8"  # none: text in memory
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
    """A text as the terminal can show it, as wide as before but for dots."""
    if not _is_encodable("■·…×─", encoding):
        text = text.translate(_ASCII)
    return (
        text
        if _is_encodable(text, encoding)
        else "".join(c if _is_encodable(c, encoding) else "?" * count_cells(c) for c in text)
    )


def _is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
