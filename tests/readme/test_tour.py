"""The tour of README.md: every command and every block of Python, in their order, as they stand there.

By default commands run inside the process and the two lengths that the tour sets (`BUDGET`, `STEPS`) are short; the
slow test gives the page to a shell as it is.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.core.hub import INSTALLED_MODELS
from pretune.text.corpora.builtin import Reviews
from tests.conftest import ROOT
from tests.readme.page import Block, blocks

SHORT = {"BUDGET": "90s", "STEPS": "4"}
"""In place of what the tour sets them to: a recipe needs time for the tokenizer and data too, on any machine."""
USE = {"generate", "fill", "embed", "index", "search", "neighbors", "evaluate"}
"""Verbs that work on what `pretune pretrain` has made."""


def tour() -> list[Block]:
    found = [block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language]
    assert {block.language for block in found} == {"sh", "python"}  # what is not to be run has no language
    return [block._replace(code=leave_out_absent(block.code)) for block in found if not block.code.startswith("make ")]


def leave_out_absent(code: str) -> str:
    """The code without lines on models that this checkout has no weights of."""
    absent = [name for name, model in INSTALLED_MODELS.items() if model.find() is None]
    lines = code.splitlines(keepends=True)
    return "".join(line for line in lines if not any(f" {name} " in line for name in absent))


def commands(code: str) -> list[str]:
    """The lines of a block of shell, those that are continued put together."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    try:
        Reviews().check()
    except UsageError as missing:
        pytest.skip(str(missing))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Shell:
    """As much of a shell as the tour needs: variables, one pipe out of echo, head, and > to a file."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.given = variables
        self.variables: dict[str, str] = {}
        self.said: list[tuple[list[str], str]] = []  # commands with what they printed

    def run(self, line: str) -> None:
        if set_to := re.fullmatch(r"([A-Z]+)=(\w+)(?: +#.*)?", line):
            self.variables[set_to[1]] = self.given.get(set_to[1], set_to[2])
            return
        words = shlex.split(Template(line).substitute(self.variables), comments=True)
        out = None
        if ">" in words:
            *words, _, out = words
        printed = self.pipe(words)
        if out is not None:
            Path(out).write_text(printed, encoding="utf-8")

    def pipe(self, words: list[str]) -> str:
        given = ""
        if words[0] == "head":
            return "".join(Path(words[3]).read_text(encoding="utf-8").splitlines(keepends=True)[: int(words[2])])
        if words[0] == "echo":
            given, words = words[1] + "\n", words[words.index("|") + 1 :]
        assert words[0] == "pretune", words
        stdin, stdout = sys.stdin, io.StringIO()
        try:
            sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
            with contextlib.redirect_stdout(stdout):
                code = main(words[1:])
        finally:
            sys.stdin = stdin
        assert code == 0, words
        self.said.append((words[1:], stdout.getvalue()))
        return stdout.getvalue()


@pytest.mark.slow
def test_the_tour(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shell = Shell(SHORT)
    names: dict[str, object] = {}
    for language, code in tour():
        if language == "python":
            exec(compile(code, "README.md", "exec"), names)
            continue
        for line in commands(code):
            shell.run(line)
    assert shell.variables == SHORT
    made = {words[words.index("--out") + 1] for words, _ in shell.said if words[0] == "pretrain" and "--out" in words}
    indices = {words[words.index("--out") + 1] for words, _ in shell.said if words[0] == "index" and words[1] in made}
    assert {words[0] for words, _ in shell.said if words[0] in USE and words[1] in made | indices} == USE
    assert all(printed.strip() for words, printed in shell.said)
    left_behind(place)
    assert isinstance(names["model"], pt.load("copy").__class__)
    assert "internal error" not in capfd.readouterr().err


def left_behind(place: Path) -> None:
    """What the tour says that it makes is there, and is what it says."""
    lines = (place / "lines.txt").read_text(encoding="utf-8").splitlines()
    assert np.load(place / "vectors.npy").shape[0] == len(lines)
    said = [json.loads(line) for line in (place / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(said) == len(lines) and {one["label"] for one in said} <= {"good", "bad"}
    scores = json.loads((place / "runs/full/scores.json").read_text(encoding="utf-8"))
    assert scores["baselines"] and scores["result"]["split"] == "test"
    page = (place / "report.html").read_text(encoding="utf-8")
    assert "runs/full" in page and "runs/lora" in page and "<svg" in page
    shared = json.loads((place / "share/config.json").read_text(encoding="utf-8"))
    assert shared["architectures"][0].endswith("ForSequenceClassification")


@pytest.mark.slow
def test_a_shell_runs_the_page_as_it_stands(place: Path, tmp_path: Path) -> None:
    """… in about five minutes where two cores are free; time is no condition here, for they may not be."""
    (tmp_path / "bin").mkdir()
    verb = tmp_path / "bin/pretune"
    verb.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pretune "$@"\n')
    verb.chmod(0o755)
    (tmp_path / "tour").mkdir()
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail"],
        input="\n".join(script()),
        cwd=tmp_path / "tour",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": f"{verb.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    print(f"{time.monotonic() - begun:.0f} s\n{done.stdout}")
    assert done.returncode == 0, done.stderr
    left_behind(tmp_path / "tour")


def script() -> Iterator[str]:
    """The page as one script."""
    for language, code in tour():
        yield f"{shlex.quote(sys.executable)} - <<'PAGE'\n{code}PAGE" if language == "python" else code


def test_the_two_commands_are_there() -> None:
    """What `make` would do for them is known; they are run where a release is made."""
    first = blocks((ROOT / "README.md").read_text(encoding="utf-8"))[0].code
    targets = [shlex.split(line, comments=True)[1] for line in first.splitlines()]
    assert targets == ["quickstart", "test"]
    done = subprocess.run(["make", "-n", "VENV=none", *targets], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "pretune quickstart" in done.stdout and "pytest" in done.stdout


def test_lines_on_absent_models_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "pretune fill small-encoder 'a [MASK]'\npretune fill runs/encoder 'a [MASK]'\n"
    monkeypatch.setitem(
        INSTALLED_MODELS, "small-encoder", INSTALLED_MODELS["small-encoder"]._replace(path="pretrained/missing")
    )
    assert leave_out_absent(code) == code.splitlines(keepends=True)[1]
    assert not any("small-encoder " in block.code for block in tour() if block.language == "sh")
