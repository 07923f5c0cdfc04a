"""Each verb, used once: what it says, that JSON and --quiet leave nothing else, and that what follows can be typed."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest

from pretune.cli import VERBS, main
from pretune.runs.recipes import RECIPES
from tests.cli import world
from tests.cli.asked import alone, parsed, places
from tests.conftest import Capture, run_command

LINES = {"predict"}
"""Verbs whose JSON is one object a line."""


def used(verb: str, out: str) -> list[str]:
    return [verb, *(word.replace("OUT", out) for word in world.COMMANDS[verb])]


def test_every_verb_is_here() -> None:
    assert {*world.COMMANDS} == {*VERBS} - {"quickstart", "serve", "chat"}


@pytest.mark.parametrize("verb", world.COMMANDS)
def test_what_follows_can_be_typed(verb: str, workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        said = run_command(capsys, used(verb, f"made by {verb}"))
        assert said.out
        nexts = [line for line in said.err.splitlines() if line.startswith("next: ")]
        assert len(nexts) == (0 if verb in world.SILENT else 1), said.err
        for line in nexts:
            command = alone(line.removeprefix("next: "))
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
        said = run_command(capsys, [*used(verb, f"quiet {verb}"), "--json", "--quiet"])
        assert said.err == ""
        for text in said.out.splitlines() if verb in LINES else [said.out]:
            json.loads(text)


@pytest.mark.slow
@pytest.mark.parametrize("verb", [name for name in world.COMMANDS if name not in world.SILENT])
def test_json_has_no_hint_beside_it(verb: str, workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        assert "next: " not in run_command(capsys, [*used(verb, f"json {verb}"), "--json"]).err


@pytest.mark.slow
def test_hints_lead_from_texts_to_predictions(workshop: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is the hint of the one before it; only the table and the length of the run are one's own."""
    with world.inside(workshop):
        command = "pretune tokenizer 'my texts' --vocab 100 --out 'path tok'"
        verbs = []
        for _ in range(3):
            words = shlex.split(command)[1:]
            verbs.append(words[0])
            if words[0] == "pretrain":
                words[words.index("--budget") + 1] = "15s"
                words += ["--set", "model.width=32", "--set", "model.depth=1", "--set", "train.eval_tokens=256"]
            told = run_command(capsys, words).err.splitlines()
            command = next(line.removeprefix("next: ") for line in told if line.startswith("next: "))
        assert verbs == ["tokenizer", "prepare", "pretrain"] and shlex.split(command)[1] == "fill"
        other = next(line.removeprefix("or: ").partition("  (")[0] for line in told if line.startswith("or: "))
        words = shlex.split(other.replace("TABLE.csv", "'my table.csv'"))[1:]
        assert words[0] == "finetune" and main([*words, "--steps=1", "--baselines=none"]) == 0
        told = capsys.readouterr().err.splitlines()
        piped = re.search(r"^next: echo '(.*)' \| pretune (.*)$", "\n".join(told), re.MULTILINE)
        assert piped
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{piped[1]}\n".encode())))
        assert json.loads(run_command(capsys, shlex.split(piped[2])).out)["label"] in ("good", "bad")
        other = next(line.removeprefix("or: ").partition("  (")[0] for line in told if line.startswith("or: "))
        assert main(shlex.split(other.replace("NEW.csv", "'my table.csv'"))[1:]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 40


def test_after_fine_tuning_on_a_table_with_a_test_it_is_predicted(workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        words = ["my runs/base", "--train=my table.csv", "--test=my table.csv", "--steps=1", "--baselines=none"]
        assert main(["finetune", *words, "--out=beside a test"]) == 0
        assert "next: pretune predict 'beside a test' --input 'my table.csv'\n" in capsys.readouterr().err


def test_too_little_text_leads_to_no_training(workshop: Path, tmp_path: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        (tmp_path / "a.txt").write_text("the house by the sea.\n\nthe wind.")
        assert main(["prepare", str(tmp_path), "--tokenizer=tok", "--workers=0", f"--out={tmp_path / 'data'}"]) == 0
        told = capsys.readouterr().err
        assert "next: " not in told and "or: pretune prepare TEXTS/ --tokenizer " in told


def test_a_run_on_a_table_is_not_judged_by_what_it_knows(workshop: Path, capsys: Capture) -> None:
    with world.inside(workshop):
        told = run_command(capsys, ["evaluate", "my runs/tuned"], code=2).err
        assert "my runs/tuned/scores.json" in told and "--test" in told
        assert main(["evaluate", "my runs/tuned", "--test", "my table.csv"]) == 0
        assert "warning: my table.csv: " in capsys.readouterr().err
        Path("other table.csv").write_text(Path("my table.csv").read_text())
        assert "warning: " not in run_command(capsys, ["evaluate", "my runs/tuned", "--test", "other table.csv"]).err


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
        plan = json.loads(capsys.readouterr().out)
        assert plan["recipe"] in RECIPES if "recipe" in plan else plan["cost"]["parameters"] < 20e6
