"""What every verb owes the person who types it: an example, JSON, a line in the help, and its time."""

import os
import subprocess
import sys

import pytest

from pretune.cli import VERBS, main
from pretune.cli.app import MAX_SUMMARY
from tests.cli.asked import complete, examples, parsed
from tests.conftest import ROOT, Capture, run_command

NAMED = {
    ("pretrain", "model"),
    ("show", "name"),
    ("pretrain", "objective"),
    ("show-batch", "objective"),
    ("finetune", "method"),
    ("finetune", "task"),
    ("evaluate", "task"),
    ("tokenizer", "kind"),
}
"""Parameters whose values are names of registries."""


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_have_our_names_and_no_types_of_python(verb: str, capsys: Capture) -> None:
    assert main([verb, "--help"]) == 0
    usage, _, rest = capsys.readouterr().out.partition("\n\n")
    arguments = rest.partition("Arguments:\n")[2].partition("\n\n")[0]
    assert "{" not in usage and "<" not in usage
    for name, about in (line.split()[:2] for line in arguments.splitlines() if line[2:3].strip()):
        assert name in usage and not about.startswith("<")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_that_can_be_typed(verb: str, capsys: Capture) -> None:
    commands = examples(verb)
    assert commands
    shown = run_command(capsys, [verb, "--help"]).out
    for command in commands:
        assert command in shown  # in one line, so that it can be copied
        found, given = parsed(command)
        assert found == verb
        for its, parameter in NAMED:
            value = given.get(parameter)
            if its == verb and value:
                last = value.rpartition("," if parameter == "task" else "+")[2]
                assert value in complete(verb, parameter, value.removesuffix(last)), (parameter, value)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_gives_json(verb: str) -> None:
    parsed(f"{examples(verb)[0]} --json")


def test_lines_of_the_help_are_whole(capsys: Capture) -> None:
    text = run_command(capsys, ["--help"]).out
    assert "..." not in text.replace("COMMAND [ARGS]...", "")
    for verb in VERBS:
        if verb != "quickstart":  # cut at a comma
            assert len(VERBS.describe(verb)) <= MAX_SUMMARY, verb


def test_the_help_shows_the_first_steps_in_their_order(capsys: Capture) -> None:
    assert main([]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    steps = [parsed(line)[0] for line in lines if line.startswith("pretune ")]
    assert steps == ["quickstart", "pretrain", "finetune", "predict"]


def test_the_help_answers_at_once() -> None:
    """Under 0.3 s of the processor, for others may be at work; the best of some."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "pretune", "--help"], check=True, capture_output=True, env=environment)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.3
