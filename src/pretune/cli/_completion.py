"""Shell completion: verbs, options and names while they are typed, by the protocol of click and typer.

The shell asks by running `pretune` with `_PRETUNE_COMPLETE` set and the line so far in another variable. Only the verb
on that line is imported, and none imports torch at its top.
"""

import os
import shlex
from collections.abc import Sequence
from typing import Any

from pretune.core import log
from pretune.core.errors import ResourceError, UsageError, suggest

SHELLS = ("bash", "zsh", "fish")
OPTIONS = ("--show-completion", "--install-completion")
_COMPLETE_VARIABLE = "_PRETUNE_COMPLETE"


def read_line() -> list[str] | None:
    """The words of the line that is to be completed, without the last, unfinished one; None where nobody asks."""
    if not os.environ.get(_COMPLETE_VARIABLE):
        return None
    # NOTE: bash gives its words in one variable; the scripts of typer for zsh and fish give the line in another.
    bash = "COMP_WORDS" in os.environ
    text = os.environ.get("COMP_WORDS" if bash else "_TYPER_COMPLETE_ARGS", "")
    words = _split(text)
    if bash:
        return words[1 : int(os.environ.get("COMP_CWORD") or len(words))]
    return words[1:] if text.endswith(" ") else words[1:-1]


def add_shell(arguments: Sequence[str]) -> list[str]:
    """The arguments with the name of the shell in use after an option that has none."""
    found = list(arguments)
    for option in OPTIONS:
        if option in found and found[found.index(option) + 1 : found.index(option) + 2] in ([], ["--debug"]):
            shell = os.environ.get("SHELL", "").rpartition("/")[2]
            found.insert(found.index(option) + 1, shell if shell in SHELLS else SHELLS[0])
    return found


def show(shell: str | None) -> None:
    """Print the script that a shell is to run."""
    if shell is not None:
        import typer
        from typer import completion

        script: Any = completion
        wishes = {"prog_name": "pretune", "complete_var": _COMPLETE_VARIABLE, "shell": _check_shell(shell)}
        print(script.get_completion_script(**wishes))
        raise typer.Exit


def install(shell: str | None) -> None:
    """Put the script where the shell finds it."""
    if shell is not None:
        import typer
        from typer import completion

        script: Any = completion
        try:
            _, path = script.install(_check_shell(shell), "pretune", _COMPLETE_VARIABLE)
        except OSError as fault:
            raise ResourceError(
                f"{fault.filename}: cannot be written: {fault.strerror}; put the output of `pretune --show-completion "
                f"{shell}` where your shell reads it"
            ) from None
        print(path)
        log.info("open a new terminal for it to work")
        raise typer.Exit


def _check_shell(shell: str) -> str:
    if shell not in SHELLS:
        raise UsageError(f"unknown shell '{shell[:40]}'{suggest(shell, SHELLS)} (known: {', '.join(SHELLS)})")
    return shell


def _split(text: str) -> list[str]:
    """Words as the shell has them; a quotation may be unfinished, and is then one word."""
    for end in ("", "'", '"'):
        try:
            return shlex.split(text + end)
        except ValueError:
            continue
    return text.split()
