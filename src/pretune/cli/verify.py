"""`pretune verify`: whether a model directory is whole."""

import json
from pathlib import Path
from typing import Annotated

import typer


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A model directory, ours or Hugging Face's.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a model directory is whole: hashes, config, tensors, values, tokenizer.

    Example: pretune verify runs/small
    """
    from pretune.models.verify import verify as check

    lines = check(directory)
    if as_json:
        print(json.dumps({"directory": str(directory), "ok": True, "checked": lines}, indent=2, ensure_ascii=False))
        return
    for line in lines:
        print(f"ok  {line}")
