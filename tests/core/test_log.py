import sys

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pretune.core import log
from tests.conftest import Screen


@pytest.fixture(autouse=True)
def _speaking() -> None:
    log.set_quiet(False)


def test_messages_leave_stdout_to_results(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("[bold]step[/bold] 1")
    log.warn("slow disk")
    out, err = capsys.readouterr()
    assert out == ""
    step, warning = err.splitlines()
    assert step == "[bold]step[/bold] 1"
    assert warning.endswith("slow disk") and warning != "slow disk"


def test_quiet_silences(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_quiet(True)
    log.info("step 1")
    log.warn("slow disk")
    assert capsys.readouterr() == ("", "")
    log.set_quiet(False)


def test_a_terminal_shows_the_same_text_unwrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    message = "[red]" + "x" * 300
    log.info(message)
    assert capsys.readouterr().err == message + "\n"


def test_what_is_said_while_a_bar_is_drawn_stands_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with Live(Text("a bar"), console=Console(stderr=True, force_terminal=True), auto_refresh=False):
        log.info("[bold]step[/bold] 1")
    assert "[bold]step[/bold] 1" in screen.rows()
