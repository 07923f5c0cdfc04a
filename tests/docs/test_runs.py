"""docs/runs.md: every command is one that the command line takes, with the settings of the paper."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from pretune.adaptation import METHODS
from pretune.cli import app
from pretune.core.config import parse_assignments
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"
FENCE = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = [line.partition("  #")[0] for block in FENCE.findall(PAGE.read_text()) for line in block.splitlines()]


SMALL = {"lr": 5e-4, "batch_tokens": 65_536}
"""Of ELECTRA-small, where the family's numbers are those of base (table 6 of its paper)."""


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """A command as the command line reads it: the verb, and what it was given."""
    name, verb, *words = shlex.split(line)
    assert name == "pretune"
    return verb, app.build_command(verb).make_context(verb, words).params


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared text, and an encoder to go on from."""
    import pretune as pt
    from tests.contracts.tiny import tiny

    folder = tmp_path_factory.mktemp("recipes")
    (folder / "text.txt").write_text("The cat sat on the mat.\n\nA dog ran after the cat.\n" * 20)
    tokenizer = pt.train_tokenizer("wordpiece", [folder / "text.txt"], vocab=61)
    pt.prepare([folder / "text.txt"], tokenizer=tokenizer, out=folder / "data", workers=0)
    pt.save(pt.build(tiny("bert")), folder / "base")
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command(line: str, home: Path) -> None:
    """Its options exist, and what it sets is what such a run has: the settings are resolved, and nothing is run."""
    from pretune.runs.task_options import parse_numbers
    from tests.runs.configs import build_finetune_config as choose_tuning
    from tests.runs.configs import build_pretrain_config

    verb, given = parsed(line)
    changes = parse_assignments(given.get("overrides") or [])
    if verb == "pretrain":
        length = {name: given[name] for name in ("steps", "epochs") if given[name] is not None}
        config = build_pretrain_config(
            given["model"],
            data=home / "data",
            objective=given["objective"],
            init_from=None if given["init_from"] is None else home / "base",
            overrides=changes,
            **length,
        )
        paper = FAMILIES.get(config.model.family).training
        assert paper is not None
        for name in ("lr", "batch_tokens"):
            if f"train.{name}" in changes:
                set_to = float(changes[f"train.{name}"])
                assert getattr(config.train, name) == set_to
                assert set_to == (SMALL[name] if given["model"] == "electra-small" else getattr(paper, name))
    elif verb == "finetune" and not given["task"].startswith("embedding"):
        rate = parse_numbers(given["lr"])[0] if given["lr"] else None
        length = {name: given[name] for name in ("steps", "epochs") if given[name] is not None}
        tuning = choose_tuning(
            home / "base", task=given["task"], method=given["method"], lr=rate, overrides=changes, **length
        )
        assert rate is None or tuning.train.lr == rate


def test_every_method_and_objective_has_its_paper() -> None:
    """But for those that are no paper's, and those that a family has by itself."""
    text = PAGE.read_text(encoding="utf-8")
    own = {f"`{FAMILIES.get(name).training.objective['kind']}`" for name in FAMILIES if FAMILIES.get(name).training}
    others = {"supervised", "distill"}
    assert "--teacher" in text  # which makes any objective a distillation
    assert all(f"--objective {name}" in text or f"`{name}`" in own for name in OBJECTIVES if name not in others)
    assert all(f"--method {name}" in text for name in METHODS if name not in ("full", "frozen", "gradual"))
