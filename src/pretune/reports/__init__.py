"""RUNS -> A PAGE: one HTML file that says what was run, what came out, what it cost and how to repeat it.

    report(["runs/books", "runs/sst2"], "report.html")

Read `load_directory` first (what is read of a directory), then `facts` (rows that model cards share), then `render_page`. Text goes
through `markup`, which escapes everything; charts are made by hand in `charts`, in colours of the page's theme.
"""

from pretune.reports.page import report

__all__ = ["report"]
