"""Position of a run: everything a checkpoint holds besides the weights and the optimizer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_type_hints

from pretune.core import config
from pretune.core.errors import CheckpointError


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Counters over the whole run, across processes. Data order, corruption and dropout are functions of `step`."""

    step: int = 0  # the next step
    tokens: int = 0  # padding excluded
    elapsed_seconds: float = 0.0  # seconds of training, evaluation and saving
    skipped_steps: int = 0  # steps with a non-finite gradient
    consecutive_skips: int = 0  # consecutive skipped steps
    micro: int = 1  # micro-batches per rank and step
    min_micro: int = 1  # minimum of `micro` after running out of memory
    phases: list[int] = field(default_factory=lambda: [0])  # first step of each phase so far
    progress: list[float] = field(default_factory=list)  # of each step in a run with a time budget (`--budget`)
    planned_ends: list[int] = field(default_factory=list)  # end step of each phase, when repeating a run with a budget
    anchor: tuple[float, float] = (0.0, -1.0)  # progress and elapsed time at the start of the phase; -1: unknown
    lead: float = 0.0  # seconds of the first step of a phase
    last_eval_step: int = -1  # step of the last evaluation
    eval_metrics: dict[str, float] = field(default_factory=dict)  # metrics of the last evaluation
    best: float | None = None  # validation loss
    best_step: int | None = None
    data_wait: float = 0.0  # seconds waiting for data
    saving: float = 0.0  # seconds saving checkpoints
    evaluating: float = 0.0  # seconds evaluating
    metrics_bytes: int = 0  # bytes of metrics.jsonl
    meter: dict[str, Any] = field(default_factory=dict)  # totals of FLOPs and energy

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "TrainState":
        """Build from JSON values; raises a CheckpointError for a missing, unknown or mistyped entry."""
        names = {part.name for part in fields(cls)}
        for name in sorted(names ^ set(facts)):
            problem = "lacks" if name in names else "has unknown entry"
            raise CheckpointError(f"train state {problem} '{name}'; it was written by another version of pretune")
        for name, annotation in get_type_hints(cls).items():
            config.check_record(annotation, facts[name], CheckpointError, f"'{name}' of the train state")
        return cls(**{**facts, "anchor": tuple(facts["anchor"])})
