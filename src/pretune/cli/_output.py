"""Output of verbs: checks of paths, CSV, pages of tables, settings as YAML, progress, and the next command.

Every verb but `env` prints the next command, ready to run:

    next: pretune finetune runs/base --train labelled.csv --out runs/base-tuned

The command is shell-quoted and names only paths that exist or that it creates. A second line, `or:`, may have
placeholders in capitals.
"""

import contextlib
import csv
import io
import itertools
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.cli._options import OutputFormat, TableFormat
from pretune.core import log
from pretune.core.errors import UsageError, refuse_broken_link
from pretune.core.log import Section, align_columns, format_dollars, format_duration, format_energy, format_kilograms

WIDTH = 80
"""Width at which titles and notes of a page are wrapped; tables are narrower."""
_SECONDS_BETWEEN_LINES = 10.0

ProgressReporter = Callable[[float, str], None]
"""Callback with the finished share (0 to 1) and a short description, such as the rate."""


def check_new_folder(out: Path, *, empty: bool = False) -> None:
    """Raise where the directory cannot be created or, with `empty`, where it has content."""
    with _explain_path(out):
        if empty and out.is_dir() and any(out.iterdir()):
            raise UsageError(f"cannot write '{out}': it exists and is not empty; choose another directory")
        if out.exists() and not out.is_dir():
            raise UsageError(f"cannot write '{out}': it is a file, not a directory; choose another path")


def check_new_file(out: Path) -> None:
    """Raise where the file cannot be created; an existing file is replaced."""
    with _explain_path(out):
        if out.is_dir():
            raise UsageError(f"cannot write '{out}': it is a directory, not a file; choose another name")
        if not out.parent.is_dir():
            raise UsageError(f"cannot write '{out}': no such directory '{out.parent}'; create it first")


@contextlib.contextmanager
def _explain_path(out: Path) -> Iterator[None]:
    """Raise a usage error where a parent of the path is a file, or the path is invalid or a broken link."""
    refuse_broken_link(out)
    try:
        parent = next((part for part in out.parents if part.exists()), None)
        if parent is not None and not parent.is_dir():
            raise UsageError(f"cannot write '{out}': '{parent}' is a file, not a directory; choose another path")
        yield
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        reason = getattr(fault, "strerror", None) or fault
        raise UsageError(f"cannot write '{out}': {reason}; choose another path") from fault


def print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print records (RFC 4180) to stdout; None is an empty field. On a terminal, control characters are escaped."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(header)
    render = log.escape if sys.stdout.isatty() else str
    writer.writerows(["" if cell is None else render(str(cell)) for cell in row] for row in rows)
    sys.stdout.write(text.getvalue())


def print_facts(output: OutputFormat, facts: object, text: str) -> None:
    """Print facts as JSON or, where the output is for people, a text."""
    if output.is_text:
        log.print_result(text)
    else:
        log.print_json(facts)


