"""Errors as one line on stderr, with the exit code of their class."""

import errno
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.core.errors import (
    NonFiniteError,
    PretuneError,
    ResourceError,
    UsageError,
    UserInterruptError,
    find_closest,
    find_synonyms,
    suggest,
)

INPUT_OPTIONS = {
    "finetune": "--train",
    "predict": "--input",
    "pretrain": "--data",
    "embed": "--input",
    "index": "--input",
}
"""Verb -> the option that names the file or folder it reads."""
REPLACEMENTS = (
    (("--budget", "--tokens"), "finetune", "set the length with --epochs N or --steps N"),
    (("--input", "--table", "--csv"), "finetune", "the table is --train FILE"),
    (("--train", "--test", "--data", "--file"), "predict", "the inputs are --input FILE"),
    (("--out", "--output"), "predict", "predictions go to standard output; append > FILE to the command"),
    (("--train", "--input", "--corpus"), "pretrain", "the prepared data is --data DATA"),
)
"""Options of other verbs, and their equivalent here."""


def classify_error(error: BaseException, words: Sequence[str] = (), *, debug: bool = False) -> tuple[int, str]:
    """Return the exit code and message of an exception; `debug`: the traceback was printed already.

    `words` are those of the command: a value outside its range is that of an option among them.
    """
    if isinstance(error, PretuneError):
        field, _, problem = str(getattr(error, "problem", "")).partition(" ")
        option = f"--{field.replace('_', '-')}"
        if problem and any(word.partition("=")[0] == option for word in words):
            return error.exit_code, f"{option} {problem}"
        return error.exit_code, _fix_install_command(str(error))
    if _is_interrupt(error):
        return UserInterruptError.exit_code, "interrupted"
    if _is_out_of_memory(error):
        return ResourceError.exit_code, "out of memory; use a smaller model or batch, or a larger machine"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError.exit_code, f"{error.filename or 'standard output'}: {error.strerror}; free some space"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError.exit_code, f"{str(error.filename)[:60]!r}: the name is too long; choose a shorter one"
    # NOTE: typer raises click's usage errors or, in new releases, its own copies: recognised by their attributes.
    if callable(getattr(error, "format_message", None)) and hasattr(error, "exit_code"):
        return UsageError.exit_code, _describe_usage_error(error)
    if isinstance(error, ValueError) and "not JSON compliant" in str(error):
        return NonFiniteError.exit_code, "a result is NaN or infinite, which JSON cannot represent; check the model"
    return 1, f"internal error: {type(error).__name__}: {error}{'' if debug else _save_traceback(error)}"


def _is_interrupt(error: BaseException) -> bool:
    """Return True for Ctrl-C, also where a package has caught it during its import, and failed in another way."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt) or type(cause).__name__ == "Abort":  # Abort: typer's Ctrl-C
            return True
        cause = cause.__context__
    return False


def _fix_install_command(message: str) -> str:
    """Replace `pip` in install commands by the running interpreter's pip, where the first one in PATH differs.

    This also works in a clone: pip takes the extras of the installed package.
    """
    if "pip install 'pretune[" not in message:
        return message
    import shlex
    import shutil

    pip, executable = shutil.which("pip"), Path(sys.executable)
    if pip is not None and Path(pip).parent == executable.parent:
        return message
    python = executable.relative_to(Path.cwd()) if executable.is_relative_to(Path.cwd()) else executable
    return message.replace("pip install 'pretune[", f"{shlex.quote(str(python))} -m pip install 'pretune[")


MAX_MESSAGE = 2_000
"""Characters of a message: a name or value in a file may be of any length."""


def to_one_line(message: str) -> str:
    """Return the message without line breaks and terminal control characters; of a long one, its start and end."""
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE - 400]} … {message[-400:]}"
    return log.escape(re.sub(r"\s*[\r\n]+\s*", " ", message.strip()))


def _save_traceback(error: BaseException) -> str:
    """Save the traceback to a temporary file and return a note with its path: the error may be hard to reproduce."""
    import tempfile  # NOTE: here, for it takes a tenth of the time that the help has

    try:
        with tempfile.NamedTemporaryFile("w", prefix="pretune-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return " (run again with --debug)"
    return f" (traceback: {file.name})"


def _describe_usage_error(error: Any) -> str:
    """Return a usage error of typer as one line, with the nearest valid name."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "pretune"
    message = error.format_message().strip().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        name, options = error.option_name, [*_list_options(context)]
        suggestion = (
            _suggest_replacement(name, context) or _suggest_setting(error, options) or _suggest_option(name, options)
        )
        return f"no such option: {name}{suggestion} (see `{path} --help`)"
    missing: Any = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
    if getattr(missing, "help", None):
        message = message.partition(". ")[0] + f": {missing.help[:1].lower()}{missing.help[1:].rstrip('.')}"
    message = _explain_extra_argument(_unify_message(message, error.__cause__), context)
    wrong = re.search(r"'([^']*)' is not one of (.*)", message, re.DOTALL)
    if wrong is not None:
        message += suggest(wrong[1], re.findall(r"'([^']*)'", wrong[2]))
    return f"{message[:1].lower()}{message[1:]} (see `{path} --help`)"


def _explain_extra_argument(message: str, context: Any) -> str:
    """Suggest an option where an extra argument was probably meant as its value."""
    match = re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", message)
    option = INPUT_OPTIONS.get(context.info_name) if match is not None else None
    free = [
        parameter
        for parameter in context.command.params
        if option in parameter.opts and context.params.get(parameter.name) is None
    ]
    return f"unexpected '{match[1]}'; write {option} {match[1]}" if match is not None and free else message


def _suggest_replacement(name: str, context: Any) -> str:
    """Return the equivalent of an option that only other verbs have."""
    hint = next(
        (replacement for names, verb, replacement in REPLACEMENTS if name in names and verb == context.info_name), None
    )
    return "" if hint is None else f"; {hint}"


def _unify_message(message: str, cause: Any) -> str:
    """Rewrite messages of pydantic, which newer typer releases use, in the wording of older ones."""
    faults = getattr(cause, "errors", None)
    if not callable(faults):
        return message
    value = str(faults()[0].get("input"))[:40]
    message = re.sub(r"Input should be a valid (integer|number).*", f"'{value}' is not a valid \\1", message)
    return message.replace(": Value error, ", ": ")


def _list_options(context: Any) -> Iterator[str]:
    """Yield the options of a command and its parents."""
    while context is not None:
        for parameter in context.command.get_params(context):
            yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-"))
        context = context.parent


def _suggest_option(name: str, options: list[str]) -> str:
    """Suggest the nearest option; leading dashes do not count as similarity."""
    bare = {option.lstrip("-"): option for option in options}
    closest = find_closest(name.lstrip("-"), bare)
    return "" if closest is None else f"; did you mean '{bare[closest]}'?"


def _suggest_setting(error: Any, options: list[str]) -> str:
    """Suggest `--set` where an unknown option is the name of a setting."""
    if "--set" not in options:
        return ""
    from pretune.cli._options import list_setting_paths

    name = error.option_name.lstrip("-").replace("-", "_")
    names = [candidate for candidate in (name, *find_synonyms(name)) if f"--{candidate}" not in options]
    paths = list_setting_paths(error.ctx.info_name)
    setting = next((path for candidate in names for path in paths if path.rpartition(".")[2] == candidate), None)
    return "" if setting is None else f"; write --set {setting}=VALUE"


def _is_out_of_memory(error: BaseException) -> bool:
    # torch errors are recognised by name: torch may not be imported here
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
