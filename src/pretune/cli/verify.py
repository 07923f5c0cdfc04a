"""`pretune verify`: check the integrity of a model or run."""

from pathlib import Path
from typing import Annotated

from pretune.cli._options import AsJson, Base, argument
from pretune.cli._output import find_free_path, hint
from pretune.core import log


def verify(
    directory: Annotated[Path, argument("MODEL", "Run, Hugging Face directory, or hf:OWNER/NAME.")],
    base: Base = None,
    as_json: AsJson = False,
) -> None:
    """Verify the integrity of a model or run.

    Checks hashes, config, tensors, values, tokenizer, and every checkpoint.

    Example: pretune verify runs/books
    """
    from pretune.core.hub import resolve_path
    from pretune.core.run_dir import RunDir
    from pretune.runs.verify import verify as verify_model

    lines = verify_model(directory, base=base)
    argument, directory = directory, resolve_path(directory)
    if as_json:
        log.print_json({"directory": str(directory), "ok": True, "checked": lines})
        return
    for line in lines:
        log.print_result(f"ok  {line}")
    if RunDir(directory).settings.exists() and any(directory.glob("*config.json")):  # a finished run
        hint("export", argument, "--to", "hf", "--out", find_free_path(f"{directory.resolve().name}-hf"))
    else:
        hint("show", argument)