def print_data(output: TableFormat, facts: Any, header: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Print facts as JSON or records as CSV, as the options ask; return False where the output is for people."""
    if output.as_json:
        log.print_json(facts)
    elif output.as_csv:
        print_csv(header, rows)
    return not output.is_text


def print_plan(
    output: OutputFormat, settings: Mapping[str, object], forecast: Mapping[str, object], lines: Iterable[str]
) -> None:
    """Print settings in the format of `--config`, below the lines of a forecast; JSON has the forecast's facts."""
    if not output.is_text:
        log.print_json({**settings, **forecast})
        return
    import yaml

    text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    log.print_result("\n".join([*(f"# {line}".rstrip() for line in lines), "", text]), end="")


def format_costs(devices: Mapping[str, Mapping[str, Any]], name: str, amount: Callable[[Any], str]) -> list[str]:
    """Return a table of estimates by device; `amount` formats its first column, called `name`."""
    header = ("device", name, "energy", "CO2e", "price")
    formats = (format_energy, "kwh"), (format_kilograms, "co2e_kg"), (format_dollars, "dollars")
    rows = [
        (device, amount(cost), *(format_value(cost[key]) for format_value, key in formats))
        for device, cost in devices.items()
    ]
    return [*align_columns([header, *rows], right=True)]


# Hints.


def hint(*words: object, silent: bool = False, stdin: str = "") -> None:
    """Log the next command (without `pretune`), unless `silent`; `stdin` is text to pipe into it."""
    if not silent:
        log.info(f"next: {f'echo {quote(stdin)} | ' if stdin else ''}{format_command(*words)}")


def hint_other(text: str, *, silent: bool = False) -> None:
    """Log an alternative command; words in capitals are placeholders."""
    if not silent:
        log.info(f"or: pretune {text}")


def format_command(*words: object) -> str:
    """Return a shell-quoted command.

    >>> format_command("predict", Path("my runs/a"), "--input", "new.csv")
    "pretune predict 'my runs/a' --input new.csv"
    """
    return shlex.join(["pretune", *map(str, words)])


def quote(path: object) -> str:
    """Return a shell-quoted path."""
    return shlex.quote(str(path))


def find_free_path(path: str | Path) -> Path:
    """Return the path, or a similar one that does not exist yet."""
    first = Path(path)
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    candidates = (first.with_name(f"{first.stem}{suffix}{first.suffix}") for suffix in suffixes)
    return next(path for path in candidates if not path.exists() and not path.is_symlink())


# Progress: a bar where stderr is a terminal, otherwise a line every 10 seconds.


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[ProgressReporter]:
    """Show progress while the block runs; nothing with --quiet."""
    if log.is_quiet():
        yield lambda share, words: None
    elif not sys.stderr.isatty():
        yield _build_line_reporter(title)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        share_column = TextColumn("{task.percentage:>3.0f}%  {task.fields[words]}", markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), share_column, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(log.escape(title), total=1.0, words="")
            yield lambda share, words: bar.update(task, completed=share, words=log.escape(words))


def _build_line_reporter(title: str) -> ProgressReporter:
    start = last = time.monotonic()

    def report(share: float, words: str) -> None:
        nonlocal last
        timestamp = time.monotonic()
        if timestamp - last < _SECONDS_BETWEEN_LINES:
            return
        last = timestamp
        remaining = f", {format_duration((timestamp - start) * (1 - share) / share)} left" if 0 < share <= 1 else ""
        log.info(f"{title}: {share:.0%}, {words}{remaining}")

    return report


# Pages of small tables, by rich where stdout is a terminal, as aligned plain text otherwise.


def print_page(title: str, about: str, sections: Sequence[Section], note: str) -> None:
    """Print a page: title, description, sections, closing note."""
    if sys.stdout.isatty():
        _draw_page(title, about, sections, note)
        return
    lines = [*_wrap(title), *_wrap(about)]
    for section in sections:
        rows = [*([section.header] if section.header else []), *section.rows]
        lines += ["", *_wrap(section.title), *align_columns(rows, right=section.align_right)]
    log.print_result("\n".join([*lines, "", *_wrap(note)]))


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)  # as rich wraps, and names stay whole


def _draw_page(title: str, about: str, sections: Sequence[Section], note: str) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)

    def write(text: str, style: str) -> None:
        console.print(Text(log.escape(text), style=style), width=min(console.width, WIDTH))

    write(title, "bold")
    write(about, "dim")
    for section in sections:
        console.print()
        write(section.title, "bold cyan")
        if not section.rows:
            continue
        table = Table(box=None, show_header=section.header is not None, pad_edge=False, padding=(0, 2, 0, 0))
        for number, name in enumerate(section.header or section.rows[0]):
            heading = Text(log.escape(name) if section.header else "", style="dim")
            table.add_column(heading, justify="right" if section.align_right and number else "left", no_wrap=True)
        for row in section.rows:
            table.add_row(*(Text(log.escape(cell)) for cell in row))
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print()
    write(note, "dim")
