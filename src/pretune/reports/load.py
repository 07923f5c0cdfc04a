"""Loading of run directories and of directories with results.json. Only files are read, no models.

    load_directory("runs/sst2")         # RunRecord: run.json, metrics.jsonl, cost.json, scores.json, …, data card
    load_directory("runs/quickstart")   # ComparisonResults: rows of method, labels, mean, seeds; and their runs

An unfinished run has no cost.json; its other files are shown.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from pretune.core import io
from pretune.core.config import Amount, Count, Number, PathText, check_record, read_record, read_records
from pretune.core.errors import CheckpointError, DataError, UsageError, suggest_file
from pretune.core.hub import resolve_short_name
from pretune.core.io.files import MAX_BYTES
from pretune.core.run_dir import RunDir
from pretune.data.prepared_data import CARD_FILE, CardFile
from pretune.reports.analysis import load_analyses
from pretune.reports.facts import Facts
from pretune.training.records import (
    CostFile,
    Difference,
    PredictionLine,
    RunFile,
    ScoresFile,
    TrialRecord,
    read_run_record,
)
from pretune.training.run_logger import read_metrics

PRETRAINING_SETTINGS = (
    "objective.kind",
    "data.max_length",
    "train.lr",
    "train.seed",
    "train.optimizer.kind",
    "train.schedule.kind",
)
FINETUNING_SETTINGS = ("base.path", "method.kind", "train.batch")
"""Required settings in run.json, of pre-training and of fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Files of one run, finished or not."""

    path: Path
    config: Facts  # run.json
    cost: Facts | None = None
    summary: Facts = field(default_factory=dict)  # of the run's end
    metrics: Sequence[Facts] = ()  # metrics.jsonl, or that of the first trial
    scores: Facts | None = None  # of fine-tuning
    predictions: Sequence[Facts] = ()
    card: Facts | None = None  # of the data
    analyses: Sequence[Facts] = ()  # of `pretune analyze`

    @property
    def name(self) -> str:
        """Name of the directory."""
        return io.real_path(self.path).name

    @property
    def is_finetuned(self) -> bool:
        """True for a fine-tuning run."""
        return "base" in self.config

    @property
    def train_task(self) -> str:
        """Training task, or the user's training table."""
        return self._find_task("train")

    @property
    def eval_task(self) -> str:
        """Task of the score, or the user's table: that of its split, else the one that was split."""
        return self._find_task(str((self.scores or {})["result"]["split"]), "train")

    def _find_task(self, *splits: str) -> str:
        task = self.config.get("task")
        user_table = task if isinstance(task, Mapping) and not task.get("name") else {}
        names = [str(user_table[split]) for split in splits if user_table.get(split)]
        return names[0] if names else str((self.scores or {}).get("task"))

    @property
    def is_pretrained(self) -> bool:
        """True for a pre-training run."""
        return "model" in self.config and "objective" in self.config


class MethodRow(TypedDict):
    """Mean score of a method over seeds, for one number of training examples."""

    method: str
    labels: Number
    mean: Number
    std: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]
    about: NotRequired[str | None]
    group: NotRequired[str | None]


class ResultsRow(MethodRow):
    """Row of results.json."""

    seeds: NotRequired[Count | list[int]]
    each: NotRequired[list[Number] | None]


class StageRecord(TypedDict, total=False):
    """Stage of a comparison."""

    name: str
    about: str
    seconds: Amount
    notes: list[str] | None


class ComparisonMetadata(TypedDict):
    """Runs, data and stages of a comparison."""

    runs: NotRequired[list[str]]
    data: NotRequired[PathText | None]
    stages: NotRequired[list[StageRecord] | None]
    examples: NotRequired[Count | None]


class ResultsFile(ComparisonMetadata):
    """results.json of a comparison."""

    rows: list[ResultsRow]


class RowDifference(Difference):
    """Difference between a row and the row of `method`."""

    method: str


class QuickstartRecord(MethodRow):
    """Row of the quick start's results.json."""

    seeds: list[int]
    each: list[Number]
    against: NotRequired[RowDifference]


class QuickstartFile(ComparisonMetadata):
    """results.json of the quick start."""

    rows: list[QuickstartRecord]
    title: str
    story: list[str]
    task: str
    metric: str
    split: str
    seconds: Amount
    command: str
    use: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResults:
    """Comparison: rows and metadata of results.json."""

    path: Path
    rows: Sequence[Facts]
    metadata: Facts = field(default_factory=dict)
    card: Facts | None = None
    other_costs: Mapping[Path, Facts] = field(default_factory=dict)  # of runs in the directory that are not listed

    @property
    def name(self) -> str:
        """Name of the directory."""
        return io.real_path(self.path).name

    def list_lines(self, name: str) -> list[str]:
        """Return the lines of a text of results.json, which may be a string or a list."""
        value = self.metadata.get(name)
        return [value] if isinstance(value, str) else [*map(str, value)] if isinstance(value, list) else []


