"""Verbs that run in one process, started by torchrun: the first of several does it, the others say so and end."""

import os

import pytest

from pretune.cli.app import is_idle
from tests.conftest import Capture, run_command


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_others_have_nothing_to_do(ranked: pytest.MonkeyPatch, capsys: Capture) -> None:
    said = run_command(capsys, ["list", "objectives"])
    assert said.out == "" and said.err.startswith("rank 1 of 2 ") and "list" in said.err
    assert run_command(capsys, ["list", "objectives", "--quiet"]).err == ""


def test_the_first_does_it_as_if_alone(ranked: pytest.MonkeyPatch, capsys: Capture) -> None:
    ranked.setenv("RANK", "0")
    said = run_command(capsys, ["list", "objectives"])
    assert "masked" in said.out and said.err.startswith("next: pretune ") and len(said.err.splitlines()) == 1
    assert "WORLD_SIZE" not in os.environ and "RANK" not in os.environ


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        (["pretrain", "bert-mini"], False),
        (["finetune", "runs/a"], False),
        (["finetune", "runs/a", "--dry-run"], True),
        (["predict", "runs/a"], True),
        (["evaluate", "runs/a"], True),
    ],
)
def test_which_are_shared(ranked: pytest.MonkeyPatch, words: list[str], alone: bool) -> None:
    assert is_idle(words[0], words) is alone


def test_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "1")  # of something else
    assert not is_idle("predict", ["predict"])
