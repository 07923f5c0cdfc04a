"""Each verb, used once: what it says, that JSON and --quiet leave nothing else, and that what follows can be typed."""

import json
import shlex
from pathlib import Path

import pytest

from pretune.cli import VERBS, main
from tests.cli import world
from tests.cli.asked import parsed, places

Capture = pytest.CaptureFixture[str]
LINES = {"predict"}
"""Verbs whose JSON is one object a line."""


def used(verb: str, out: str) -> list[str]:
    return [verb, *(word.replace("OUT", out) for word in world.COMMANDS[verb])]


def test_every_verb_is_here() -> None:
    assert {*world.COMMANDS} == {*VERBS} - {"quickstart"}


@pytest.mark.parametrize("verb", world.COMMANDS)
def test_what_follows_can_be_typed(verb: str, workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        assert main(used(verb, f"made by {verb}")) == 0
        said = capsys.readouterr()
        assert said.out
        nexts = [line for line in said.err.splitlines() if line.startswith("next: ")]
        assert len(nexts) == (0 if verb in world.SILENT else 1), said.err
        for line in nexts:
            command = line.removeprefix("next: ")
            _, given = parsed(command)
            for path in places(command):
                assert path.exists(), command
            out = given.get("out")
            assert out is None or not Path(out).exists(), command
        for line in said.err.splitlines():
            if line.startswith("or: "):
                parsed(line.removeprefix("or: ").partition("  (")[0])


@pytest.mark.parametrize("verb", world.COMMANDS)
def test_json_alone_on_stdout_and_nothing_else(verb: str, workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        assert main([*used(verb, f"quiet {verb}"), "--json", "--quiet"]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        for text in said.out.splitlines() if verb in LINES else [said.out]:
            json.loads(text)


@pytest.mark.parametrize("verb", [name for name in world.COMMANDS if name not in world.SILENT])
def test_json_has_no_hint_beside_it(verb: str, workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        assert main([*used(verb, f"json {verb}"), "--json"]) == 0
        assert "next: " not in capsys.readouterr().err


def test_hints_lead_from_texts_to_predictions(workshop: Path, capsys: Capture) -> None:
    """Each command is the hint of the one before it; only the table and the length of the run are one's own."""
    with world.inside(workshop):
        command = "pretune tokenizer 'my texts' --vocab 100 --out 'path tok'"
        verbs = []
        for _ in range(3):
            words = shlex.split(command)[1:]
            verbs.append(words[0])
            if words[0] == "pretrain":
                at = words.index("--epochs")
                words = [*words[:at], "--steps=1", *words[at + 2 :], *world.SMALL]
            assert main(words) == 0
            told = capsys.readouterr().err.splitlines()
            command = next(line.removeprefix("next: ") for line in told if line.startswith("next: "))
        assert verbs == ["tokenizer", "prepare", "pretrain"] and shlex.split(command)[1] == "fill"
        other = next(line.removeprefix("or: ").partition("  (")[0] for line in told if line.startswith("or: "))
        words = shlex.split(other.replace("TABLE.csv", "'my table.csv'"))[1:]
        assert words[0] == "finetune" and main([*words, "--steps=1", "--baselines=none"]) == 0
        told = capsys.readouterr().err.splitlines()
        command = next(line.removeprefix("next: ") for line in told if line.startswith("next: "))
        assert main(shlex.split(command)[1:]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 40


def test_a_run_on_a_table_is_not_judged_by_what_it_knows(workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        assert main(["evaluate", "my runs/tuned"]) == 2
        told = capsys.readouterr().err
        assert "was fine-tuned on a table, and my runs/tuned/scores.json has its scores" in told and "--test" in told
        assert main(["evaluate", "my runs/tuned", "--test", "my table.csv"]) == 0
        assert "warning: my table.csv: the run was trained on it" in capsys.readouterr().err
        Path("other table.csv").write_text(Path("my table.csv").read_text())
        assert main(["evaluate", "my runs/tuned", "--test", "other table.csv"]) == 0
        assert "was trained on it" not in capsys.readouterr().err


@pytest.mark.parametrize("style", ["cls-sep", "s-mask", "endoftext", "sentinels", "cls-last"])
def test_data_of_every_style_has_a_model_to_train(style: str, workshop: Path, capsys: Capture) -> None:
    kind = {"s-mask": "bpe", "endoftext": "bpe", "sentinels": "unigram", "cls-last": "unigram"}.get(style, "wordpiece")
    size = {"bpe": 320, "unigram": 420, "wordpiece": 120}[kind]
    with world.inside(workshop):
        words = [f"--kind={kind}", f"--style={style}", f"--vocab={size}", f"--out=tok {style}"]
        assert main(["tokenizer", "my texts", *words, "--quiet"]) == 0
        assert main(["prepare", "my texts", "--workers=0", f"--tokenizer=tok {style}", f"--out=data {style}"]) == 0
        told = capsys.readouterr().err.splitlines()
        command = next(line.removeprefix("next: ") for line in told if line.startswith("next: "))
        assert main([*shlex.split(command)[1:], "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cost"]["parameters"] < 20e6
