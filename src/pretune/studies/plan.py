"""Plan of a study: content-addressed steps, and which step gives which number of the table.

A step is one call: train a tokenizer, prepare data, pre-train, fine-tune, evaluate … Its key is a hash of its
arguments, in which other steps stand as `step:KEY`, so cells that have a step in common share it, and a finished step
is never run again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pretune.core.config import to_dict
from pretune.studies.spec import Measure, RateFactors, Row, Scale, Settings, Study

FORMAT = 1
"""Version of the steps; another one makes all keys new."""
STEP_PREFIX = "step:"
KEY_LENGTH = 16
StepAction = Literal[
    "tokenizer", "data", "pretrain", "vectors", "choose", "finetune", "embeddings", "baseline", "evaluate"
]
STEP_NOUNS: Mapping[str, str] = {
    "tokenizer": "tokenizers",
    "data": "prepared corpora",
    "pretrain": "pre-trainings",
    "vectors": "static vectors",
    "choose": "choices of a learning rate",
    "finetune": "fine-tunings",
    "embeddings": "trainings of embeddings",
    "baseline": "baselines",
    "evaluate": "evaluations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Estimated cost of a step on the planned device."""

    flops: float = 0.0
    seconds: float = 0.0
    memory: int = 0  # bytes on the device
    parameters: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call with its arguments, which are plain data."""

    key: str
    action: StepAction
    label: str
    arguments: Mapping[str, Any]
    inputs: tuple[str, ...] = ()  # keys of the steps that it needs
    estimate: StepEstimate = StepEstimate()

    @property
    def name(self) -> str:
        """Name of the directory of the step."""
        return f"{self.action}-{self.key}"

    @property
    def file_inputs(self) -> tuple[str, ...]:
        """Keys of the steps whose files it reads; a choice, and a chosen learning rate, need only records."""
        if self.action == "choose":
            return ()
        return tuple(list_inputs({name: value for name, value in self.arguments.items() if name != "rate_from"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Source of a number of the table: a score of a step, or an amount of the cost of steps."""

    step: str  # key
    score: str | None = None  # None: the headline score
    amount: str | None = None  # of the cost; None: a score
    steps: tuple[str, ...] = ()  # whose amounts are summed

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all steps that the number needs."""
        return tuple(dict.fromkeys((self.step, *self.steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row with one seed: its readings by measure."""

    row: str
    seed: int
    readings: Mapping[str, Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps and cells of a study at a scale."""

    study: Study
    source: str = ""  # name or file of the study, as typed
    scale_name: str
    device: str
    rows: tuple[Row, ...]
    measures: tuple[Measure, ...]
    seeds: tuple[int, ...]
    steps: Mapping[str, Step]  # by key, inputs first
    cells: tuple[Cell, ...]
    missing: tuple[str, ...] = ()  # data sets that are not there, with where they go
    budget: Mapping[str, Any] = field(default_factory=dict)
    overrides: Settings = ()  # of all rows, as in `--set`

    @property
    def scale(self) -> Scale:
        """The scale of the plan."""
        return self.study.get_scale(self.scale_name)

    @property
    def reference(self) -> str:
        """Row that the others are compared with."""
        names = [row.name for row in self.rows]
        return self.study.reference if self.study.reference in names else names[0]

    @property
    def rates(self) -> RateFactors:
        """Learning rates that are tried, relative to the defaults."""
        return self.scale.rates or self.study.rates

    @property
    def tuned_actions(self) -> list[str]:
        """The actions that try several learning rates in every cell: pretrain, finetune, both or none."""
        actions = self.count_actions()
        factors = {"pretrain": self.rates.pretrain, "finetune": self.rates.finetune}
        return [action for action, rates in factors.items() if action in actions and len(rates) > 1]

    @property
    def is_tuned(self) -> bool:
        """True if every cell tries several learning rates wherever it trains."""
        return {"pretrain", "finetune"} & self.count_actions().keys() <= {*self.tuned_actions}

    def collect_inputs(self, keys: Sequence[str]) -> list[str]:
        """Return these steps and all that they need, inputs first."""
        needed_keys = set(keys)
        for key in reversed([*self.steps]):
            if key in needed_keys:
                needed_keys.update(self.steps[key].inputs)
        return [key for key in self.steps if key in needed_keys]

    def sum_estimates(self) -> StepEstimate:
        """Return the cost of all steps, one after the other; the memory is that of the largest."""
        estimates = [step.estimate for step in self.steps.values()]
        return StepEstimate(
            flops=sum(estimate.flops for estimate in estimates),
            seconds=sum(estimate.seconds for estimate in estimates),
            memory=max((estimate.memory for estimate in estimates), default=0),
            tokens=sum(estimate.tokens for estimate in estimates),
        )

    def count_actions(self) -> dict[str, int]:
        """Return the number of steps of each action."""
        counts: dict[str, int] = {}
        for step in self.steps.values():
            counts[step.action] = counts.get(step.action, 0) + 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, as plan.json stores it."""
        return {
            "format": FORMAT,
            "study": to_dict(self.study),
            "scale": self.scale_name,
            "device": self.device,
            "seeds": [*self.seeds],
            "budget": dict(self.budget),
            "overrides": {setting.path: setting.value for setting in self.overrides},
            "rows": [row.name for row in self.rows],
            "measures": [measure.name for measure in self.measures],
            "steps": [
                {
                    "key": step.key,
                    "action": step.action,
                    "label": step.label,
                    "arguments": step.arguments,
                    "inputs": [*step.inputs],
                    "estimate": asdict(step.estimate),
                }
                for step in self.steps.values()
            ],
            "cells": [
                {
                    "row": cell.row,
                    "seed": cell.seed,
                    "readings": {name: asdict(reading) for name, reading in cell.readings.items()},
                }
                for cell in self.cells
            ],
            "missing": [*self.missing],
            "estimate": asdict(self.sum_estimates()),
        }


def compute_key(action: str, arguments: Mapping[str, Any]) -> str:
    """Return the key of a step: equal only for equal actions and arguments."""
    text = json.dumps([FORMAT, action, arguments], sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def list_inputs(value: Any) -> Iterator[str]:
    """Yield the keys of the steps in arguments."""
    if isinstance(value, str) and value.startswith(STEP_PREFIX):
        yield value.removeprefix(STEP_PREFIX)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from list_inputs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from list_inputs(item)
