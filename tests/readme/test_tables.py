"""The tables of README.md against what there is: verbs, families, objectives, methods, folders, measured numbers."""

import re

from pretune.adaptation import METHOD_PRESETS, METHODS
from pretune.cli.app import VERBS
from pretune.core.errors import UsageError
from pretune.models.families import FAMILIES
from pretune.models.trained_model import convert_to_shape
from pretune.objectives import OBJECTIVES
from tests.conftest import ROOT
from tests.readme.page import anchors, rows, sections

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


def section_with(start: str) -> str:
    """The section in which a line starts like this."""
    (found,) = (text for _, text in sections(PAGE) if f"\n{start}" in text)
    return found


def names(text: str) -> list[str]:
    return text.replace("**", "").split(", ")


def trains(objective: str, spec: object) -> bool:
    try:
        convert_to_shape(spec, OBJECTIVES.get(objective)().shapes)  # type: ignore[arg-type]
    except UsageError:
        return False
    return True


def test_families_objectives_and_methods() -> None:
    """Each row is what the registries say of a shape; bold is what papers of the row's families did."""
    by_shape: dict[str, dict[str, object]] = {}
    for name in FAMILIES:
        for size in FAMILIES.get(name).sizes:
            spec = FAMILIES.get(name).resolve_spec(size)
            by_shape.setdefault(spec.shape, {}).setdefault(name, spec)
    text = section_with("| shape |")
    header, *found = rows(text)
    assert header == ["shape", "families", "objectives", "methods"]
    assert [row[0] for row in found] == [*by_shape]
    for shape, families, objectives, methods in found:
        specs = by_shape[shape]
        assert names(families) == [*specs]
        for family, spec in specs.items():  # as all of a shape are trained by the same, a row can say it
            assert names(objectives) == [name for name in OBJECTIVES if trains(name, spec)], family
        papers = {paper.objective["kind"] for name in specs if (paper := FAMILIES.get(name).training)}
        assert set(re.findall(r"\*\*(\w+)\*\*", objectives)) == papers
        assert methods == "all"  # held by tests/contracts/test_methods_with_heads.py, family by family
    joined = " ".join(text.split())
    assert ", ".join(METHODS) in joined and ", ".join(METHOD_PRESETS) in joined


def test_every_verb_has_a_row() -> None:
    first = [row[0] for row in rows(section_with("| `pretune quickstart"))[1:]]
    assert {verb for cell in first for verb in re.findall(r"`pretune ([\w-]+)", cell)} == set(VERBS)


def test_every_folder_has_a_purpose() -> None:
    named, parents = set(), ["src/pretune"]
    for space, name in re.findall(r"^( {0,4})(\w+)/ +\S", section_with("src/pretune/"), re.MULTILINE):
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
