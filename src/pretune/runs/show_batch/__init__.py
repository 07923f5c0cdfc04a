"""What an objective does to a sentence, as a value: what `pretune show-batch` draws."""

from pretune.runs.show_batch.build import example
from pretune.runs.show_batch.types import Drawn, Example, Kind, Row, Side, Sight, Term

__all__ = ["Drawn", "Example", "Kind", "Row", "Side", "Sight", "Term", "example"]
