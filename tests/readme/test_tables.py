"""The folders of docs/architecture.md, and the measured ratios of README.md."""

import re

from tests.conftest import ROOT
from tests.readme.page import anchors, rows, sections

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def section_with(start: str) -> str:
    """The section in which a line starts like this."""
    (found,) = (text for _, text in sections(ARCHITECTURE) if f"\n{start}" in text)
    return found


def test_every_folder_has_a_purpose() -> None:
    named, parents = set(), ["src/pretune"]
    for space, name in re.findall(r"^( {0,6})(\w+)/ +\S", section_with("src/pretune/"), re.MULTILINE):
        depth = len(space) // 2
        parents[depth or 1 :] = [f"{parents[depth - 1]}/{name}" if depth else name]
        named.add(f"{parents[-1]}/")
    assert named == folders()


def folders() -> set[str]:
    """Every folder of the package, and those beside it that are no output of building or running."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    beside = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    inner = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "src/pretune").glob("*/**/__init__.py")}
    return {f"{name}/" for name in (beside - ignored - {"src"}) | inner}


def test_measured_numbers_stand_in_the_results() -> None:
    """A ratio stands in the section that its row names, and a row without one says so."""
    table = PAGE.split("<!-- measured: begin -->")[1].split("<!-- measured: end -->")[0]
    header, *found = rows(table)
    assert header == ["work", "peer", "times as fast", "section"] and len(found) >= 9
    parts = {}
    for title, text in sections((ROOT / "docs/results.md").read_text(encoding="utf-8")):
        parts[anchors(f"# {title}").pop()] = text
    for work, _, ratios, link in found:
        numbers = re.findall(r"\d+(?:\.\d+)?", ratios)
        if not numbers:
            assert link == "", work
            continue
        section = parts[link.rpartition("#")[2].rstrip(")")]
        assert [number for number in numbers if not re.search(rf"(?<![\d.]){number}(?![\d.]*\d)", section)] == [], work
