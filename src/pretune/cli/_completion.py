"""Shell completion of verbs, options and names, by the protocol of click and typer.

The shell runs `pretune` with `_PRETUNE_COMPLETE` set and the current line in another variable. Only the verb on that
line is imported, and no verb imports torch at module level.
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
    """Return the words of the line to complete, without the last, unfinished one; None outside completion."""
    if not os.environ.get(_COMPLETE_VARIABLE):
        return None
    # NOTE: bash passes its words in one variable; typer's scripts for zsh and fish pass the line in another.
    bash = "COMP_WORDS" in os.environ
    text = os.environ.get("COMP_WORDS" if bash else "_TYPER_COMPLETE_ARGS", "")
    words = _split(text)
    if bash:
        return words[1 : int(os.environ.get("COMP_CWORD") or len(words))]
    return words[1:] if text.endswith(" ") else words[1:-1]


def add_shell(arguments: Sequence[str]) -> list[str]:
    """Insert the current shell after a completion option that has no value."""
    words = list(arguments)
    for option in OPTIONS:
        if option in words and words[words.index(option) + 1 : words.index(option) + 2] in ([], ["--debug"]):
            shell = os.environ.get("SHELL", "").rpartition("/")[2]
            words.insert(words.index(option) + 1, shell if shell in SHELLS else SHELLS[0])
    return words


def show(shell: str | None) -> None:
    """Print the completion script of a shell."""
    if shell is not None:
        import typer
        from typer import completion

        script: Any = completion
        options = {"prog_name": "pretune", "complete_var": _COMPLETE_VARIABLE, "shell": _check_shell(shell)}
        print(script.get_completion_script(**options))
        raise typer.Exit


def install(shell: str | None) -> None:
    """Install the completion script of a shell."""
    if shell is not None:
        import typer
        from typer import completion

        script: Any = completion
        try:
            _, path = script.install(_check_shell(shell), "pretune", _COMPLETE_VARIABLE)
        except OSError as fault:
            raise ResourceError(
                f"cannot write {fault.filename}: {fault.strerror}; save the output of `pretune --show-completion "
                f"{shell}` where your shell reads it"
            ) from None
        print(path)
        log.info("open a new terminal to use it")
        raise typer.Exit


def _check_shell(shell: str) -> str:
    if shell not in SHELLS:
        raise UsageError(f"unknown shell '{shell[:40]}'{suggest(shell, SHELLS)} (allowed: {', '.join(SHELLS)})")
    return shell


def _split(text: str) -> list[str]:
    """Split a line into words; an unfinished quotation is one word."""
    for end in ("", "'", '"'):
        try:
            return shlex.split(text + end)
        except ValueError:
            continue
    return text.split()
