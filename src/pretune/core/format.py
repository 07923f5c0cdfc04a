"""Numbers as people read them."""

from collections.abc import Iterator

_SCALES = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

TRAINING_TIME = "training time"
"""The wall-clock time of the training loop, with its evaluations and saves, without start-up and the last files."""
COST_SPAN = "of the training time"
"""The span that energy, CO2e and price cover, as terminal, model card and report have it."""


def format_number(value: float, *, billion: str = "B") -> str:
    """Three digits and a letter: 812k, 3.3B; of units, whose letters are G, T and P: `billion="G"`.

    >>> format_number(812_345), format_number(3.3e9), format_number(7), format_number(999_960)
    ('812k', '3.3B', '7', '1M')
    """
    for scale, letter in _SCALES:
        if value >= 0.9995 * scale:
            return f"{_format_digits(value / scale)}{billion if letter == 'G' else letter}"
    return _format_digits(value)


def format_duration(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any.

    >>> format_duration(75), format_duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_kilograms(kilograms: float) -> str:
    """
    >>> format_kilograms(0.0123), format_kilograms(4.5), format_kilograms(2e-6)
    ('12.3 g', '4.5 kg', '0.002 g')
    """
    return f"{_format_digits(kilograms)} kg" if kilograms >= 1 else f"{_format_digits(1000 * kilograms)} g"


def format_energy(kwh: float) -> str:
    """
    >>> format_energy(0.0123), format_energy(4.5), format_energy(1e-8)
    ('12.3 Wh', '4.5 kWh', '<0.001 Wh')
    """
    return f"{_format_digits(kwh)} kWh" if kwh >= 1 else f"{_format_digits(1000 * kwh)} Wh"


def format_dollars(value: float) -> str:
    """
    >>> format_dollars(0.00012), format_dollars(1.5), format_dollars(1234.5), format_dollars(0)
    ('<$0.01', '$1.50', '$1,234.50', '$0.00')
    """
    return "<$0.01" if 0 < value < 0.01 else f"${value:,.2f}"


def align_pairs(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"  {name:<{width}}  {value}"


def align_columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A table, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([f"  {first:<{widths[0]}}", *cells])


def _format_digits(value: float) -> str:
    """Three digits, without an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}"
