"""Numbers as people read them."""

from collections.abc import Iterator

_LARGE = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

TRAINING_TIME = "training time"
"""The wall-clock time of the training loop, with its evaluations and saves, without start-up and the last files."""
SPAN = "of the training time"
"""The span that energy, CO2e and price cover, as terminal, model card and report have it."""


def amount(value: float, *, billion: str = "B") -> str:
    """Three digits and a letter: 812k, 3.3B; of units, whose letters are G, T and P: `billion="G"`.

    >>> amount(812_345), amount(3.3e9), amount(7), amount(999_960)
    ('812k', '3.3B', '7', '1M')
    """
    for scale, letter in _LARGE:
        if value >= 0.9995 * scale:
            return f"{_three(value / scale)}{billion if letter == 'G' else letter}"
    return _three(value)


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def weight(kilograms: float) -> str:
    """
    >>> weight(0.0123), weight(4.5), weight(2e-6)
    ('12.3 g', '4.5 kg', '0.002 g')
    """
    return f"{_three(kilograms)} kg" if kilograms >= 1 else f"{_three(1000 * kilograms)} g"


def energy(kwh: float) -> str:
    """
    >>> energy(0.0123), energy(4.5), energy(1e-8)
    ('12.3 Wh', '4.5 kWh', '<0.001 Wh')
    """
    return f"{_three(kwh)} kWh" if kwh >= 1 else f"{_three(1000 * kwh)} Wh"


def dollars(value: float) -> str:
    """
    >>> dollars(0.00012), dollars(1.5), dollars(1234.5), dollars(0)
    ('<$0.01', '$1.50', '$1,234.50', '$0.00')
    """
    return "<$0.01" if 0 < value < 0.01 else f"${value:,.2f}"


def aligned(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"  {name:<{width}}  {value}"


def columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A table, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([f"  {first:<{widths[0]}}", *cells])


def _three(value: float) -> str:
    """Three digits, without an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}"
