"""Command-line entry point: global options, the registry of verbs, exit codes."""

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
"""Maximum length of a verb's line in `pretune --help`, for a terminal of 80 columns."""
_GLOBAL_SWITCHES = ("--debug", "--quiet")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("PRETUNE_DEBUG", "0") not in ("", "0") or "--debug" in _take_before_dashes(words)
    try:
        code = _run(_hoist(_expand_help(words)) or ["--help"])
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # from typer: a broken pipe, or a completed line
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:
        # The reader has closed the pipe (`pretune list | head -1`): the buffer must not be flushed at exit.
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
    """Return the typer app with the requested verb only; without a verb, with a stub of each, for `pretune --help`."""
    verb = _find_verb(arguments)
    app = _build_empty_app()
    if verb is not None:
        app.command(verb, help=format_help(VERBS.get(verb)))(VERBS.get(verb))
        return app
    for name in VERBS:
        app.command(name, help=_shorten(VERBS.describe(name)))(_do_nothing)
    return app


def _build_completion_app(words: list[str]) -> typer.Typer:
    """Return the app for shell completion: the verb on the line, or the names of all verbs."""
    verb = _find_verb(words)
    return _build_app([verb] if verb is not None and verb in VERBS else [])


def _build_empty_app() -> typer.Typer:
    app = typer.Typer(
        add_completion=bool(os.environ.get("_PRETUNE_COMPLETE")),  # pretune defines the completion options itself
        rich_markup_mode=None,  # importing rich would take a third of the time
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback(help=format_help(_global_options))(_global_options)
    return app


def _find_verb(arguments: list[str]) -> str | None:
    """Return the first argument that is neither an option nor the value of a completion option."""
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        if not argument.startswith("-") and previous not in _completion.OPTIONS:
            return argument
    return None


def format_help(verb: Callable[..., None]) -> str:
    """Return the docstring as click help text; examples and indented paragraphs keep their line breaks."""
    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    pattern = re.compile(r"Examples?:|  ")
    return "\n\n".join(f"\b\n{text}" if pattern.match(text) else text for text in paragraphs)


def _shorten(text: str) -> str:
    """Shorten a summary to `MAX_SUMMARY` characters, at a comma."""
    while len(text) > MAX_SUMMARY and "," in text:
        text = text.rpartition(",")[0]
    return text


def _do_nothing() -> None:
    """Stand in for a verb in `pretune --help`."""


def _show_version(value: bool) -> None:
    if value:
        log.print_result(f"pretune {__version__}")
        raise typer.Exit


def _global_options(
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only results and errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            help="Print the shell completion script: bash, zsh or fish.",
            is_eager=True,
            callback=_completion.show,
        ),
    ] = None,
    install_completion: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            help="Install shell completion.",
            is_eager=True,
            callback=_completion.install,
        ),
    ] = None,
) -> None:
    """Pre-train once, fine-tune many times.

    A complete example on film reviews:

      pretune quickstart

    From a folder of text and a labelled table to predictions:

      pretune tokenizer texts/ --vocab 8000 --out tok
      pretune prepare texts/ --tokenizer tok --out data
      pretune pretrain bert-mini --data data --budget 10m --out runs/base
      pretune finetune runs/base --train labelled.csv --out runs/tuned
      pretune predict runs/tuned --input new.csv

    See `pretune VERB --help` for options and an example. Every command prints the next one. A MODEL is a run
    directory, a Hugging Face model directory, or hf:OWNER/NAME.
    """
    log.set_quiet(quiet)


def _expand_help(arguments: list[str]) -> list[str]:
    """Translate `pretune help VERB` to `pretune VERB --help`."""
    return [*arguments[1:2], "--help"] if arguments[:1] == ["help"] else arguments


def _take_before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _hoist(arguments: list[str]) -> list[str]:
    """Move the global switches to the front, so that they also work after the verb."""
    head = _take_before_dashes(arguments)
    switches = [argument for argument in head if argument in _GLOBAL_SWITCHES]
    return switches + [argument for argument in head if argument not in _GLOBAL_SWITCHES] + arguments[len(head) :]
