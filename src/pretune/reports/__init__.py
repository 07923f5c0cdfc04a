"""HTML reports of runs: scores, learning curves, errors, cost, data, and commands to reproduce them.

    pt.report(["runs/books", "runs/sst2"], "report.html")

Start with `page.report`, which loads run directories (`load`) and fills the page `report.html` with sections. `facts`
are rows shared with model cards. All text goes through the functions here, which escape it:

    element("p", "1 < 2", kind="note")          # '<p class="note">1 &lt; 2</p>'
"""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

MAX_UNFOLDED = 240
"""Longer notes are collapsed."""


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


NO_MARKUP = Markup("")
Section = tuple[str, str, Markup]
"""Anchor, heading and content of a part of a page."""


def escape(value: object) -> str:
    """Escape text for HTML; control and invisible characters are replaced.

    >>> escape("\\x1b[31m<red>\\nnext")
    '�[31m&lt;red&gt; next'
    """
    if isinstance(value, Markup):
        return value
    return html.escape("".join(c if c.isprintable() else " " if c in "\n\t\r" else "�" for c in str(value)))


def element(tag: str, *children: str, kind: str = "", **attributes: object) -> Markup:
    """Return an element; `kind` is its class, and `_` in attribute names becomes a dash."""
    values = ({"class": kind} if kind else {}) | attributes
    opening = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in values.items())
    return Markup(f"<{tag}{opening}>{join(children)}</{tag}>")


def link(text: str, address: str | None) -> Markup:
    """Return a link to a web address; other addresses, such as `javascript:`, and None give the text alone.

    >>> link("paper", "https://example.org"), link("paper", "javascript:alert(1)")
    ('<a href="https://example.org">paper</a>', 'paper')
    """
    is_web = address is not None and address.lower().startswith(("http://", "https://"))
    return element("a", text, href=address) if is_web else Markup(escape(text))


def join(children: Iterable[str]) -> Markup:
    """Concatenate markup and text, which is escaped."""
    return Markup("".join(map(escape, children)))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> Markup:
    """Render a table that scrolls sideways; numbers are right-aligned, empty columns dropped."""
    rows = [*rows]
    columns = [i for i in range(len(rows[0]) if rows else 0) if not i or any(row[i] for row in rows)]
    body = []
    for row in rows:
        cells = [element("td", row[i], kind="number" if _is_number(row[i]) else "") for i in columns[1:]]
        body.append(element("tr", element("th", row[0], scope="row"), *cells))
    names = [element("th", head[i], scope="col") for i in columns or range(len(head))] if head else []
    top = element("thead", element("tr", *names)) if head else NO_MARKUP
    return element("div", element("table", top, element("tbody", *body), kind=kind), kind="wide")


def pairs(rows: Iterable[tuple[str, str]]) -> Markup:
    """Render a table of names and values."""
    return table((), rows, kind="pairs")


def note(text: str) -> Markup:
    """Render a note; text between backticks is code.

    >>> note("`pretune env` < all")
    '<p class="note"><code>pretune env</code> &lt; all</p>'
    """
    parts = text.split("`") if text.count("`") % 2 == 0 else [text]
    return element("p", *(element("code", part) if i % 2 else part for i, part in enumerate(parts)), kind="note")


def notes(*lines: str) -> Markup:
    """Render notes, collapsed where they are long."""
    content = join(map(note, lines))
    if sum(map(len, lines)) <= MAX_UNFOLDED:
        return content
    return element("details", element("summary", "Notes" if len(lines) > 1 else "Note"), content)


def code(*lines: str) -> Markup:
    """Render a block of commands."""
    return element("pre", element("code", Markup("\n".join(map(escape, lines)))))


def place_figures(figures: Iterable[Markup]) -> Markup:
    """Place figures side by side; empty without any."""
    content = join(figures)
    return element("div", content, kind="charts") if content else NO_MARKUP


def tiles(numbers: Iterable[tuple[str, str]]) -> Markup:
    """Render headline numbers, each with a line about it; empty without any."""
    boxes = [element("div", element("b", number), element("span", about), kind="tile") for number, about in numbers]
    return element("div", *boxes, kind="tiles") if boxes else NO_MARKUP


def fill_page(title: str, story: Markup, headline: Markup, sections: Iterable[Section]) -> str:
    """Return the page `report.html` with its sections; empty ones are left out."""
    sections = [section for section in sections if section[2]]
    return Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        story=story,
        tiles=headline,
        links=join(element("a", name, href=f"#{anchor}") for anchor, name, _ in sections),
        sections=join(element("section", element("h2", name), body, id_=anchor) for anchor, name, body in sections),
    )


def _is_number(cell: str) -> bool:
    return not isinstance(cell, Markup) and cell[:1] in "0123456789+-−<" and 0 < len(cell) < 30
