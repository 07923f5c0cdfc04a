"""HTML that cannot be broken by what it shows: children that are plain text are escaped.

element("p", "1 < 2", kind="note").html          # '<p class="note">1 &lt; 2</p>'
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VOID_ELEMENTS = frozenset({"path", "line", "circle"})
"""Elements of SVG that hold nothing, and end themselves."""


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is HTML already."""

    html: str


Child = Markup | str
NO_MARKUP = Markup("")
EMPTY_CELLS = ("", NO_MARKUP)
MAX_UNFOLDED = 240
"""Notes with more characters than these are folded."""


def strip_control_characters(value: object) -> str:
    """Text without characters that steer a terminal or that nobody sees.

    >>> strip_control_characters("\\x1b[31mred\\nnext")
    '�[31mred next'
    """
    return "".join(one if one.isprintable() else " " if one in "\n\t\r" else "�" for one in str(value))


def escape(value: object) -> str:
    """Text that is nothing but text in HTML."""
    return html.escape(strip_control_characters(value))


def element(tag: str, *children: Child, kind: str = "", **attributes: object) -> Markup:
    """One element; `kind` is its class, and `_` in the names of attributes is a dash."""
    given = {"class": kind} if kind else {}
    given |= {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    opening = "".join([f"<{tag}", *(f' {name}="{escape(value)}"' for name, value in given.items())])
    return Markup(f"{opening}/>" if tag in VOID_ELEMENTS else f"{opening}>{join(children).html}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """One after the other."""
    return Markup("".join(one.html if isinstance(one, Markup) else escape(one) for one in children))


def table(head: Sequence[Child], rows: Iterable[Sequence[Child]], *, kind: str = "") -> Markup:
    """A table that scrolls to the side where it is too wide; numbers stand to the right.

    A column without a single value is left out.
    """
    rows = [*rows]
    columns = [
        at for at in range(len(rows[0]) if rows else 0) if not at or any(row[at] not in EMPTY_CELLS for row in rows)
    ]
    rows = [[row[at] for at in columns] for row in rows]
    head = [head[at] for at in columns] if head and rows else head
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
    """Names and values."""
    return table((), rows, kind="pairs")


def note(*text: Child) -> Markup:
    """What is said beside; what stands between backticks in it is code."""
    return element("p", *(render_code(one) if isinstance(one, str) else one for one in text), kind="note")


def notes(*lines: str) -> Markup:
    """Notes, folded where they are long together."""
    shown = join(map(note, lines))
    if sum(map(len, lines)) <= MAX_UNFOLDED:
        return shown
    return element("details", element("summary", "Notes" if len(lines) > 1 else "Note"), shown)


def render_code(text: str) -> Markup:
    """Text with what stands between backticks as code.

    >>> render_code("`pretune env` < all").html
    '<code>pretune env</code> &lt; all'
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one that is never closed
        return Markup(escape(text))
    return join(element("code", part) if place % 2 else part for place, part in enumerate(parts))


def code(*lines: str) -> Markup:
    """Commands."""
    return element("pre", element("code", Markup("\n".join(map(escape, lines)))))


def _get_cell_class(cell: Child) -> str:
    return "number" if isinstance(cell, str) and cell[:1] in "0123456789+-−<" and len(cell) < 30 else ""