def load_directory(path: str | os.PathLike[str]) -> list[RunRecord | ComparisonResults]:
    """Load a run, or results and then the runs they list."""
    directory = resolve_short_name(path)
    if not directory.is_dir():
        remedy = ("" if directory.exists() else suggest_file(directory)) or "; pass a run directory"
        raise UsageError(f"{directory}: {'not a' if directory.exists() else 'no such'} directory{remedy}")
    io.check_links(directory, CheckpointError)
    records: list[RunRecord | ComparisonResults] = []
    run_dir = RunDir(directory)
    if run_dir.results.is_file():
        results = read_results(directory)
        records.append(results)
        records += [read_run(run) for run in _resolve_runs(directory, results.metadata.get("runs", ()))]
    if run_dir.settings.is_file():
        records.append(read_run(directory))
    if not records:
        names = f"{run_dir.settings.name} or {run_dir.results.name}"
        raise UsageError(f"{directory}: no {names}; pass a run of `pretune pretrain` or `finetune`")
    return records


def read_run(directory: Path) -> RunRecord:
    """Load a run; damaged files raise, missing ones are allowed."""
    run_dir = RunDir(directory)
    tree = read_run_record(RunFile, run_dir.settings, CheckpointError)
    is_finetuned = "base" in tree
    settings = FINETUNING_SETTINGS if is_finetuned else PRETRAINING_SETTINGS if "objective" in tree else ()
    _check_settings(tree, settings, run_dir.settings)
    cost = read_record(CostFile, run_dir.cost, CheckpointError) if run_dir.is_finished else None
    summary: Facts = {} if cost is None else cost.get("run", {})
    has_scores = is_finetuned and run_dir.scores.is_file()
    scores = read_record(ScoresFile, run_dir.scores, CheckpointError) if has_scores else None
    has_predictions = run_dir.predictions.is_file()
    journal = _find_metrics(run_dir, scores)
    return RunRecord(
        path=directory,
        config=tree,
        cost=cost,
        summary=summary,
        metrics=read_metrics(journal.path) if journal else (),
        scores=scores,
        predictions=read_records(PredictionLine, run_dir.predictions, CheckpointError) if has_predictions else (),
        card=_read_card(directory, str((tree.get("data") or {}).get("path") or "")),
        analyses=load_analyses(directory),
    )


def _check_settings(tree: Facts, paths: Sequence[str], file: Path) -> None:
    """Raise if the file lacks a required setting."""
    for path in paths:
        node: Any = tree
        for name in path.split("."):
            if not isinstance(node, Mapping) or name not in node:
                raise CheckpointError(
                    f"{file}: missing '{path}'; the file is damaged or not from pretune: remove this run"
                )
            node = node[name]


def _find_metrics(run_dir: RunDir, scores: Facts | None) -> RunDir | None:
    """Return the directory of the metrics: the run, else the trial whose model was saved, else the first trial."""
    trials = [RunDir(folder) for folder in sorted(run_dir.trials.glob("*"))]
    directories = [directory for directory in (run_dir, *trials) if directory.metrics.is_file()]
    selection = {name: (scores or {}).get("model", {}).get(name) for name in ("lr", "seed", "labels")}
    for directory in directories:
        if directory is not run_dir and directory.trial.is_file():
            trial: Facts = read_record(TrialRecord, directory.trial, CheckpointError)
            if all(trial.get(name) == value for name, value in selection.items()):
                return directory
    return next(iter(directories), None)


def read_results(directory: Path) -> ComparisonResults:
    """Load and check results.json."""
    path = RunDir(directory).results
    data = io.parse_json(io.read_bounded(path, DataError, MAX_BYTES), DataError, str(path))
    about = check_record(ResultsFile, data if isinstance(data, dict) else {"rows": data}, DataError, str(path))
    rows = about["rows"]
    if not rows:
        raise DataError(f"{path}: no rows; expected objects with method, labels, mean and seeds")
    runs = _resolve_runs(directory, about.get("runs", []))
    card = _read_card(directory, str(about["data"])) if about.get("data") else None
    return ComparisonResults(
        path=directory,
        rows=rows,
        metadata={key: value for key, value in about.items() if key != "rows"},
        card=card,
        other_costs=dict(_read_other_costs(directory, runs)),
    )


def _read_other_costs(directory: Path, runs: Sequence[Path]) -> Iterator[tuple[Path, Facts]]:
    """Yield the costs of runs up to two levels below a directory that are not listed."""
    run_paths = {io.real_path(path) for path in runs}
    for folder in sorted([*directory.glob("*"), *directory.glob("*/*")]):
        run_dir = RunDir(folder)
        if io.real_path(folder) not in run_paths and run_dir.is_finished and run_dir.settings.is_file():
            yield io.real_path(folder), read_record(CostFile, run_dir.cost, CheckpointError)


def _resolve_runs(directory: Path, names: Sequence[str]) -> list[Path]:
    """Resolve the run directories that results list."""
    file = RunDir(directory).results
    return [io.resolve_inside(directory, name, DataError, file, allow_nested=True) for name in names]


def _read_card(directory: Path, path: str) -> CardFile | None:
    """Load the data card; a relative path starts at the working directory of the run, perhaps above its own."""
    if not path:
        return None
    for folder in (Path(), directory, *io.real_path(directory).parents[:3]):
        if (folder / path / CARD_FILE).is_file():
            return read_record(CardFile, folder / path / CARD_FILE, DataError)
    return None
