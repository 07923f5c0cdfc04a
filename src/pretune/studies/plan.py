"""Plan of a study: its steps, its cells, and which step gives which number of the table.

A step is one call of a public function with typed options: train a tokenizer, prepare data, pre-train, fine-tune … Its
key is a hash of the options, of the files that they name and of the keys of the steps whose outputs it reads. Cells
that have a step in common share it, and a finished step is never run again.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pretune.core.api import Options, option_set
from pretune.core.config import to_dict
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.models.spec import Model
from pretune.reports.study_record import StudyRequest
from pretune.runs.options import PrepareOptions, PretrainOptions, TokenizerOptions, VectorsOptions
from pretune.runs.task_options import EmbeddingOptions, EvaluateOptions, FinetuneOptions
from pretune.studies.inputs import InputFile, StudyInputs, find_spec
from pretune.studies.settings import format_setting
from pretune.studies.spec import Direction, Measure, RateFactors, Row, Scale, Settings, Study

FORMAT = 1
"""Version of the steps; another one makes all keys new."""
KEY_LENGTH = 16
STEP_PREFIX = "step:"
"""Beginning of an option that is the output of another step; its key follows."""
MAX_STEPS = 5000
"""Larger plans are rejected as a mistake in a grid."""
LABELLED_ACTIONS = ("pretrain", "finetune", "embeddings", "baseline", "evaluate")
"""Steps whose label names the first row that needs them."""


@option_set
class ChoiceOptions(Options):
    """Options of the choice of a learning rate among tries: the score on validation data."""

    score: str
    better: Direction


@option_set
class BaselineOptions(FinetuneOptions):
    """Options of a baseline: those of a fine-tuning that name its task, the baseline and the seed."""


@dataclass(frozen=True, slots=True)
class Action:
    """Kind of step: its name, that of several, and the options that name files, with what they hold."""

    name: str
    plural: str
    inputs: Mapping[str, str] = field(default_factory=dict)


TABLES = {"task": "task", "train": "table", "dev": "table", "test": "table"}
ACTIONS: Mapping[type[Options], Action] = {
    TokenizerOptions: Action("tokenizer", "tokenizers", {"inputs": "corpus"}),
    PrepareOptions: Action("data", "prepared corpora", {"inputs": "corpus", "tokenizer": "model", "valid": "corpus"}),
    PretrainOptions: Action("pretrain", "pre-trainings", {"data": "data", "init_from": "model", "teacher": "model"}),
    VectorsOptions: Action("vectors", "static vectors", {"inputs": "corpus"}),
    ChoiceOptions: Action("choose", "choices of a learning rate"),
    FinetuneOptions: Action("finetune", "fine-tunings", {"model": "model", **TABLES, "teacher": "model"}),
    EmbeddingOptions: Action("embeddings", "trainings of embeddings", {"model": "model", **TABLES}),
    BaselineOptions: Action("baseline", "baselines", {**TABLES, "vectors": "model"}),
    EvaluateOptions: Action(
        "evaluate", "evaluations", {"model": "model", "task": "task", "text": "corpus", "data": "file"}
    ),
}


def list_inputs(options: Options) -> dict[str, tuple[str, ...]]:
    """Return what the options of a step name: files, and outputs of other steps."""
    values = {name: getattr(options, name, None) for name in ACTIONS[type(options)].inputs}
    return {
        name: (str(value),) if isinstance(value, str | os.PathLike) else tuple(map(str, value))
        for name, value in values.items()
        if value
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
    """One call of a public function."""

    options: Options
    choices: tuple[str, ...] = ()  # keys of the steps whose records it reads: tries, or the choice of its learning rate
    files: tuple[InputFile, ...] = ()
    rate_factor: float | None = None  # of a try: relative to the default learning rate
    label: str = field(default="", compare=False)
    estimate: StepEstimate = field(default=StepEstimate(), compare=False)
    model: Model | None = field(default=None, compare=False, repr=False)  # spec of the model that it gives, if known
    key: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps([FORMAT, self.action, self.describe()], sort_keys=True, allow_nan=False)
        object.__setattr__(self, "key", hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH])

    @property
    def action(self) -> str:
        """Name of the kind of step."""
        return ACTIONS[type(self.options)].name

    @property
    def name(self) -> str:
        """Name of the directory of the step."""
        return f"{self.action}-{self.key}"

    @property
    def file_inputs(self) -> tuple[str, ...]:
        """Keys of the steps whose files it reads; a choice, and a chosen learning rate, need only records."""
        names = [name for names in list_inputs(self.options).values() for name in names]
        return tuple(name.removeprefix(STEP_PREFIX) for name in names if name.startswith(STEP_PREFIX))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Keys of the steps that it needs."""
        return tuple(dict.fromkeys((*self.file_inputs, *self.choices)))

    def describe(self) -> dict[str, object]:
        """Return what defines the step, as plain data."""
        files = [asdict(file) for file in self.files]
        choices = {"choices": [*self.choices], "rate_factor": self.rate_factor}
        return {"options": self.options.list_changes(), "files": files, **choices}


