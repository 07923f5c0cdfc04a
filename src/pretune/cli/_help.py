"""Help text of arguments, with the metavars of our verbs and no Python types.

Newer releases of typer print `{CORPUS}...` and `CORPUS <list[str]>` where older ones print `CORPUS...` and `CORPUS`.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

_BRACES = re.compile(r"^\{(.*)\}(?=(?:\.\.\.)?$)")


def simplify_arguments(command: Any) -> Any:
    """Make a typer command (or group) show its arguments by their metavars alone; returns it."""
    for subcommand in getattr(command, "commands", {}).values():
        for argument in (parameter for parameter in subcommand.params if parameter.param_type_name == "argument"):
            for method, format_method in (("get_usage_pieces", _format_pieces), ("get_help_record", _format_record)):
                setattr(argument, method, partial(format_method, getattr(argument, method)))
    return command


def _format_pieces(original: Callable[[Any], list[str]], context: Any) -> list[str]:
    return [_BRACES.sub(r"\1", piece) for piece in original(context)]


def _format_record(original: Callable[..., tuple[str, str] | None], ctx: Any) -> tuple[str, str] | None:
    record = original(ctx)
    return None if record is None else (record[0].partition(" <")[0], record[1])
