"""Command-line entry point: global options, the registry of verbs, exit codes."""

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pretune.cli._errors import classify_error, to_one_line
from pretune.cli._options import derive_command, describe_option
from pretune.core import __version__, log
from pretune.core.api import Option
from pretune.core.errors import ResourceError, StoppedError, UsageError, UserInterruptError, suggest
from pretune.core.machine import limit_threads
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
        "chat": "pretune.cli.chat:chat",
        "fill": "pretune.cli.fill:fill",
        "embed": "pretune.cli.embed:embed",
        "index": "pretune.cli.search:index",
        "search": "pretune.cli.search:search",
        "vectors": "pretune.cli.neighbors:vectors",
        "neighbors": "pretune.cli.neighbors:neighbors",
        "analyze": "pretune.cli.analyze:analyze",
        "compare": "pretune.cli.compare:compare",
        "report": "pretune.cli.export:report",
        "verify": "pretune.cli.export:verify",
        "export": "pretune.cli.export:export",
        "serve": "pretune.cli.serve:serve",
        "env": "pretune.cli.env:env",
    },
)

ANALYSES: Registry[Callable[..., None]] = Registry(
    "analysis",
    {
        "attention": "pretune.cli.analyze:attention",
        "layers": "pretune.cli.analyze:layers",
        "embeddings": "pretune.cli.analyze:embeddings",
        "forgetting": "pretune.cli.analyze:forgetting",
        "diff": "pretune.cli.analyze:diff",
    },
)
"""Verbs after `pretune analyze`."""
_GROUPS = {"analyze": ANALYSES}
"""Verbs that are groups of verbs; their function is the callback of the group."""

MAX_SUMMARY = 62
"""Maximum length of a verb's line in `pretune --help`, for a terminal of 80 columns."""
DISTRIBUTED_VERBS = ("pretrain", "finetune")
"""Verbs that run on all ranks."""
SINGLE_PROCESS_OPTIONS = ("--dry-run", "--help", "-h")
"""Options with which even these run on one rank."""
SHELLS = ("bash", "zsh", "fish")
_COMPLETION_OPTIONS = ("--show-completion", "--install-completion")
_COMPLETE_VARIABLE = "_PRETUNE_COMPLETE"
"""Set by the shell that asks for completions."""
_GLOBAL_SWITCHES = ("--debug", "--quiet")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    limit_threads()  # before anything imports torch
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
        code, message = classify_error(error, words, debug=debug)
        label = "" if code in (StoppedError.exit_code, UserInterruptError.exit_code) else "error: "
        print(f"pretune: {label}{to_one_line(message)}", file=sys.stderr)
        return code
    finally:
        log.set_quiet(False)


def _run(arguments: list[str]) -> int:
    if not os.environ.get(_COMPLETE_VARIABLE) and is_idle(_find_verb(arguments), arguments):
        return 0
    result = build_group().main(args=_add_shell(arguments), prog_name="pretune", standalone_mode=False)
    code = result if isinstance(result, int) else 0  # an int comes from typer.Exit; verbs return nothing
    if code == UserInterruptError.exit_code:  # typer turns Ctrl-C into this code
        raise KeyboardInterrupt
    return code


def build_group() -> Any:
    """Return the command of `pretune`, whose verbs are imported when they are used."""
    app = _build_typer(cls=VerbGroup, add_completion=bool(os.environ.get(_COMPLETE_VARIABLE)))
    app.callback(help=format_help(_global_options))(_global_options)
    return typer.main.get_command(app)