class StepCollector:
    """Steps of a study so far, inputs first; equal steps are one. A model is `step:KEY`, or a path of weights."""

    def __init__(self, inputs: StudyInputs) -> None:
        self.inputs = inputs
        self.steps: dict[str, Step] = {}
        self.row_name = ""  # of the row that is planned, for labels

    def identify_files(self, options: Options) -> tuple[InputFile, ...]:
        """Return the files that options name; those that are missing are noted."""
        nouns = ACTIONS[type(options)].inputs
        names = [(nouns[option], name) for option, names in list_inputs(options).items() for name in names]
        return tuple(
            file
            for noun, name in names
            if not name.startswith(STEP_PREFIX)
            for file in self.inputs.identify(name, noun)
        )

    def add(self, step: Step) -> str:
        """Add a step unless there is an equal one, and return `step:KEY`."""
        step = replace(step, files=self.identify_files(step.options))
        if step.key not in self.steps:
            label = f"{self.row_name}: {step.label}" if step.action in LABELLED_ACTIONS else step.label
            self.steps[step.key] = replace(step, label=label)
            if len(self.steps) > MAX_STEPS:
                raise UsageError(f"more than {format_count(MAX_STEPS, 'steps')}; use a smaller grid or fewer seeds")
        return f"{STEP_PREFIX}{step.key}"

    def tune(self, first: Step, step: Step, factors: Sequence[float], choice: Step) -> str:
        """Add a training; with several learning rates, the tries with the first seed and the choice among them."""
        if len(factors) < 2:
            return self.add(step)
        tries = [
            self.add(replace(first, rate_factor=factor, label=f"{first.label}, {factor:g} x learning rate"))
            for factor in factors
        ]
        keys = tuple(name.removeprefix(STEP_PREFIX) for name in tries)
        name = self.add(replace(choice, choices=keys, model=first.model))
        return name if step == first else self.add(replace(step, choices=(name.removeprefix(STEP_PREFIX),)))

    def find_spec(self, model: str) -> Model | None:
        """Return the spec of a planned or existing model."""
        if model.startswith(STEP_PREFIX):
            return self.steps[model.removeprefix(STEP_PREFIX)].model
        return find_spec(model, self.inputs.data)


def collect_inputs(steps: Mapping[str, Step], keys: Sequence[str]) -> list[str]:
    """Return these steps and all that they need, inputs first."""
    needed_keys = set(keys)
    for key in reversed([*steps]):
        if key in needed_keys:
            needed_keys.update(steps[key].inputs)
    return [key for key in steps if key in needed_keys]


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
        return Counter(step.action for step in self.steps.values())

    def describe_inputs(self) -> StudyRequest:
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

    def to_dict(self) -> dict[str, object]:
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
