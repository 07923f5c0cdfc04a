"""Published CO2e figures (`co2_references.json`) to compare a run's emissions with."""

from dataclasses import dataclass
from pathlib import Path

from pretune.core import io
from pretune.core.errors import DataError

KILOGRAMS_PER_METRE = 0.25 / 1000
"""Emissions of a car."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionReference:
    """Published emission in kg of CO2e, with its source."""

    name: str
    kilograms: float
    source: str


def load_references() -> tuple[EmissionReference, ...]:
    """Load all references, smallest first."""
    table = io.read_json(Path(__file__).with_name("co2_references.json"), DataError)
    return tuple(EmissionReference(**entry) for entry in table["things"])


def format_distance(kilograms: float) -> str:
    """Format the distance a car drives for the same emissions.

    >>> format_distance(0.0005), format_distance(2.5), format_distance(1e-6)
    ('2 m', '10 km', '0.4 cm')
    """
    metres = kilograms / KILOGRAMS_PER_METRE
    if metres < 1:
        return f"{100 * metres:.2g} cm"
    return f"{metres:.3g} m" if metres < 999.5 else f"{metres / 1000:,.3g} km"
