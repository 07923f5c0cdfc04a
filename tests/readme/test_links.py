"""README.md and docs/: every page is named, and every link, anchor and picture is there."""

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.readme.page import broken, links

README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
INNER_PAGES = [
    *sorted(ROOT.glob("docs/*/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
    *sorted(ROOT.glob("bench/*.md")),
]
LARGEST = 300_000
"""Bytes of a picture."""


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *PAGES, *INNER_PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_page_is_linked() -> None:
    named = set(links(README.read_text(encoding="utf-8")))
    assert [page.name for page in PAGES if f"docs/{page.name}" not in named] == []


def test_every_picture_is_shown_and_small() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in [README, *PAGES]
        for target in links(page.read_text(encoding="utf-8"))
        if "images/" in target
    }
    there = {path.resolve() for path in (ROOT / "docs/images").iterdir()}
    assert there == shown != set()
    assert [path.name for path in there if path.stat().st_size > LARGEST] == []
