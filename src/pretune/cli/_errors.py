"""What becomes of an error: one line, and the exit code of its kind."""

import errno
import re
import sys
import traceback
from collections.abc import Iterator
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
    suggest,
)
from pretune.core.synonyms import find_synonyms

INPUT_OPTIONS = {
    "finetune": "--train",
    "predict": "--input",
    "pretrain": "--data",
    "embed": "--input",
    "index": "--input",
}
"""Verb -> the option that names the file or folder it reads."""
REPLACEMENTS = (
    (("--budget", "--tokens"), "finetune", "its length is --epochs N or --steps N"),
    (("--input", "--table", "--csv"), "finetune", "the table is --train FILE"),
    (("--train", "--test", "--data", "--file"), "predict", "the texts are --input FILE"),
    (("--out", "--output"), "predict", "what is said goes to standard output; write > FILE after the command"),
    (("--train", "--input", "--corpus"), "pretrain", "the prepared text is --data DATA"),
)
"""Options that a verb does not have, and what it has for them."""


def classify_error(error: BaseException, *, debug: bool = False) -> tuple[int, str]:
    """The exit code and the message of whatever ended the command; with `debug` the traceback was shown."""
    if isinstance(error, PretuneError):
        return error.exit_code, _fix_install_command(str(error))
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":  # Abort: typer's Ctrl-C
        return UserInterruptError.exit_code, "interrupted"
    if _is_out_of_memory(error):
        return ResourceError.exit_code, "out of memory; use a smaller model or batch, or a larger machine"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError.exit_code, f"{error.filename or 'standard output'}: {error.strerror}; free some space"
    # NOTE: typer's usage errors are click's or, in new releases, its own copies of them: told apart by their shape.
    if callable(getattr(error, "format_message", None)) and hasattr(error, "exit_code"):
        return UsageError.exit_code, _describe_usage_error(error)
    if isinstance(error, ValueError) and "not JSON compliant" in str(error):
        return NonFiniteError.exit_code, "a result is not a finite number, which JSON has no word for; check the model"
    return 1, f"internal error: {type(error).__name__}: {error}{'' if debug else _save_traceback(error)}"


def _fix_install_command(message: str) -> str:
    """How to install an extra, by the interpreter at work: `pip` alone may be that of another one.

    From a clone, too: pip takes the extras of the package that is there.
    """
    if "pip install 'pretune[" not in message:
        return message
    import shlex
    import shutil

    found, here = shutil.which("pip"), Path(sys.executable)
    if found is not None and Path(found).parent == here.parent:
        return message
    python = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return message.replace("pip install 'pretune[", f"{shlex.quote(str(python))} -m pip install 'pretune[")


def to_one_line(message: str) -> str:
    """A message without line breaks and without characters that could steer the terminal."""
    return log.escape(re.sub(r"\s*[\r\n]+\s*", " ", message.strip()))


def _save_traceback(error: BaseException) -> str:
    """Where the traceback is: what went wrong after an hour may not go wrong again."""
    import tempfile  # NOTE: here, for it takes a tenth of the time that the help has

    try:
        with tempfile.NamedTemporaryFile("w", prefix="pretune-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return " (run again with --debug)"
    return f" (the traceback is in {file.name})"


def _describe_usage_error(error: Any) -> str:
    """What typer found wrong, in our words, with the nearest name that would have been right."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "pretune"
    message = error.format_message().strip().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        name, known = error.option_name, [*_list_options(context)]
        meant = _suggest_replacement(name, context) or _suggest_setting(error, known) or _suggest_option(name, known)
        return f"no such option: {name}{meant} (see `{path} --help`)"
    missing: Any = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
    if getattr(missing, "help", None):
        message = message.partition(". ")[0] + f": {missing.help[:1].lower()}{missing.help[1:].rstrip('.')}"
    message = _explain_extra_argument(_unify_message(message, error.__cause__), context)
    wrong = re.search(r"'([^']*)' is not one of (.*)", message, re.DOTALL)
    if wrong is not None:
        message += suggest(wrong[1], re.findall(r"'([^']*)'", wrong[2]))
    return f"{message[:1].lower()}{message[1:]} (see `{path} --help`)"


def _explain_extra_argument(message: str, context: Any) -> str:
    """A word too many is what an option should have been given, where a verb reads one thing."""
    found = re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", message)
    option = INPUT_OPTIONS.get(context.info_name) if found is not None else None
    free = [one for one in context.command.params if option in one.opts and context.params.get(one.name) is None]
    return f"unexpected '{found[1]}'; write {option} {found[1]}" if found is not None and free else message


def _suggest_replacement(name: str, context: Any) -> str:
    """What a verb has for an option that others have."""
    found = next((said for names, verb, said in REPLACEMENTS if name in names and verb == context.info_name), None)
    return "" if found is None else f"; {found}"


def _unify_message(message: str, cause: Any) -> str:
    """A message of the library that newer releases check values with, in the words that older ones have."""
    faults = getattr(cause, "errors", None)
    if not callable(faults):
        return message
    value = str(faults()[0].get("input"))[:40]
    message = re.sub(r"Input should be a valid (integer|number).*", f"'{value}' is not a valid \\1", message)
    return message.replace(": Value error, ", ": ")


def _list_options(context: Any) -> Iterator[str]:
    """The options of a command, and those that all have."""
    while context is not None:
        for parameter in context.command.get_params(context):
            yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-"))
        context = context.parent


def _suggest_option(name: str, options: list[str]) -> str:
    """The nearest option; the dashes, which all have, do not make two alike."""
    bare = {option.lstrip("-"): option for option in options}
    found = find_closest(name.lstrip("-"), bare)
    return "" if found is None else f"; did you mean '{bare[found]}'?"


def _suggest_setting(error: Any, options: list[str]) -> str:
    """What is no option may be a setting, which `--set` changes."""
    if "--set" not in options:
        return ""
    from pretune.cli._names import SETTING_PATHS

    name = error.option_name.lstrip("-").replace("-", "_")
    names = [one for one in (name, *find_synonyms(name)) if f"--{one}" not in options]
    paths = SETTING_PATHS.get(error.ctx.info_name, ())
    found = next((path for one in names for path in paths if path.rpartition(".")[2] == one), None)
    return "" if found is None else f"; write --set {found}=VALUE"


def _is_out_of_memory(error: BaseException) -> bool:
    # torch's own errors, known by name since torch may not be imported here
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
