"""Ctrl-C at any moment: exit code 130, no traceback, and nothing unfinished left behind."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pretune.cli import EXIT_INTERRUPTED, EXIT_STOPPED, main, shut_down_cleanly
from pretune.core.errors import StoppedError, UserInterruptError
from pretune.training.loop import GracefulShutdown
from tests.conftest import ROOT, run_process
from tests.data.texts import MANY, blocks, byte_tokenizer
from tests.selection import keep_quick

IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""
"""Ctrl-C when a module is looked for."""

CALLS = """
import os, shutil, signal, sys
from pretune.data.prepare.stage import StageWriter

def interrupt(owner, name):
    real = getattr(owner, name)
    def call(*given, **named):
        for _ in range({times}):
            os.kill(os.getpid(), signal.SIGINT)
        return real(*given, **named)
    setattr(owner, name, call)

interrupt(StageWriter, "add")
interrupt(shutil, "rmtree")
"""
"""Ctrl-C while text is read, and again while what was made of it is removed."""

RUN = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
sys.argv[1:] = {arguments!r}
from pretune.cli import main
from pretune.cli import EXIT_INTERRUPTED
from pretune.core.errors import UserInterruptError
sys.exit(main())
"""


def interrupted(before: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return run_process([sys.executable, "-c", before + RUN.format(arguments=arguments)])


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "place").mkdir()
    given = blocks(tmp_path / "a.txt", MANY[:20])
    tokenizer = byte_tokenizer(tmp_path / "tok")
    return ["prepare", given, "--tokenizer", str(tokenizer), "--out", str(tmp_path / "place" / "data")]


MODULES = ["pretune.cli.app", "typer", "pretune.cli.prepare", "pretune.data.prepare.run", "numpy", "tokenizers"]


@pytest.mark.parametrize("module", keep_quick(MODULES, "pretune.cli.app", "typer", "numpy"))
def test_while_modules_are_imported(arguments: list[str], module: str) -> None:
    done = interrupted(IMPORT.format(module=module), arguments)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pretune: interrupted\n")


IN_STRING = IMPORT.replace(
    "os.kill(os.getpid(), signal.SIGINT)", 'exec("os.kill(os.getpid(), signal.SIGINT); [None for _ in range(1000)]")'
)
CAUGHT = IMPORT.replace(
    "os.kill(os.getpid(), signal.SIGINT)",
    """
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except:
                import no_such_module""",
)


@pytest.mark.parametrize("before", [IN_STRING, CAUGHT], ids=["in code from a string", "caught by a package"])
def test_where_it_is_easily_lost(arguments: list[str], before: str, tmp_path: Path) -> None:
    """`python -m` ends by the signal itself after the first, and a package turns the second into another error."""
    (tmp_path / "command.py").write_text(before.format(module="numpy") + RUN.format(arguments=arguments))
    done = run_process([sys.executable, "-m", "command"], paths=(ROOT / "src", tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pretune: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_twice_while_data_is_prepared(tmp_path: Path, arguments: list[str], times: int) -> None:
    done = interrupted(CALLS.format(times=times), arguments)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr and done.stderr.endswith("pretune: interrupted\n")
    if times == 1:
        assert list((tmp_path / "place").iterdir()) == []
    # Pressed a third time it ends at once; what it leaves goes with the next command.
    assert main(arguments) == 0
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["data"]


def test_signals_of_a_program_that_calls_main_stay_as_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_exit_codes() -> None:
    assert (UserInterruptError.exit_code, StoppedError.exit_code) == (EXIT_INTERRUPTED, EXIT_STOPPED)


@pytest.mark.parametrize(("arguments", "code"), [(["serve", "m"], 0), (["list"], EXIT_STOPPED)])
def test_stopped_before_the_verb_begins(arguments: list[str], code: int) -> None:
    before = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""
    process = interrupted(before, arguments)
    assert (process.returncode, process.stdout) == (code, "")
    assert len(process.stderr.splitlines()) == 1 and "SIGTERM" in process.stderr


@pytest.mark.parametrize(
    "block", [shut_down_cleanly, GracefulShutdown("resume it").handle_signals], ids=["command", "run"]
)
def test_a_library_cannot_swallow_a_request_to_stop(block: Callable[[], AbstractContextManager[None]]) -> None:
    """While torch is imported, a signal may arrive under one of its `except Exception: pass`."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError), block(), contextlib.suppress(Exception):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
