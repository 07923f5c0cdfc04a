"""From the arguments to an exit code: global options, the table of verbs, and what becomes of errors."""

import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from pretune import __version__
from pretune.cli import _completion
from pretune.cli._errors import classify_error, to_one_line
from pretune.cli._help import simplify_arguments
from pretune.cli._torchrun import is_idle
from pretune.core import log
from pretune.core.errors import StoppedError, UserInterruptError
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
        "vectors": "pretune.cli.vectors:vectors",
        "neighbors": "pretune.cli.neighbors:neighbors",
        "report": "pretune.cli.report:report",
        "verify": "pretune.cli.verify:verify",
        "export": "pretune.cli.export:export",
        "env": "pretune.cli.env:env",
    },
)

MAX_SUMMARY = 62
"""Characters that the help of all has for a verb, on a terminal of 80 columns."""
_GLOBAL_SWITCHES = ("--debug", "--quiet")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` are those of the process by default."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("PRETUNE_DEBUG", "0") not in ("", "0") or "--debug" in _take_before_dashes(given)
    try:
        code = _run(_hoist(_expand_help(given)) or ["--help"])
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # typer has met a broken pipe, or has completed a line
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:
        # The reader is gone (`pretune list | head -1`). What is still buffered must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        code, message = classify_error(error, debug=debug)
        label = "" if code in (StoppedError.exit_code, UserInterruptError.exit_code) else "error: "
        print(f"pretune: {label}{to_one_line(message)}", file=sys.stderr)
        return code
    finally:
        log.set_quiet(False)


def _run(arguments: list[str]) -> int:
    words = _completion.read_line()
    if words is None and is_idle(_find_verb(arguments), arguments):
        return 0
    command = simplify_arguments(
        typer.main.get_command(_build_app(arguments) if words is None else _build_completion_app(words))
    )
    result = command.main(args=_completion.add_shell(arguments), prog_name="pretune", standalone_mode=False)
    code = result if isinstance(result, int) else 0  # an int comes from typer.Exit; verbs return nothing
    if code == UserInterruptError.exit_code:  # typer turns Ctrl-C into this code
        raise KeyboardInterrupt
    return code


def _build_app(arguments: list[str]) -> typer.Typer:
    """The typer app; only the verb asked for is imported, and none for the help, which has a line of each."""
    verb = _find_verb(arguments)
    app = _build_empty_app()
    if verb is not None:
        app.command(verb, help=format_help(VERBS.get(verb)))(VERBS.get(verb))
        return app
    for name in VERBS:
        app.command(name, help=_shorten(VERBS.describe(name)))(_do_nothing)
    return app


def _build_completion_app(words: list[str]) -> typer.Typer:
    """The app that completes a line: with the verb that is on it, or with the names of all."""
    verb = _find_verb(words)
    return _build_app([verb] if verb is not None and verb in VERBS else [])


def _build_empty_app() -> typer.Typer:
    app = typer.Typer(
        add_completion=bool(os.environ.get("_PRETUNE_COMPLETE")),  # its options are ours
        rich_markup_mode=None,  # plain help: rich alone would take a third of the time
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback(help=format_help(_global_options))(_global_options)
    return app


def _find_verb(arguments: list[str]) -> str | None:
    """The first word that is neither an option nor the shell that one of ours names."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if not argument.startswith("-") and before not in _completion.OPTIONS:
            return argument
    return None


def format_help(verb: Callable[..., None]) -> str:
    """The docstring, of which examples and what is indented keep their lines, so that they can be copied."""
    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    kept = re.compile(r"Examples?:|  ")
    return "\n\n".join(f"\b\n{text}" if kept.match(text) else text for text in paragraphs)


def _shorten(text: str) -> str:
    """What fits into a line of the help of all: the whole, or its first part."""
    while len(text) > MAX_SUMMARY and "," in text:
        text = text.rpartition(",")[0]
    return text


def _do_nothing() -> None:
    """What stands for a verb in the help of all."""


def _show_version(value: bool) -> None:
    if value:
        log.print_result(f"pretune {__version__}")
        raise typer.Exit


def _global_options(
    quiet: Annotated[bool, typer.Option("--quiet", help="Only results and errors, no progress or messages.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            help="Print the script that completes what is typed: bash, zsh, fish.",
            is_eager=True,
            callback=_completion.show,
        ),
    ] = None,
    install_completion: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            help="Install it for the shell.",
            is_eager=True,
            callback=_completion.install,
        ),
    ] = None,
) -> None:
    """Pre-train once, fine-tune many times.

    All at once, on film reviews:

      pretune quickstart

    From a folder of texts and a table with labels to predictions, each step on what the last one wrote:

      pretune tokenizer texts/ --vocab 8000 --out tok
      pretune prepare texts/ --tokenizer tok --out data
      pretune pretrain bert-mini --data data --budget 10m --out runs/base
      pretune finetune runs/base --train labelled.csv --out runs/tuned
      pretune predict runs/tuned --input new.csv

    `pretune VERB --help` shows an example, and every command ends with the next one. A MODEL is a run, the directory
    of a Hugging Face model, or hf:OWNER/NAME.
    """
    log.set_quiet(quiet)


def _expand_help(arguments: list[str]) -> list[str]:
    """`pretune help VERB`, which many other commands know, is `pretune VERB --help`."""
    return [*arguments[1:2], "--help"] if arguments[:1] == ["help"] else arguments


def _take_before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _hoist(arguments: list[str]) -> list[str]:
    """Put the global switches first, so that they also work at the end, where one adds them after an error."""
    head = _take_before_dashes(arguments)
    switches = [argument for argument in head if argument in _GLOBAL_SWITCHES]
    return switches + [argument for argument in head if argument not in _GLOBAL_SWITCHES] + arguments[len(head) :]
