"""From arguments to exit codes: one line per error, results on stdout, and nothing heavy loaded."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pretune.cli import app, main
from pretune.cli._errors import classify_error
from pretune.core.errors import UsageError
from pretune.core.registry import Registry
from tests.conftest import ROOT, Capture, Patch, run_command, run_process
from tests.selection import keep_quick

FAKE = '''
"""Verbs that end in every possible way."""
import os, signal, sys, typer
from pretune.core import errors, log
from pretune.core.api import Options, option, option_set

class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""

ENDS = {
    "memory": MemoryError(),
    "cuda": OutOfMemoryError("CUDA out of memory"),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    "bug": KeyError("depth"),
    "disk": OSError(28, "No space left on device", "/runs/a"),
    "lines": errors.DataError("two\\nlines and \\x1b[31m colour"),
    **{error.__name__: error("told") for error in errors.PretuneError.__subclasses__()},
}

@option_set
class EndOptions(Options):
    how: str = option("HOW", "End.", is_required=True)

def end(options: EndOptions) -> None:
    """End somehow.

    Example: pretune end bug
    """
    if options.how == "interrupt":
        raise KeyboardInterrupt
    if options.how == "exit":
        raise typer.Exit(9)
    raise ENDS[options.how]

@option_set
class TalkOptions(Options):
    times: int = option("--times N", "Times.", default=1)

def talk(options: TalkOptions) -> None:
    """Talk on both streams."""
    log.info("progress")
    for _ in range(options.times):
        print("result")
'''


@pytest.fixture
def verbs(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "fakeverbs.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fakeverbs", raising=False)
    monkeypatch.delenv("PRETUNE_DEBUG", raising=False)
    table = {"end": "fakeverbs:end", "talk": "fakeverbs:talk"}
    monkeypatch.setattr(app, "VERBS", Registry("verb", table))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return run_process([sys.executable, "-m", "pretune", *arguments], cwd=ROOT, **environment)


@pytest.mark.usefixtures("verbs")
class TestErrors:
    @pytest.mark.parametrize(
        ("how", "code", "line"),
        [
            ("UsageError", 2, "pretune: error: told"),
            ("DataError", 3, "pretune: error: told"),
            ("CheckpointError", 4, "pretune: error: told"),
            ("DivergedError", 5, "pretune: error: told"),
            ("ResourceError", 6, "pretune: error: told"),
            ("StoppedError", 75, "pretune: told"),
            ("UserInterruptError", 130, "pretune: told"),
            ("interrupt", 130, "pretune: interrupted"),
            ("memory", 6, "pretune: error: out of memory"),
            ("cuda", 6, "pretune: error: out of memory"),
            ("cpu", 6, "pretune: error: out of memory"),
            ("disk", 6, "pretune: error: /runs/a: No space left on device"),
            ("lines", 3, "pretune: error: two lines and \\u001b[31m colour"),
        ],
    )
    def test_every_end_is_one_line_and_a_code(self, capsys: Capture, how: str, code: int, line: str) -> None:
        assert main(["end", how]) == code
        out, err = capsys.readouterr()
        assert out == "" and err.partition(";")[0].rstrip("\n") == line and err.count("\n") == 1

    @pytest.mark.parametrize(
        ("arguments", "parts"),
        [
            (["edn"], ["'edn'", "'end'", "end, talk"]),
            (["--dbug", "end"], ["--dbug"]),
            (["end", "bug", "--hwo"], ["--hwo"]),
            (["end"], ["argument"]),
            (["talk", "--times", "x"], ["'--times'", "'x'"]),
            (["end", "a", "b"], ["b"]),
        ],
    )
    def test_bad_usage(self, capsys: Capture, arguments: list[str], parts: list[str]) -> None:
        out, err = run_command(capsys, arguments, code=2)
        assert out == "" and err.startswith("pretune: error: ") and err.count("\n") == 1
        assert [part for part in parts if part not in err] == [], err

    def test_an_extra_is_installed_by_the_interpreter_at_work(self, monkeypatch: Patch, tmp_path: Path) -> None:
        """Also in a clone whose environment is not activated, where `pip` is another one."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "my env/bin/python"))
        wrong = UsageError("extra 'hub': pip install 'pretune[hub]'; or")
        for where, told in (("other", "'my env/bin/python' -m pip"), ("my env", "pip"), (None, "'my env/bin/python'")):
            found = None if where is None else str(tmp_path / where / "bin/pip")
            monkeypatch.setattr("shutil.which", lambda _, found=found: found)
            assert (
                f"'hub': {told} " in classify_error(wrong)[1]
                and "pip install 'pretune[hub]'; or" in classify_error(wrong)[1]
            )
        assert classify_error(UsageError("wrong"))[1] == "wrong"

    def test_the_traceback_of_a_bug_is_kept(self, capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert main(["end", "bug"]) == 1
        (kept,) = tmp_path.glob("pretune-*.txt")
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("pretune: error: ") and err.count("\n") == 1
        assert "KeyError: 'depth'" in err and str(kept) in err
        assert "Traceback" in (text := kept.read_text())
        assert text.endswith("KeyError: 'depth'\n")

    def test_without_a_place_for_it_there_is_debug(self, capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        out, err = run_command(capsys, ["end", "bug"], code=1)
        assert out == "" and "KeyError: 'depth'" in err and "--debug" in err and err.count("\n") == 1

    def test_an_exit_code_of_typer_is_kept(self) -> None:
        assert main(["end", "exit"]) == 9

    @pytest.mark.parametrize("arguments", [["--debug", "end", "bug"], ["end", "bug", "--debug"]])
    def test_debug_shows_the_traceback_wherever_it_stands(self, capsys: Capture, arguments: list[str]) -> None:
        err = run_command(capsys, arguments, code=1).err
        assert "Traceback" in err
        assert err.endswith("KeyError: 'depth'\n") and err.splitlines()[-1].startswith("pretune: error: ")

    @pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
    def test_debug_by_environment(self, capsys: Capture, monkeypatch: Patch, value: str, shown: bool) -> None:
        monkeypatch.setenv("PRETUNE_DEBUG", value)
        main(["end", "DataError"])
        assert ("Traceback" in capsys.readouterr().err) == shown

    def test_after_two_dashes_nothing_is_a_switch(self, capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert "KeyError: '--debug'" in run_command(capsys, ["end", "--", "--debug"], code=1).err


@pytest.mark.usefixtures("verbs")
class TestOutput:
    @pytest.mark.parametrize("arguments", [["--quiet", "talk"], ["talk", "--quiet"]])
    def test_quiet_leaves_the_results(self, capsys: Capture, arguments: list[str]) -> None:
        assert run_command(capsys, arguments) == ("result\n", "")
        assert main(["talk"]) == 0  # and is not remembered
        assert capsys.readouterr() == ("result\n", "progress\n")

    def test_help_lists_the_verbs_in_their_order(self, capsys: Capture) -> None:
        text = run_command(capsys, ["--help"]).out
        assert run_command(capsys, []).out == text
        assert text.index("end ") < text.index("talk ")
        assert "End somehow." in text

    def test_help_of_a_verb_shows_its_example(self, capsys: Capture) -> None:
        for words in (["end", "--help"], ["help", "end"], ["end", "-h"]):
            assert "Example: pretune end bug" in run_command(capsys, words).out

    def test_only_the_verb_asked_for_is_imported(self, monkeypatch: Patch) -> None:
        monkeypatch.setattr(app, "VERBS", Registry("verb", {"talk": "fakeverbs:talk", "absent": "no.such.module:f"}))
        assert main(["talk"]) == 0


class TestProcess:
    def test_version(self) -> None:
        done = run("--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("pretune 0.")

    def test_a_reader_that_leaves_is_no_error(self) -> None:
        command = f"{sys.executable} -m pretune --help | true; exit ${{PIPESTATUS[0]}}"
        for _ in range(3):
            done = run_process(["bash", "-c", command])
            assert done.stderr == ""
            assert done.returncode in (0, 1)

    @pytest.mark.parametrize(
        "words",
        keep_quick(
            ["--version", "list families", "list sizes", "list sizes --csv", "show bert-tiny", "env --json"],
            "list families",
        ),
    )
    @pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
    def test_closed_streams_are_no_error(self, words: str, closed: str) -> None:
        done = run_process(["bash", "-c", f"{sys.executable} -m pretune {words} {closed}"])
        assert done.returncode == 0 and "error" not in done.stderr

    def test_closed_standard_input_has_no_inputs(self, workshop: Path, capsys: Capture, monkeypatch: Patch) -> None:
        monkeypatch.setattr("sys.stdin", None)  # as Python gives it after `<&-`
        assert "no inputs" in run_command(capsys, ["predict", str(workshop / "my runs/tuned"), "--input=-"], code=3).err

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
    def test_a_full_disk_behind_stdout(self) -> None:
        with Path("/dev/full").open("w") as full:
            done = run_process([sys.executable, "-m", "pretune", "--help"], stdout=full)
        assert done.stderr.startswith("pretune: error: ") and "No space left on device" in done.stderr
        assert done.returncode == 6

    def test_ctrl_c(self, tmp_path: Path) -> None:
        (tmp_path / "sleeper.py").write_text(
            "import time\ndef nap() -> None:\n    'Nap.'\n    print('ready', flush=True)\n    time.sleep(60)\n"
        )
        script = (
            # A job in the background of a shell starts with the signal ignored; here it is not.
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from pretune.cli import app; from pretune.core.registry import Registry; "
            "app.VERBS = Registry('verb', {'nap': 'sleeper:nap'}); sys.exit(app.main(['nap']))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)])},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (130, "pretune: interrupted\n")
