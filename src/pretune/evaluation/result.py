"""What an evaluation gives: scores, the headline first, over how much, and what is to be said of them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One task. Scores are fractions (1 is perfect), but for perplexities and bits, which are what they are called."""

    task: str
    scores: Mapping[str, float]
    split: str | None = None
    shots: int | None = None
    groups: Mapping[str, float] = field(default_factory=dict)  # the headline by part of the task
    counts: Mapping[str, int] = field(default_factory=dict)  # examples, ties, what was cut
    notes: tuple[str, ...] = ()
    prompt: str | None = None  # one example as the model read it, where that was asked for
    seconds: float = 0.0

    @property
    def headline(self) -> tuple[str, float]:
        """The name and the value of the score it is judged by."""
        return next(iter(self.scores.items()))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {}, ()) or name == "scores"}
