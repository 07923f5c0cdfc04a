"""docs/: a page for every folder of the package, and examples on them that run."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from pretune.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = sorted(path.parent.name for path in (ROOT / "src" / "pretune").glob("*/__init__.py"))
DRAWN = ("core", "training", "analysis", "runs", "cli")
"""Pages whose examples are run here; others have tests of their own."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_its_page(folder: str) -> None:
    """Which says which folder it is of, and is listed in the README."""
    page = DOCS / f"{folder}.md"
    assert page.is_file(), f"docs/{folder}.md is missing"
    assert f"{folder}/" in page.read_text(encoding="utf-8") or f"pretune.{folder}" in page.read_text(encoding="utf-8")
    assert f"docs/{folder}.md" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DRAWN)
def test_the_examples_of_a_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(DOCS / f"{name}.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0 and found.failed == 0


def test_the_commands_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    commands = [
        line for block in re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for line in block.splitlines()
    ]
    mine = [shlex.split(line) for line in commands if line.startswith("pretune")]
    assert len(mine) == 4
    for words in mine:
        assert main(words[1:]) == 0, words
        assert capsys.readouterr().out.strip()


def test_files_that_a_page_names_are_there() -> None:
    """In the tables of the pages of folders: `loop.py`, `store/`."""
    for name in ("core", "training"):
        page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        named = {
            word
            for line in page.splitlines()
            if line.startswith("|")
            for word in re.findall(r"`(\w+(?:\.py|/))`", line.split("|")[1])
        }
        home = ROOT / "src" / "pretune" / name
        assert named and not [word for word in named if not (home / word).exists()], name
