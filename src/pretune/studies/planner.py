"""Planning: the rows, seeds and measures of a study become steps that share what they have in common.

Everything that can be wrong is found here, before anything is computed: names, paths, budgets, and missing data.
"""

import os
from collections.abc import Mapping

from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.studies.plan import Cell, Plan, Reading
from pretune.studies.spec import (
    AverageScore,
    CostValue,
    FinetunedScore,
    Measure,
    Quantity,
    Row,
    Settings,
    Study,
    TaskScore,
    TextScore,
    ValidationScore,
)
from pretune.studies.task_steps import TaskSteps


def plan_study(
    study: Study,
    scale: str = "class",
    *,
    device: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    overrides: Settings = (),
) -> Plan:
    """Return the plan of a study at a scale.

    `device` is "cpu" or "cuda", for defaults and estimates. `data` is the directory of task data, by default
    $PRETUNE_DATA. `seeds` replaces the number of seeds; `overrides` go before all settings of the study.
    """
    return Planner(study, scale, device=device, data=data, seeds=seeds, overrides=overrides).plan()


class Planner(TaskSteps):
    """Builds the plan of a study: the readings of every cell, and the steps behind them."""

    def plan(self) -> Plan:
        """Return the plan."""
        rows, measures = self.study.list_rows(self.scale), self.study.list_measures(self.scale)
        if not rows or not measures:
            raise UsageError(f"study '{self.study.name}', scale '{self.scale_name}': no rows or no measures are left")
        cells = tuple(self._plan_cell(row, seed, measures) for row in rows for seed in self.seeds)
        used_names = [name for name in ("tokens", "flops", "seconds", "parameters") if getattr(self.budget, name)]
        return Plan(
            study=self.study,
            scale_name=self.scale_name,
            device=self.estimator.device.name,
            rows=tuple(rows),
            measures=tuple(measures),
            seeds=self.seeds,
            steps=self.steps,
            cells=cells,
            missing=tuple(self.missing),
            budget={name: getattr(self.budget, name) for name in used_names},
            overrides=self.overrides,
        )

    def _plan_cell(self, row: Row, seed: int, measures: list[Measure]) -> Cell:
        self.row_name = row.name
        readings: dict[str, Reading] = {}
        costs = []
        for measure in measures:
            place = f"study '{self.study.name}', row '{row.name}', measure '{measure.name}'"
            try:
                match measure.quantity:
                    case AverageScore():
                        continue  # of the other numbers
                    case CostValue() as cost:
                        costs.append((measure, cost))
                    case quantity:
                        settings = self.merge_row(row.name, measure)
                        if (reading := self._plan_measure(quantity, settings, seed, measure)) is not None:
                            readings[measure.name] = reading
            except (UsageError, DataError, CheckpointError) as fault:
                raise type(fault)(f"{place}: {fault}") from None
        for measure, cost in costs:
            if (reading := self._plan_cost(row, seed, measure, cost, readings)) is not None:
                readings[measure.name] = reading
        return Cell(row=row.name, seed=seed, readings=readings)

    def _plan_measure(
        self, quantity: Quantity, settings: Mapping[str, str], seed: int, measure: Measure
    ) -> Reading | None:
        """Return the reading of one measure; None where a row has none, such as the loss of a baseline."""
        if "baseline" in settings:
            if not isinstance(quantity, FinetunedScore) or not self.has_baseline(settings, quantity):
                return None
            return Reading(step=self.add_baseline(settings, seed, quantity), score=quantity.score)
        match quantity:
            case ValidationScore(score=score):
                if "model" not in settings or "base" in settings:
                    return None
                return Reading(step=self.add_pretrain(settings, seed, measure.share), score=score)
            case TextScore(text=text, score=score):
                model = self.add_model(settings, seed, measure.share)
                return Reading(step=self.add_evaluation(settings, seed, model, text=text), score=score)
            case TaskScore(task=task, shots=shots, score=score, model="pretrained"):
                model = self.add_model(settings, seed, measure.share)
                return Reading(step=self.add_evaluation(settings, seed, model, task=task, shots=shots), score=score)
            case TaskScore(task=task, score=score):
                model = self.add_embeddings(settings, seed, measure.share)
                return Reading(step=self.add_evaluation(settings, seed, model, task=task), score=score)
            case FinetunedScore(score=score):
                return Reading(step=self.add_finetune(settings, seed, quantity, measure.share), score=score)
        raise TypeError(f"unexpected quantity {quantity!r}")

    def _plan_cost(
        self, row: Row, seed: int, measure: Measure, cost: CostValue, readings: Mapping[str, Reading]
    ) -> Reading | None:
        if cost.measure is not None:
            if cost.measure not in readings:
                return None
            key = readings[cost.measure].step
        else:
            settings = self.merge_row(row.name, measure)
            if "model" not in settings or "base" in settings or "baseline" in settings:
                return None
            key = self.add_pretrain(settings, seed, measure.share)
        steps = self.collect_inputs(key) if cost.total else [key]
        return Reading(step=key, amount=cost.amount, steps=tuple(steps))
