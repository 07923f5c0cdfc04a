"""What an objective does to a sentence, as a value: what `pretune show-batch` draws."""

from pretune.recipes.example.make import example
from pretune.recipes.example.values import Drawn, Example, Kind, Row, Side, Sight, Term

__all__ = ["Drawn", "Example", "Kind", "Row", "Side", "Sight", "Term", "example"]
