"""HTML reports of runs: scores, learning curves, errors, cost, data, and commands to reproduce them.

    pt.report(["runs/books", "runs/sst2"], "report.html")

Start with `page.report`, which loads run directories (`load`) and fills the page `report.html` with sections. `facts`
are rows shared with model cards. All text goes through `markup`, which escapes it.
"""
