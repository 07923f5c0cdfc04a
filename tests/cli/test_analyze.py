"""The verbs after `pretune analyze`: their help and examples; what they print has tests in tests/analysis."""

import inspect
from pathlib import Path

import pytest

import pretune as pt
from pretune.cli import app, main
from tests.analysis.models import model_of
from tests.cli.asked import examples, parsed
from tests.conftest import Capture, run_command


@pytest.mark.parametrize("name", app.ANALYSES)
def test_every_analysis_has_an_example_that_is_run(name: str, capsys: Capture) -> None:
    """Those of `pretune analyze --help` are run in tests/cli/test_examples.py."""
    shown = run_command(capsys, ["analyze", name, "--help"]).out
    commands = [command for command in examples("analyze") if command.split()[2] == name]
    assert commands and "{" not in shown.partition("\n\n")[0]
    for command in commands:
        assert command in shown
        assert parsed(f"{command} --json")[1]["as_json"]
    summary = (inspect.getdoc(app.ANALYSES.get(name)) or "").partition("\n")[0]
    assert len(summary) <= app.MAX_SUMMARY


def test_the_help_lists_them(capsys: Capture) -> None:
    shown = run_command(capsys, ["analyze", "--help"]).out
    assert all(f"  {name} " in shown for name in app.ANALYSES)


def test_settings_are_checked_before_anything_is_read(tmp_path: Path, capsys: Capture) -> None:
    pt.save(model_of("bert"), tmp_path / "model")
    model = str(tmp_path / "model")
    codes = {
        ("attention", model, "--texts", "-1"): 2,
        ("attention", model, "--texts", "0"): 2,
        ("layers", model, "--task", "length", "--device", "gpu"): 2,
        ("layers", model, "--task", "length", "--device", "cuda:99"): 6,
    }
    for command, code in codes.items():
        assert main(["--quiet", "analyze", *command]) == code
        assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_one_is_named(capsys: Capture) -> None:
    assert "did you mean 'attention'" in run_command(capsys, ["analyze", "atention", "x"], code=2).err
    assert "missing command" in run_command(capsys, ["analyze"], code=2).err
