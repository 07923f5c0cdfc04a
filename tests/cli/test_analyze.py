"""The verbs after `pretune analyze`: their help and examples; what they print has tests in tests/analysis."""

import inspect

import pytest

from pretune.cli import app, main
from tests.cli.asked import examples, parsed

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("name", app.ANALYSES)
def test_every_analysis_has_an_example_that_is_run(name: str, capsys: Capture) -> None:
    """Those of `pretune analyze --help` are run in tests/cli/test_examples.py."""
    assert main(["analyze", name, "--help"]) == 0
    shown = capsys.readouterr().out
    commands = [command for command in examples("analyze") if command.split()[2] == name]
    assert commands and "{" not in shown.partition("\n\n")[0]
    for command in commands:
        assert command in shown
        assert parsed(f"{command} --json")[1]["as_json"]
    summary = (inspect.getdoc(app.ANALYSES.get(name)) or "").partition("\n")[0]
    assert len(summary) <= app.MAX_SUMMARY


def test_the_help_lists_them(capsys: Capture) -> None:
    assert main(["analyze", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in app.ANALYSES)


def test_an_unknown_one_is_named(capsys: Capture) -> None:
    assert main(["analyze", "atention", "x"]) == 2
    assert "did you mean 'attention'" in capsys.readouterr().err
    assert main(["analyze"]) == 2
    assert "missing command" in capsys.readouterr().err
