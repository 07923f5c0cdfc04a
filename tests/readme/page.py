"""What a page of Markdown holds: blocks of code, headings with their anchors, links and tables."""

import re
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"")


class Block(NamedTuple):
    """Code between fences, and the language that is named there."""

    language: str
    code: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in _FENCE.findall(page)]


def prose(page: str) -> str:
    """The page without its blocks of code."""
    return _FENCE.sub("", page)


def sections(page: str) -> list[tuple[str, str]]:
    """Every heading with what stands below it, up to the next heading of any depth."""
    # comments in code are no headings
    text = _FENCE.sub(lambda found: re.sub(r"^#", r"\\#", found[0], flags=re.MULTILINE), page)
    parts = re.split(_HEADING, text)
    return [*zip(parts[2::3], parts[3::3], strict=True)]


def anchors(page: str) -> set[str]:
    """What can stand after the # of a link to the page, as GitHub makes it of headings."""
    found: set[str] = set()
    for _, title in _HEADING.findall(prose(page)):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", title).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = 0
        while (name if not again else f"{name}-{again}") in found:
            again += 1
        found.add(name if not again else f"{name}-{again}")
    return found


def links(page: str) -> list[str]:
    """Targets of links and pictures, those of the network left out."""
    found = [first or second for first, second in _LINK.findall(prose(page))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def broken(file: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for target in links(file.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        there = file.parent / path if path else file
        if not there.exists() or (anchor and anchor not in anchors(there.read_text(encoding="utf-8"))):
            wrong.append(target)
    return wrong


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables in a text, headers included, rules left out."""
    lines = [line.strip().strip("|") for line in text.splitlines() if line.lstrip().startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    return [row for row in cells if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
