"""Help as one reads it: arguments by the names that verbs give them, and nothing of Python.

Newer releases of typer write `{CORPUS}...` and `CORPUS <list[str]>` where older ones have `CORPUS...` and `CORPUS`.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

_BRACES = re.compile(r"^\{(.*)\}(?=(?:\.\.\.)?$)")


def simplify_arguments(command: Any) -> Any:
    """A command of typer, or a group of them, whose arguments are shown by their names alone."""
    for one in getattr(command, "commands", {}).values():
        for argument in (each for each in one.params if each.param_type_name == "argument"):
            for method, shown in (("get_usage_pieces", _format_pieces), ("get_help_record", _format_record)):
                setattr(argument, method, partial(shown, getattr(argument, method)))
    return command


def _format_pieces(original: Callable[[Any], list[str]], context: Any) -> list[str]:
    return [_BRACES.sub(r"\1", piece) for piece in original(context)]


def _format_record(original: Callable[..., tuple[str, str] | None], ctx: Any) -> tuple[str, str] | None:
    found = original(ctx)
    return None if found is None else (found[0].partition(" <")[0], found[1])
