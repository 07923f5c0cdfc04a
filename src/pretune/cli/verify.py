"""`pretune verify`: check the integrity of a model or run."""

from pathlib import Path
from typing import Annotated

import typer

from pretune.cli._hints import find_free_path, hint
from pretune.cli._models import BaseOption
from pretune.core import log


def verify(
    directory: Annotated[Path, typer.Argument(metavar="MODEL", help="Run, Hugging Face directory, or hf:OWNER/NAME.")],
    base: BaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify the integrity of a model or run.

    Checks hashes, config, tensors, values, tokenizer, and every checkpoint.

    Example: pretune verify runs/books
    """
    from pretune.adaptation.verify import is_adapter_directory, verify_adapter
    from pretune.core.hub import resolve_path
    from pretune.models.verify import verify as check
    from pretune.runs.restore import check_model
    from pretune.training.checkpoints import verify_checkpoints

    argument, directory = directory, resolve_path(directory)
    check_model(directory)  # a finished run has a manifest
    lines = verify_checkpoints(directory)
    if is_adapter_directory(directory):
        lines = [*verify_adapter(directory, base=base), *lines]
    elif not lines or (directory / "config.json").exists():  # a finished run holds a model
        lines = [*check(directory), *lines]
    if as_json:
        log.print_json({"directory": str(directory), "ok": True, "checked": lines})
        return
    for line in lines:
        log.print_result(f"ok  {line}")
    if (directory / "run.json").exists() and any(directory.glob("*config.json")):  # a finished run
        hint("export", argument, "--to", "hf", "--out", find_free_path(f"{directory.resolve().name}-hf"))
    else:
        hint("show", argument)
