"""Where a run is: all that a checkpoint holds beside the weights and the optimiser."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_type_hints

from pretune.core import config
from pretune.core.errors import CheckpointError


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Counted over the whole run, whatever processes it took. Order, corruption and dropout follow from `step`."""

    step: int = 0  # the next to be taken
    tokens: int = 0  # read, filler left out
    elapsed: float = 0.0  # seconds of training, evaluation and saving
    skipped: int = 0  # steps whose gradient was not finite
    in_a_row: int = 0  # … without a good one since
    micro: int = 1  # micro-batches per rank and step
    least: int = 1  # … that memory was found to ask for
    phases: list[int] = field(default_factory=lambda: [0])  # the first step of each phase begun so far
    progress: list[float] = field(default_factory=list)  # of each step, where time decides it (`--budget`)
    planned: list[int] = field(default_factory=list)  # the steps after each phase, where it repeats such a run
    anchor: tuple[float, float] = (0.0, -1.0)  # progress at the phase's start, and the time; -1: not yet known
    lead: float = 0.0  # seconds that the first step of a phase took
    judged: int = -1  # the step of the last evaluation
    held: dict[str, float] = field(default_factory=dict)  # … and what it found
    best: float | None = None  # held-out loss
    best_step: int | None = None
    waited: float = 0.0  # seconds for data
    saving: float = 0.0  # … for checkpoints
    evaluating: float = 0.0
    written: int = 0  # bytes of metrics.jsonl
    meter: dict[str, Any] = field(default_factory=dict)  # what was counted of FLOPs and energy

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "TrainState":
        """From JSON; a CheckpointError names what is missing, unknown or of a wrong type."""
        names = {part.name for part in fields(cls)}
        for name in sorted(names ^ set(facts)):
            what = "misses" if name in names else "has the unknown entry"
            raise CheckpointError(f"the state of the run {what} '{name}'; it was written by another version")
        for name, annotation in get_type_hints(cls).items():
            config.check_record(annotation, facts[name], CheckpointError, f"'{name}' of the state of the run")
        return cls(**{**facts, "anchor": tuple(facts["anchor"])})
