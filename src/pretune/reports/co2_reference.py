"""What emits how much: published figures (`load_references.json`) to hold a run's CO2e against."""

from dataclasses import dataclass
from pathlib import Path

from pretune.core import io
from pretune.core.errors import DataError

KILOGRAMS_PER_METRE = 0.25 / 1000
"""Kilograms of a car's metre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionReference:
    """Something that emits, in kg of CO2e, and who says so."""

    name: str
    kilograms: float
    source: str


def load_references() -> tuple[EmissionReference, ...]:
    """All of them, the smallest first."""
    found = io.read_json(Path(__file__).with_name("familiar.json"), DataError)
    return tuple(EmissionReference(**one) for one in found["things"])


def format_distance(kilograms: float) -> str:
    """How far a car goes for as much.

    >>> format_distance(0.0005), format_distance(2.5), format_distance(1e-6)
    ('2 m', '10 km', '0.4 cm')
    """
    metres = kilograms / KILOGRAMS_PER_METRE
    if metres < 1:
        return f"{100 * metres:.2g} cm"
    return f"{metres:.3g} m" if metres < 999.5 else f"{metres / 1000:,.3g} km"
