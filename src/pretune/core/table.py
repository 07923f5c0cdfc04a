"""Tables of texts, in aligned columns for the terminal and in Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Row = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Title and table; with `align_right`, all columns but the first are right-aligned."""

    title: str
    rows: Sequence[Row] = ()
    header: Row | None = None
    align_right: bool = False


def align_columns(rows: Iterable[Row], *, right: bool = False, indent: str = "  ") -> Iterator[str]:
    """Yield the lines of a table; with `right`, all columns but the first are right-aligned.

    >>> [*align_columns([("loss", "7.1"), ("perplexity", "1200")], right=True)]
    ['  loss         7.1', '  perplexity  1200']
    """
    rows = [*rows]
    widths = [max(map(count_cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        fills = [" " * (width - count_cells(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            fill + cell if right and number else cell + fill
            for number, (cell, fill) in enumerate(zip(row, fills, strict=True))
        ]
        yield f"{indent}{'  '.join(cells)}".rstrip()


def count_cells(text: str) -> int:
    """Return the width in a terminal: some characters take two cells, some none."""
    if max(text, default="") < "\u0300":  # all letters with accents, and none that combine
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def format_markdown(header: Row, rows: Iterable[Row], *, text_columns: int | None = None) -> str:
    """Return a table in Markdown, of escaped cells; columns after the first `text_columns` are right-aligned.

    >>> print(format_markdown(("split", "tokens"), [("train", "9,000")], text_columns=1))
    | split | tokens |
    | --- | ---: |
    | train | 9,000 |
    """
    text_columns = len(header) if text_columns is None else text_columns
    rule = [*["---"] * text_columns, *["---:"] * (len(header) - text_columns)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
