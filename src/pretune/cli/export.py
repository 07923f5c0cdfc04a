"""`pretune export`: write a model for other libraries."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli._hints import hint
from pretune.cli._models import BaseOption, Dtype
from pretune.core import log


class ExportFormat(StrEnum):
    """Export format."""

    HF = "hf"


def export(
    directory: Annotated[Path, typer.Argument(metavar="MODEL", help="Run, Hugging Face directory, or hf:OWNER/NAME.")],
    to: Annotated[ExportFormat, typer.Option("--to", help="Format: hf is a Hugging Face directory.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory.")],
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="Data type of the weights (default: unchanged).")
    ] = None,
    base: BaseOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a non-empty directory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export a model as a Hugging Face directory.

    Example: pretune export runs/books --to hf --out share/books --dtype bfloat16
    """
    from pretune.runs.export import export as export_model

    result = export_model(
        directory, out=out, to=to.value, dtype=None if dtype is None else dtype.value, base=base, overwrite=overwrite
    )
    facts = {
        "out": str(out),
        "class": result.architecture,
        "parameters": result.parameters,
        "dtype": result.dtype,
    }
    if as_json:
        log.print_json(facts)
    else:
        log.print_result(f"{out}: {result.architecture}, {result.parameters:,} parameters in {result.dtype}")
    hint("verify", out, silent=as_json)
