"""docs/extending.md does what it says: its files are put where they belong, and its commands are run.

All of it happens in a copy of the sources and of the tests, so that the table here stays as it is.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = r"[^\n]*:\n\n```python\n(.*?)```"
FILES = dict(re.findall(rf"^A new file `([^`]+)`{BLOCK}", PAGE, re.DOTALL | re.MULTILINE))
LINES = dict(re.findall(rf"^In the table of `([^`]+)`{BLOCK}", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [shlex.split(line) for line in re.findall(r"^pytest .*$", PAGE, re.MULTILINE)]
CASES = re.findall(r"in `(PERFECT|WRONG|CASES)`(?: of `([^`]+)`)?:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
SPLITS = re.findall(r'SplitFile\("(\w+)\.jsonl", _read, rows=(\d+)\)', PAGE)
NAMES = ("starcoder", "stretch_masked", "rescale", "tickets", "ordinal", "balanced")
QUICK = [command for command in COMMANDS if "tests/contracts/test_methods_with_heads.py" not in command]
"""Without what takes long: every head, and every kind of model on a task."""


def test_the_page_has_an_example_of_everything() -> None:
    assert [Path(file).stem for file in FILES] == [*NAMES] and len(LINES) == len(NAMES) and len(CASES) == 3
    assert not any((ROOT / file).exists() for file in FILES)  # they are examples, and new
    assert all(any(name in word for command in COMMANDS for word in command) for name in NAMES)
    assert [split for split, _ in SPLITS] == ["train", "test"]


def extended(folder: Path) -> Path:
    """A copy of the project with what the page adds."""
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for file, code in FILES.items():
        (folder / file).write_text(code, encoding="utf-8")
    for file, line in LINES.items():
        before, end, after = (folder / file).read_text(encoding="utf-8").partition("\n    },\n")
        assert end, f"{file} has no table"
        (folder / file).write_text(f"{before}\n{line.rstrip()}{end}{after}", encoding="utf-8")
    file = ""
    for table, named_file, line in CASES:
        file = named_file or file
        cases = folder / file
        head = re.compile(rf"^{table}: .*\n", re.MULTILINE)
        cases.write_text(head.sub(lambda found, line=line: found[0] + line, cases.read_text(encoding="utf-8"), count=1))
    return folder


def letters(folder: Path) -> Path:
    """The files of the task, as many rows as it says."""
    row = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
    home = folder / "data" / "tickets"
    home.mkdir(parents=True)
    for split, count in SPLITS:
        rows = [row, {"letter": "The lamp has not come yet.", "about": "delivery"}] * (int(count) // 2)
        (home / f"{split}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    return folder / "data"


def run(folder: Path, commands: list[list[str]]) -> dict[str, int]:
    """How many tests of each file passed for what the commands name, all of them run as one; none may fail."""
    paths = dict.fromkeys(word for command in commands for word in command if word.startswith("tests/"))
    keys = " or ".join(f"({command[command.index('-k') + 1]})" for command in commands)
    marks = ["-m", ""] if any("-m" in command for command in commands) else []
    environment = {**os.environ, "PRETUNE_DATA": str(letters(folder)), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml"]
    done = subprocess.run(
        [*command, *paths, "-k", keys, *marks],
        cwd=extended(folder),
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    passed = dict.fromkeys(paths, 0)
    for case in ET.parse(folder / "found.xml").iter("testcase"):
        file = f"{case.attrib['classname'].replace('.', '/')}.py"
        passed[file] += not [child for child in case if child.tag in ("skipped", "failure", "error")]
    return passed


@pytest.mark.slow
def test_what_is_listed_is_held_to_the_laws(tmp_path: Path) -> None:
    commands = [command for command in QUICK if "-m" not in command]
    passed = run(tmp_path, commands)
    assert len(passed) == 7 and min(passed.values()) > 0, passed


@pytest.mark.slow
def test_every_command_of_the_page(tmp_path: Path) -> None:
    passed = run(tmp_path, COMMANDS)
    assert len(passed) == 9 and min(passed.values()) > 0, passed
