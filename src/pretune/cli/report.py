"""`pretune report`: HTML report of runs."""

import json
from pathlib import Path
from typing import Annotated

from pretune.cli._options import OutputFormat
from pretune.cli._output import hint, quote
from pretune.core import log
from pretune.core.api import Option


def report(
    runs: Annotated[list[str], Option("RUN", "Run directories, or a directory with results.json.")],
    *,
    out: Annotated[Path, Option("--out FILE", "Output file.")] = Path("report.html"),
    title: Annotated[str | None, Option("--title TEXT", "Title of the page.")] = None,
    output: OutputFormat,
) -> None:
    """Write an HTML report of runs.

    The page shows scores, learning curves, errors, cost, data and the commands to reproduce them. It is one file
    without scripts or network access, with a light and a dark theme.

    Example: pretune report runs/books runs/sst2 --out report.html
    """
    from pretune.core.run_dir import RunDir
    from pretune.reports.page import report as write

    page = write(runs, out, title=title)
    size = page.stat().st_size
    log.print_result(json.dumps({"report": str(page), "bytes": size}, allow_nan=False) if output.as_json else f"{page}")
    if not output.as_json:
        log.info(f"open {quote(page)} in a browser (one file, {size:,} bytes)")
    run = next((directory for directory in runs if RunDir(Path(directory)).model_config.is_file()), None)
    hint(*(("verify", run) if run is not None else ("list", "tasks")), silent=output.as_json)
