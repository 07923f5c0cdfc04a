"""HTML construction that escapes all plain text.

element("p", "1 < 2", kind="note").html          # '<p class="note">1 &lt; 2</p>'
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VOID_ELEMENTS = frozenset({"path", "line", "circle"})
"""SVG elements without content, which are self-closing."""


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is already HTML."""

    html: str


Child = Markup | str
NO_MARKUP = Markup("")
EMPTY_CELLS = ("", NO_MARKUP)
MAX_UNFOLDED = 240
"""Longer notes are collapsed."""


def strip_control_characters(value: object) -> str:
    """Replace control and invisible characters.

    >>> strip_control_characters("\\x1b[31mred\\nnext")
    '�[31mred next'
    """
    return "".join(
        character if character.isprintable() else " " if character in "\n\t\r" else "�" for character in str(value)
    )


def escape(value: object) -> str:
    """Escape text for HTML."""
    return html.escape(strip_control_characters(value))


def element(tag: str, *children: Child, kind: str = "", **attributes: object) -> Markup:
    """Return an element; `kind` is its class, and `_` in attribute names becomes a dash."""
    values = {"class": kind} if kind else {}
    values |= {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    opening = "".join([f"<{tag}", *(f' {name}="{escape(value)}"' for name, value in values.items())])
    return Markup(f"{opening}/>" if tag in VOID_ELEMENTS else f"{opening}>{join(children).html}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """Concatenate children."""
    return Markup("".join(child.html if isinstance(child, Markup) else escape(child) for child in children))


def table(head: Sequence[Child], rows: Iterable[Sequence[Child]], *, kind: str = "") -> Markup:
    """Render a table that scrolls sideways; numbers are right-aligned, empty columns dropped."""
    rows = [*rows]
    columns = [
        column
        for column in range(len(rows[0]) if rows else 0)
        if not column or any(row[column] not in EMPTY_CELLS for row in rows)
    ]
    rows = [[row[column] for column in columns] for row in rows]
    head = [head[column] for column in columns] if head and rows else head
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, kind=_get_cell_class(cell)) for cell in row[1:]),
        )
        for row in rows
    ]
    top = element("thead", element("tr", *(element("th", cell, scope="col") for cell in head))) if head else NO_MARKUP
    return element("div", element("table", top, element("tbody", *body), kind=kind), kind="wide")


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Render a table of names and values."""
    return table((), rows, kind="pairs")


def note(*text: Child) -> Markup:
    """Render a note; text between backticks is code."""
    return element("p", *(render_code(child) if isinstance(child, str) else child for child in text), kind="note")


def notes(*lines: str) -> Markup:
    """Render notes, collapsed where they are long."""
    content = join(map(note, lines))
    if sum(map(len, lines)) <= MAX_UNFOLDED:
        return content
    return element("details", element("summary", "Notes" if len(lines) > 1 else "Note"), content)


def render_code(text: str) -> Markup:
    """Render text with code between backticks.

    >>> render_code("`pretune env` < all").html
    '<code>pretune env</code> &lt; all'
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # unbalanced
        return Markup(escape(text))
    return join(element("code", part) if place % 2 else part for place, part in enumerate(parts))


def code(*lines: str) -> Markup:
    """Render a block of commands."""
    return element("pre", element("code", Markup("\n".join(map(escape, lines)))))


def _get_cell_class(cell: Child) -> str:
    return "number" if isinstance(cell, str) and cell[:1] in "0123456789+-−<" and len(cell) < 30 else ""
