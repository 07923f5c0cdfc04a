"""docs/results.md holds numbers with the command that made them."""

import re

from tests.conftest import ROOT
from tests.readme.page import sections

PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")
_CODE = re.compile(r"`[^`]+`|^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"\bbench\.\w+\.\w+|\bexamples/\w+/\w+\.py|\bpretune [a-z]|\bmake \w|\bpytest ")


def locate(name: str) -> str:
    """Return the path of what is named: of a module of bench/, its file."""
    return f"{name.replace('.', '/')}.py" if name.startswith("bench.") else name


def commands(text: str) -> list[str]:
    return [code for code in _CODE.findall(text) if _COMMAND.search(code)]


def measured(text: str) -> bool:
    """Whether there is a number, a table or a picture outside code."""
    return bool(re.search(r"\d", _CODE.sub("", text)) or "![" in text or re.search(r"^\|", text, re.MULTILINE))


def test_every_section_with_numbers_has_a_command() -> None:
    found = sections(PAGE)
    assert len(found) > 20
    first = found[0][0]  # says what the page is
    assert [title for title, text in found if title != first and measured(text) and not commands(text)] == []


def test_what_the_commands_name_is_there() -> None:
    pattern = re.compile(r"\b(?:bench|tests)/[\w/]+(?:\.(?:py|yaml))?|\bbench(?:\.\w+)+")
    named = {path for code in _CODE.findall(PAGE) for path in pattern.findall(code)}
    assert len(named) > 15
    assert [path for path in sorted(named) if not (ROOT / locate(path)).exists()] == []
