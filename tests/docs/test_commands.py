"""Every command on the pages and in the scripts of bench/ is one that can be typed: nothing is run for it."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pretune.cli import VERBS
from tests.docs.commands import ROOT, Unknown, check, fenced, find_script, options, spans, usage
from tests.readme.page import sections

PAGES = sorted((ROOT / "docs").glob("*.md")) + [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/log.md")
]
SCRIPTS = sorted((ROOT / "bench").rglob("*.py"))
RESULTS = (ROOT / "docs/results.md").read_text(encoding="utf-8")
OTHERS = {"--nproc-per-node", "--standalone"}
"""Options of torchrun."""


def wrong(commands: Iterable[str], *, whole: bool = False) -> list[str]:
    found = []
    for command in commands:
        try:
            check(command, whole=whole)
        except Unknown as error:
            found.append(f"{command}: {error}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert wrong(spans(text)) == []
    assert wrong(fenced(text), whole=True) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_commands_of_a_script(script: Path) -> None:
    """It says how it is called, and is called so; those that are no programs are imported by one."""
    text = script.read_text(encoding="utf-8")
    if "__main__" not in text:
        assert any(
            re.search(rf"\b{script.stem}\b.* import |import .*\b{script.stem}\b", other.read_text(encoding="utf-8"))
            for other in SCRIPTS
        )
        return
    mine = [one for one in usage(text) if f"bench.{script.parent.name}.{script.stem}" in one]
    assert mine, "the docstring has no command"
    assert wrong(mine) == []


def named(text: str) -> set[str]:
    """All options of the scripts and verbs that are named somewhere in a text."""
    code = " ".join([*spans(text), *fenced(text)])
    scripts = {
        path
        for word in re.findall(r"bench[./][\w/.]*\w", code)
        if (path := find_script(word)) and (ROOT / path).is_file()
    }
    verbs = {verb for verb in re.findall(r"pretune ([a-z-]+)", code) if verb in VERBS}
    return set().union(*(options(name) for name in scripts | verbs))


def loose(text: str) -> list[str]:
    """Options that stand alone: `--steps 12`."""
    return [word for code in spans(text) if code.startswith("--") for word in re.findall(r"(?<!\S)--[a-z-]+", code)]


@pytest.mark.parametrize(("title", "text"), sections(RESULTS), ids=[title for title, _ in sections(RESULTS)])
def test_options_that_stand_alone_in_the_results(title: str, text: str) -> None:
    """Are those of a command of the same section."""
    assert sorted(set(loose(text)) - named(text)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_stand_alone_on_a_page(page: Path) -> None:
    """Are those of some verb, or of a script that the page names."""
    text = page.read_text(encoding="utf-8")
    known = set().union(*(options(verb) for verb in VERBS)) | named(text) | OTHERS
    assert sorted(set(loose(text)) - known) == []


@pytest.mark.parametrize(
    "command",
    [
        "PYTHONPATH=src python -m bench.speed.real_text --data DATA",  # --tokenizer is needed
        "python -m bench.speed.real_text --data DATA --tokenizer TOK --steps 3",
        "python -m bench.speed.startup --repeat 3",  # no abbreviations
        "bench/speed/startup.py --repeat 3",
        "python -m bench.speed.ranks --verb predict",
        "python -m bench.speed.ranks --steps many",
        "python -m bench.data.fill DATA --max-length 1 …",
        "python -m bench.speed.gone",
        "pytest tests/gone.py",
        "python -m pytest -m quick tests/nn",
        "make tests",
        "pretune train bert",
        "pretune pretrain bert --lr 1",
    ],
)
def test_what_cannot_be_typed_is_told(command: str) -> None:
    with pytest.raises(Unknown):
        check(command)


@pytest.mark.parametrize("command", ["pretune embed --out v.npy", "pretune pretrain bert --steps some --data DATA"])
def test_what_is_needed_stands_in_a_block(command: str) -> None:
    assert check(command)
    with pytest.raises(Unknown):
        check(command, whole=True)


def test_what_can_be_typed() -> None:
    good = (
        "A=1 B=src python -m bench.data.sentences --part dev …",
        "python -m bench.data.fill DATA --objective NAME --length N",
        "python -m bench.speed.embed [MODEL] [--device cpu|cuda]",
        "bench.speed.core_throughput --profile",
        "python -m bench.quality.transfer --out FILE --seeds 0,1",
        "pytest -m slow tests/nn",
        "make bench",
        "pretune embed MODEL --input FILE --out vectors.npy",
    )
    assert all(check(command) for command in good)
    assert not any(check(other) for other in ("x = `pt`", "the cat's", "python", "run.json", "make", "pretune"))
