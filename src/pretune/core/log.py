"""Messages to stderr and results to stdout, with control characters escaped, and numbers and tables as text.

rich formats messages where stderr is a terminal, and is imported only then; elsewhere they are plain lines.
"""

import itertools
import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pretune.core.errors import UsageError

_quiet = False
_COUNT_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MAX_COUNT = 10**18
_COUNT_PATTERN = re.compile(r"(\d[\d_]{,30}\.?\d{,30}|\.\d{1,30})(e[+-]?\d{1,2})?([kmbt]?)", re.ASCII)
_DURATION_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PATTERN = re.compile(
    r"(\d+\.?\d*|\.\d+)\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])\s*"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape(text: str) -> str:
    r"""Return text with control characters as \uXXXX, so that data cannot control the terminal or reorder a line.

    Line breaks and tabs stay. JSON stays equivalent: it escapes these characters in the same way.

    >>> print(escape("red \x1b[31m, cleared \x9b2J"))
    red \u001b[31m, cleared \u009b2J
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_result(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print a result to stdout, escaped. NOTE: use this for all text on stdout that holds data."""
    print(escape(text), end=end, flush=flush)


def print_json(data: object) -> None:
    """Print data to stdout as indented JSON; NaN and infinity raise a ValueError."""
    print_result(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def set_quiet(quiet: bool) -> None:
    """Silence `info` and `warn` (`--quiet`); errors are raised, so they are not affected."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Return whether messages are silenced; progress bars check it too."""
    return _quiet


@contextmanager
def silence(quiet: bool = True) -> Iterator[None]:
    """Silence messages inside the block."""
    was_quiet = _quiet
    set_quiet(was_quiet or quiet)
    try:
        yield
    finally:
        set_quiet(was_quiet)


def info(message: str) -> None:
    """Log a progress message."""
    _show(message, "")


def warn(message: str) -> None:
    """Log a warning; the run continues."""
    _show(f"warning: {message}", "yellow")


def _show(message: str, style: str) -> None:
    if _quiet:
        return
    message = escape(message)
    # NOTE: while rich draws a progress bar, it replaces stderr by a proxy that prints above the bar.
    if not sys.stderr.isatty() or hasattr(sys.stderr, "rich_proxied_file"):
        print(message, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    Console(stderr=True).print(message, style=style or None, markup=False, highlight=False, soft_wrap=True)


_SCALES = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

TRAINING_TIME = "training time"
"""Label of the wall-clock time of the training loop, with evaluations and checkpoints, without start-up."""
COST_SPAN = "of the training time"
"""The span that energy, CO2e and price cover, in terminal, model card and report."""


def format_number(value: float, *, billion: str = "B") -> str:
    """Format a number with three digits and a letter: 812k, 3.3B; for SI units pass `billion="G"`.

    >>> format_number(812_345), format_number(3.3e9), format_number(7), format_number(999_960)
    ('812k', '3.3B', '7', '1M')
    """
    for scale, letter in _SCALES:
        if value >= 0.9995 * scale:
            return f"{_format_digits(value / scale)}{billion if letter == 'G' else letter}"
    return _format_digits(value)


def format_duration(seconds: float) -> str:
    """Format a duration as [hours:]minutes:seconds.

    >>> format_duration(75), format_duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_kilograms(kilograms: float) -> str:
    """Format a mass in g or kg.

    >>> format_kilograms(0.0123), format_kilograms(4.5), format_kilograms(2e-6)
    ('12.3 g', '4.5 kg', '0.002 g')
    """
    return f"{_format_digits(kilograms)} kg" if kilograms >= 1 else f"{_format_digits(1000 * kilograms)} g"


def format_energy(kwh: float) -> str:
    """Format an energy in Wh or kWh.

    >>> format_energy(0.0123), format_energy(4.5), format_energy(1e-8)
    ('12.3 Wh', '4.5 kWh', '<0.001 Wh')
    """
    return f"{_format_digits(kwh)} kWh" if kwh >= 1 else f"{_format_digits(1000 * kwh)} Wh"


def format_dollars(value: float) -> str:
    """Format a price in dollars.

    >>> format_dollars(0.00012), format_dollars(1.5), format_dollars(1234.5), format_dollars(0)
    ('<$0.01', '$1.50', '$1,234.50', '$0.00')
    """
    return "<$0.01" if 0 < value < 0.01 else f"${value:,.2f}"


def format_count(count: int, plural_noun: str) -> str:
    """Format a count with its noun, given in the plural.

    >>> format_count(2000, "documents"), format_count(1, "documents"), format_count(1, "queries")
    ('2,000 documents', '1 document', '1 query')
    >>> format_count(1, "classes")
    '1 class'
    """
    if count != 1:
        return f"{count:,} {plural_noun}"
    if plural_noun.endswith("ies"):
        return f"1 {plural_noun[:-3]}y"
    return f"1 {plural_noun.removesuffix('es' if plural_noun.endswith('sses') else 's')}"


def parse_count(text: str, option: str) -> int:
    """Parse a count with a suffix.

    >>> parse_count("1.5B", "--tokens")
    1500000000
    """
    match = _COUNT_PATTERN.fullmatch(text.strip().lower())
    value = float(f"{match[1]}{match[2] or ''}".replace("_", "")) * _COUNT_SCALES[match[3]] if match else 0
    if not 1 <= value <= _MAX_COUNT:
        raise UsageError(f"{option} '{text[:40]}' must be a number from 1 to 1e18, such as 1e9, 10B, 300M or 2k")
    return round(value)


def parse_duration(text: str) -> float:
    """Parse a duration into seconds; a number without a unit is ambiguous and raises.

    >>> parse_duration("10m"), parse_duration("90s"), parse_duration("5 min"), parse_duration("1h30m")
    (600.0, 90.0, 300.0, 5400.0)
    """
    stripped_text = text.strip()
    parts = _DURATION_PATTERN.findall(stripped_text)
    seconds = sum(float(number) * _DURATION_UNITS[unit[0]] for number, unit in parts)
    if _DURATION_PATTERN.sub("", stripped_text) or not 0 < seconds < math.inf:
        number = re.fullmatch(r"\d*\.?\d+", stripped_text) is not None and float(stripped_text) > 0
        units = (
            f"{stripped_text[:20]}m for minutes, {stripped_text[:20]}s for seconds" if number else "90s, 10m or 1.5h"
        )
        raise UsageError(f"invalid duration '{text[:40]}'; use {units}")
    return seconds


def format_examples(counts: Mapping[str, int], pool: Mapping[str, int]) -> str:
    """Format the examples of each split, and the pool they were sampled from if larger.

    >>> format_examples({"train": 1000, "dev": 546, "test": 0}, {"train": 4907, "dev": 546})
    'train 1,000 of 4,907, dev 546'
    """
    return ", ".join(f"{split} {format_subset(count, pool.get(split))}" for split, count in counts.items() if count)


def format_subset(count: int, pool: int | None) -> str:
    """Format a number of examples and the pool they were sampled from.

    >>> format_subset(1000, 4907), format_subset(1000, 1000), format_subset(1000, None)
    ('1,000 of 4,907', '1,000', '1,000')
    """
    return f"{count:,}" if pool in (None, count) else f"{count:,} of {pool:,}"


def join_names(names: Collection[object], limit: int = 20) -> str:
    """Join names with commas; beyond `limit`, append the number of the remaining ones.

    >>> join_names(["a", "b"]), join_names(range(200), limit=3)
    ('a, b', '0, 1, 2 … and 197 more')
    """
    text = ", ".join(str(name) for name in itertools.islice(names, limit))
    return text if len(names) <= limit else f"{text} … and {len(names) - limit:,} more"


def _format_digits(value: float) -> str:
    """Format three significant digits, without an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}"


Row = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Title and table; with `align_right`, all columns but the first are right-aligned."""

    title: str
    rows: Sequence[Row] = ()
    header: Row | None = None
    align_right: bool = False


def align_columns(rows: Iterable[Row], *, right: bool = False, indent: str = "  ") -> Iterator[str]:
    """Yield the lines of a table; with `right`, all columns but the first are right-aligned.

    >>> [*align_columns([("loss", "7.1"), ("perplexity", "1200")], right=True)]
    ['  loss         7.1', '  perplexity  1200']
    """
    rows = [*rows]
    widths = [max(map(count_cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        fills = [" " * (width - count_cells(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            fill + cell if right and number else cell + fill
            for number, (cell, fill) in enumerate(zip(row, fills, strict=True))
        ]
        yield f"{indent}{'  '.join(cells)}".rstrip()


def count_cells(text: str) -> int:
    """Return the width in a terminal: some characters take two cells, some none."""
    if max(text, default="") < "\u0300":  # all letters with accents, and none that combine
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def format_markdown(header: Row, rows: Iterable[Row], *, text_columns: int | None = None) -> str:
    """Return a table in Markdown, of escaped cells; columns after the first `text_columns` are right-aligned.

    >>> print(format_markdown(("split", "tokens"), [("train", "9,000")], text_columns=1))
    | split | tokens |
    | --- | ---: |
    | train | 9,000 |
    """
    text_columns = len(header) if text_columns is None else text_columns
    rule = [*["---"] * text_columns, *["---:"] * (len(header) - text_columns)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
