"""Evaluation: perplexity, minimal pairs, few-shot prompting, retrieval, similarity and baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from pretune.core.api import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult(Result):
    """Result of one task. Scores are fractions (1 is perfect), except perplexities and bits."""

    task: str
    scores: Mapping[str, float]
    split: str | None = None
    shots: int | None = None
    groups: Mapping[str, float] = field(default_factory=dict)  # the headline score by group
    counts: Mapping[str, int] = field(default_factory=dict)  # examples, ties, truncated texts
    notes: tuple[str, ...] = ()
    prompt: str | None = None  # one rendered example, if requested
    seconds: float = 0.0

    @property
    def headline(self) -> tuple[str, float]:
        """Name and value of the headline score."""
        return next(iter(self.scores.items()))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict without empty fields."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {}, ()) or name == "scores"}


class Truncation(NamedTuple):
    """Dropped shots of each example, and the number of texts too long even without shots."""

    dropped_shots: Sequence[int]
    truncated_texts: int
