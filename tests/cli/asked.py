"""Commands as they are typed, parsed by the verb they are for; nothing is run."""

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

from pretune.cli import VERBS, app

PLACES = {"corpus", "data", "dev", "directory", "index", "init_from", "inputs", "model", "queries", "run", "runs",
          "source", "test", "tokenizer", "train", "valid"}  # fmt: skip
"""Parameters that name what has to be there."""


def alone(command: str) -> str:
    """A command without the text that is piped into it."""
    return command[command.index("pretune ") :]


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """The verb of a command and what each of its parameters is; what is wrong is typer's usage error."""
    first, verb, *words = shlex.split(command)
    assert first == "pretune", command
    with (
        app.build_group().make_context("pretune", [verb, *words]) as context,
        app.build_command(verb).make_context(verb, list(words), parent=context) as made,
    ):
        if verb != "analyze" or not words or words[0] not in app.ANALYSES:
            return verb, dict(made.params)
        with app.build_command(words[0], app.ANALYSES).make_context(words[0], words[1:], parent=made) as inner:
            return verb, dict(inner.params)


def complete(verb: str, parameter: str, incomplete: str = "") -> list[str]:
    """What a shell offers for a parameter."""
    command = app.build_command(verb)
    found = next(each for each in command.params if each.name == parameter)
    context = command.make_context(verb, [], resilient_parsing=True)
    return [item.value for item in found.shell_complete(context, incomplete)]


def places(command: str) -> list[Path]:
    """The files and folders that a command reads."""
    verb, given = parsed(command)
    names = PLACES - {"model"} if verb == "pretrain" else PLACES
    named = [value for name, value in given.items() if name in names and value is not None]
    flat = [one for value in named for one in (value if isinstance(value, list | tuple) else [value])]
    return [Path(one) for one in flat if str(one) != "-"]


def examples(verb: str) -> list[str]:
    """The commands of pretune in a verb's help, without what stands before a pipe."""
    text = inspect.cleandoc(VERBS.get(verb).__doc__ or "")
    blocks = [block for block in text.split("\n\n") if re.match(r"Examples?:", block)]
    lines = [line.strip() for block in blocks for line in re.sub(r"^Examples?:", "", block).splitlines()]
    return [f"pretune {line.partition('pretune ')[2]}" for line in lines if line]
