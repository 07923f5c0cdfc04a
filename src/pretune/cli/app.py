"""From the arguments to an exit code: global options, the table of verbs, and what becomes of errors."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from pretune import __version__
from pretune.core import log
from pretune.core.errors import Interrupted, PretuneError, ResourceError, Stopped
from pretune.core.registry import Registry

VERBS: Registry[Callable[..., None]] = Registry(
    "verb",
    {
        "quickstart": "pretune.cli.quickstart:quickstart",
        "list": "pretune.cli.list:list_",
        "show": "pretune.cli.show:show",
        "show-batch": "pretune.cli.show_batch:show_batch",
        "tokenizer": "pretune.cli.tokenizer:tokenizer",
        "prepare": "pretune.cli.prepare:prepare",
        "pretrain": "pretune.cli.pretrain:pretrain",
        "finetune": "pretune.cli.finetune:finetune",
        "predict": "pretune.cli.predict:predict",
        "evaluate": "pretune.cli.evaluate:evaluate",
        "generate": "pretune.cli.generate:generate",
        "fill": "pretune.cli.fill:fill",
        "embed": "pretune.cli.embed:embed",
        "index": "pretune.cli.index:index",
        "search": "pretune.cli.search:search",
        "neighbors": "pretune.cli.neighbors:neighbors",
        "report": "pretune.cli.report:report",
        "verify": "pretune.cli.verify:verify",
        "export": "pretune.cli.export:export",
        "env": "pretune.cli.env:env",
    },
)

_GLOBAL = ("--debug", "--quiet")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` are those of the process by default."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("PRETUNE_DEBUG", "0") not in ("", "0") or "--debug" in _before_dashes(given)
    try:
        code = _run(_hoist(given) or ["--help"])
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # typer has met a broken pipe
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:
        # The reader is gone (`pretune list | head -1`). What is still buffered must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        code, message = _judge(error)
        label = "" if code in (Stopped.exit_code, Interrupted.exit_code) else "error: "
        print(f"pretune: {label}{_one_line(message)}", file=sys.stderr)
        return code
    finally:
        log.set_quiet(False)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(_app(arguments))
    result = command.main(args=arguments, prog_name="pretune", standalone_mode=False)
    code = result if isinstance(result, int) else 0  # an int comes from typer.Exit; verbs return nothing
    if code == Interrupted.exit_code:  # typer turns Ctrl-C into this code
        raise KeyboardInterrupt
    return code


def _app(arguments: list[str]) -> typer.Typer:
    """The typer app; only the verb asked for is imported, and none for the help, which has a line of each."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,  # plain help: rich alone would take a third of the time
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(_global_options)
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb is not None:
        app.command(verb)(VERBS.get(verb))
        return app
    for name in VERBS:
        app.command(name, help=VERBS.describe(name))(_never_called)
    return app


def _never_called() -> None:
    """What stands for a verb in the help of all."""


def _show_version(value: bool) -> None:
    if value:
        print(f"pretune {__version__}")
        raise typer.Exit


def _global_options(
    quiet: Annotated[bool, typer.Option("--quiet", help="Only results and errors, no progress or messages.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Pre-train once, fine-tune many times."""
    log.set_quiet(quiet)


def _judge(error: BaseException) -> tuple[int, str]:
    """The exit code and the message of whatever ended the command."""
    if isinstance(error, PretuneError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Interrupted.exit_code, "interrupted"
    if _out_of_memory(error):
        return ResourceError.exit_code, "out of memory; use a smaller model or batch, or a larger machine"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError.exit_code, f"{error.filename or 'standard output'}: {error.strerror}; free some space"
    # NOTE: typer's usage errors are click's or, in new releases, its own copies of them: told apart by their shape.
    format_message = getattr(error, "format_message", None)
    if callable(format_message) and hasattr(error, "exit_code"):
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context else "pretune"
        return int(error.exit_code), f"{_lower_first(format_message())} (see `{path} --help`)"
    return 1, f"internal error: {type(error).__name__}: {error} (run again with --debug)"


def _out_of_memory(error: BaseException) -> bool:
    # torch's own errors, known by name since torch may not be imported here
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _hoist(arguments: list[str]) -> list[str]:
    """Put the global switches first, so that they also work at the end, where one adds them after an error."""
    head = _before_dashes(arguments)
    switches = [argument for argument in head if argument in _GLOBAL]
    return switches + [argument for argument in head if argument not in _GLOBAL] + arguments[len(head) :]


def _lower_first(message: str) -> str:
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:]


def _one_line(message: str) -> str:
    """A message without line breaks and without characters that could steer the terminal."""
    message = re.sub(r"\s*[\r\n]+\s*", " ", message.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