_build_typer = functools.partial(
    typer.Typer,
    add_completion=False,
    rich_markup_mode=None,  # NOTE: importing rich would take a third of the time.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


class VerbGroup(TyperGroup):
    """Group of all verbs. Only the verb on the line is imported, `pretune --help` reads docstrings."""

    def get_verbs(self) -> Registry[Callable[..., None]]:
        """Return the verbs of the group."""
        return _GROUPS.get(self.name or "", VERBS)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in the order of the help."""
        return self.get_verbs().list_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a verb; completion ignores unknown ones."""
        verbs = self.get_verbs()
        return None if ctx.resilient_parsing and cmd_name not in verbs else build_command(cmd_name, verbs)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs with their summaries, cut at a comma to `MAX_SUMMARY` characters."""
        verbs = self.get_verbs()
        with formatter.section("Commands"):
            formatter.write_dl([(name, _shorten(verbs.describe(name))) for name in verbs])


def build_command(verb: str, verbs: Registry[Callable[..., None]] | None = None) -> Any:
    """Return the command of a verb, by default one of `VERBS`."""
    function = (VERBS if verbs is None else verbs).get(verb)
    if verbs in (None, VERBS) and verb in _GROUPS:
        app = _build_typer(name=verb, cls=VerbGroup)
        app.callback(help=format_help(function))(function)
        return typer.main.get_command(app)
    app = _build_typer()
    app.command(verb, help=format_help(function))(derive_command(function))
    command = typer.main.get_command(app)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _simplify_argument(parameter)
    return command


def _simplify_argument(argument: Any) -> None:
    """Make the help show an argument by its metavar alone.

    Newer releases of typer print `{CORPUS}...` and `CORPUS <list[str]>` where older ones print `CORPUS...` and
    `CORPUS`.
    """
    get_pieces, get_record = argument.get_usage_pieces, argument.get_help_record

    def get_usage_pieces(ctx: Any) -> list[str]:
        return [re.sub(r"^\{(.*)\}(?=(?:\.\.\.)?$)", r"\1", piece) for piece in get_pieces(ctx)]

    def get_help_record(ctx: Any) -> tuple[str, str] | None:
        record = get_record(ctx)
        return None if record is None else (record[0].partition(" <")[0], record[1])

    argument.get_usage_pieces, argument.get_help_record = get_usage_pieces, get_help_record


def _find_verb(arguments: list[str]) -> str | None:
    """Return the first argument that is neither an option nor the value of a completion option."""
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        if not argument.startswith("-") and previous not in _COMPLETION_OPTIONS:
            return argument
    return None


def is_idle(verb: str | None, arguments: Sequence[str]) -> bool:
    """Return whether this rank of `torchrun` has nothing to do, since the verb runs on rank 0 only.

    On rank 0 of such a verb, torchrun's variables are removed, so that it runs as a single process.
    """
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if world < 2 or (verb in DISTRIBUTED_VERBS and not any(word in SINGLE_PROCESS_OPTIONS for word in arguments)):
        return False
    if rank:
        with log.silence("--quiet" in arguments):
            log.info(f"rank {rank} of {world} is idle: {verb or 'this command'} runs on rank 0 only")
        return True
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    return False


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


def _show_version(value: bool) -> None:
    if value:
        log.print_result(f"pretune {__version__}")
        raise typer.Exit


def _add_shell(arguments: list[str]) -> list[str]:
    """Insert the current shell after a completion option that has no value."""
    words = list(arguments)
    for name in _COMPLETION_OPTIONS:
        if name in words and words[words.index(name) + 1 : words.index(name) + 2] in ([], ["--debug"]):
            shell = os.environ.get("SHELL", "").rpartition("/")[2]
            words.insert(words.index(name) + 1, shell if shell in SHELLS else SHELLS[0])
    return words


def _show_completion(shell: str | None) -> None:
    """Print the completion script of a shell."""
    if shell is not None:
        from typer.completion import get_completion_script  # type: ignore[attr-defined]

        options = {"prog_name": "pretune", "complete_var": _COMPLETE_VARIABLE, "shell": _check_shell(shell)}
        log.print_result(get_completion_script(**options))
        raise typer.Exit


def _install_completion(shell: str | None) -> None:
    """Install the completion script of a shell."""
    if shell is not None:
        from typer.completion import install  # type: ignore[attr-defined]

        try:
            _, path = install(_check_shell(shell), "pretune", _COMPLETE_VARIABLE)
        except OSError as fault:
            raise ResourceError(
                f"cannot write {fault.filename}: {fault.strerror}; save the output of `pretune --show-completion "
                f"{shell}` where your shell reads it"
            ) from None
        log.print_result(str(path))
        log.info("open a new terminal to use it")
        raise typer.Exit


def _check_shell(shell: str) -> str:
    if shell not in SHELLS:
        raise UsageError(f"unknown shell '{shell[:40]}'{suggest(shell, SHELLS)} (allowed: {', '.join(SHELLS)})")
    return shell


def _global_options(
    quiet: Annotated[bool, describe_option(Option("--quiet", "Print only results and errors."))] = False,
    debug: Annotated[bool, describe_option(Option("--debug", "Print the traceback of an error."))] = False,
    version: Annotated[
        bool, describe_option(Option("--version", "Print the version."), is_eager=True, callback=_show_version)
    ] = False,
    show_completion: Annotated[
        str | None,
        describe_option(
            Option("--show-completion [SHELL]", "Print the shell completion script: bash, zsh or fish."),
            is_eager=True,
            callback=_show_completion,
        ),
    ] = None,
    install_completion: Annotated[
        str | None,
        describe_option(
            Option("--install-completion [SHELL]", "Install shell completion."),
            is_eager=True,
            callback=_install_completion,
        ),
    ] = None,
) -> None:
    """Pre-train once, fine-tune many times.

    A complete example on film reviews:

      pretune quickstart

    From a folder of text and a labelled table to predictions:

      pretune pretrain encoder --text texts/ --budget 10m --out runs/base
      pretune finetune runs/base --train labelled.csv --out runs/tuned
      pretune predict runs/tuned --input new.csv

    See `pretune VERB --help` for options and an example. Every command prints the next one. A MODEL is a run
    directory, a Hugging Face model directory, hf:OWNER/NAME, or an installed model (`pretune list models`).
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
