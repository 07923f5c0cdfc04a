"""Plan of a study: its cells, and which step gives which number of the table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pretune.core.config import to_dict
from pretune.studies.settings import format_setting
from pretune.studies.spec import Measure, RateFactors, Row, Scale, Settings, Study
from pretune.studies.steps import FORMAT, Step, StepEstimate, collect_inputs


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
    budget: Mapping[str, float] = field(default_factory=dict)
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

    def list_steps(self, cells: Sequence[Cell]) -> list[str]:
        """Return the keys of all steps that cells need, inputs first."""
        keys = [key for cell in cells for reading in cell.readings.values() for key in reading.keys]
        return collect_inputs(self.steps, keys)

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

    def describe_inputs(self) -> dict[str, Any]:
        """Return the study and what it was asked for, as plan.json and study.json store it."""
        return {
            "format": FORMAT,
            "study": _format_settings(to_dict(self.study)),
            "scale": self.scale_name,
            "seeds": [*self.seeds],
            "budget": dict(self.budget),
            "overrides": {setting.path: format_setting(setting.value) for setting in self.overrides},
            "rows": [row.name for row in self.rows],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, as plan.json stores it."""
        return {
            **self.describe_inputs(),
            "device": self.device,
            "measures": [measure.name for measure in self.measures],
            "steps": [
                {
                    "key": step.key,
                    "action": step.action,
                    "label": step.label,
                    "arguments": step.describe(),
                    "inputs": [*step.inputs],
                    "estimate": asdict(step.estimate),
                }
                for step in self.steps.values()
            ],
            "cells": [asdict(cell) for cell in self.cells],
            "missing": [*self.missing],
            "estimate": asdict(self.sum_estimates()),
        }


def _format_settings(value: Any) -> Any:
    """Return plain data with the values of settings as text."""
    if isinstance(value, list):
        return [_format_settings(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"path", "value"}:
        return {"path": value["path"], "value": format_setting(value["value"])}
    return {name: _format_settings(item) for name, item in value.items()}
