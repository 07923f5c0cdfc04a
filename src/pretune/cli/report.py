"""`pretune report`: one HTML page about runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pretune.cli._hints import hint, quote
from pretune.core import log


def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Directories of runs, or a folder with results.json.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Its headline.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write one HTML page about runs.

    It has scores, learning curves, mistakes, cost, data, and how to repeat them. It needs no network and no script, and
    follows the light or dark theme of its reader.

    Example: pretune report runs/books runs/sst2 --out report.html
    """
    from pretune.reports import report as write

    page = write(runs, out, title=title)
    size = page.stat().st_size
    log.print_result(json.dumps({"report": str(page), "bytes": size}, allow_nan=False) if as_json else f"{page}")
    if not as_json:
        log.info(f"open {quote(page)} in a browser; it is one file of {size:,} bytes that can be sent on")
    run = next((one for one in runs if (Path(one) / "config.json").is_file()), None)
    hint(*(("verify", run) if run is not None else ("list", "tasks")), silent=as_json)
