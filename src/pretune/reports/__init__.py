"""HTML reports of runs: scores, learning curves, errors, cost, data, and commands to reproduce them.

    report(["runs/books", "runs/sst2"], "report.html")

Start with `load_directory` (reads a run directory), then `facts` (rows shared with model cards), then `render_page`.
All text goes through `markup`, which escapes it; `charts` draws SVG in the colours of the page's theme.
"""

from pretune.reports.page import report

__all__ = ["report"]
