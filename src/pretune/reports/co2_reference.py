"""What emits how much: published figures (`familiar.json`) to hold a run's CO2e against."""

from dataclasses import dataclass
from pathlib import Path

from pretune.core import io
from pretune.core.errors import DataError

METRE = 0.25 / 1000
"""Kilograms of a car's metre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Familiar:
    """Something that emits, in kg of CO2e, and who says so."""

    name: str
    kilograms: float
    source: str


def familiar() -> tuple[Familiar, ...]:
    """All of them, the smallest first."""
    found = io.read_json(Path(__file__).with_name("familiar.json"), DataError)
    return tuple(Familiar(**one) for one in found["things"])


def driven(kilograms: float) -> str:
    """How far a car goes for as much.

    >>> driven(0.0005), driven(2.5), driven(1e-6)
    ('2 m', '10 km', '0.4 cm')
    """
    metres = kilograms / METRE
    if metres < 1:
        return f"{100 * metres:.2g} cm"
    return f"{metres:.3g} m" if metres < 999.5 else f"{metres / 1000:,.3g} km"
