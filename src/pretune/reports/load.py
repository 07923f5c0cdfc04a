"""What a report reads: directories of runs, and folders with results.json. Only files are read, no model is loaded.

    gather("runs/sst2")         # a Ran: run.json, metrics.jsonl, cost.json, scores.json, predictions.jsonl, data card
    gather("runs/quickstart")   # a Results: rows of method, labels, mean and seeds; and the runs they came from

A run that is at work or was killed has no cost.json yet: what there is of it is shown.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.config import check_record, read_record, read_records
from pretune.core.errors import CheckpointError, DataError, UsageError, suggest_file
from pretune.core.io.strict_json import MAX_BYTES
from pretune.data.prepare.prepared_data import CardFile
from pretune.training.metrics_log import METRICS_FILE as METRICS
from pretune.training.metrics_log import read_metrics
from pretune.training.records import CostFile, PredictionLine, ResultsFile, RunFile, ScoresFile, TrialRecord

Facts = Mapping[str, Any]
RUN, COST, SCORES, TRIAL = "run.json", "cost.json", "scores.json", "trial.json"
PREDICTIONS, RESULTS, CARD = "predictions.jsonl", "results.json", "card.json"
PRETRAINING_SETTINGS = (
    "objective.kind",
    "data.max_length",
    "train.lr",
    "train.seed",
    "train.optimizer.kind",
    "train.schedule.kind",
)
FINETUNING_SETTINGS = ("base.path", "method.kind", "train.batch")
"""Settings in run.json that the page asks of pre-training, and of fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, finished or not."""

    path: Path
    config: Facts  # run.json
    cost: Facts | None = None
    summary: Facts = field(default_factory=dict)  # what the run said at its end
    metrics: Sequence[Facts] = ()  # metrics.jsonl, or that of the first trial
    scores: Facts | None = None  # of fine-tuning
    predictions: Sequence[Facts] = ()
    card: Facts | None = None  # of the data

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.resolve().name

    @property
    def is_finetuned(self) -> bool:
        """Whether it fine-tuned a model."""
        return "base" in self.config

    @property
    def train_task(self) -> str:
        """The task that it learnt, or the table of one's own."""
        return self._find_task("train")

    @property
    def eval_task(self) -> str:
        """The task that its score is of, or the table of one's own: that of its split, or the one that was divided."""
        return self._find_task(str((self.scores or {})["result"]["split"]), "train")

    def _find_task(self, *splits: str) -> str:
        asked = self.config.get("task")
        mine = asked if isinstance(asked, Mapping) and not asked.get("name") else {}
        return next((str(mine[split]) for split in splits if mine.get(split)), str((self.scores or {}).get("task")))

    @property
    def is_pretrained(self) -> bool:
        """Whether it pre-trained one."""
        return "model" in self.config and "objective" in self.config


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResults:
    """A comparison: rows of results.json, and what is told with them."""

    path: Path
    rows: Sequence[Facts]
    metadata: Facts = field(default_factory=dict)
    card: Facts | None = None
    other_costs: Mapping[Path, Facts] = field(
        default_factory=dict
    )  # cost.json of runs in the folder that it does not name

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.resolve().name


def load_directory(path: str | os.PathLike[str]) -> list[RunRecord | ComparisonResults]:
    """What lies in a directory: a run, or results, and behind these the runs that they name."""
    where = Path(path)
    if not where.is_dir():
        given = "; give that of a run"
        what = f"not a directory{given}" if where.exists() else f"no such directory{suggest_file(where) or given}"
        raise UsageError(f"{where}: {what}")
    found: list[RunRecord | ComparisonResults] = []
    if (where / RESULTS).is_file():
        results = read_results(where)
        found.append(results)
        found += [read_run(run) for run in _resolve_runs(where, results.metadata.get("runs", ()))]
    if (where / RUN).is_file():
        found.append(read_run(where))
    if not found:
        raise UsageError(f"{where}: no {RUN} and no {RESULTS} in it; give a run of `pretune pretrain` or `finetune`")
    return found


def read_run(directory: Path) -> RunRecord:
    """A run from its files; those that are damaged are errors, those that are missing are not."""
    tree = read_record(RunFile, directory / RUN, CheckpointError)
    tuned = "base" in tree
    _check_settings(
        tree, FINETUNING_SETTINGS if tuned else PRETRAINING_SETTINGS if "objective" in tree else (), directory / RUN
    )
    cost = read_record(CostFile, directory / COST, CheckpointError) if (directory / COST).is_file() else None
    summary: Facts = {} if cost is None else cost.get("run", {})
    scored = tuned and (directory / SCORES).is_file()
    scores = read_record(ScoresFile, directory / SCORES, CheckpointError) if scored else None
    said = (directory / PREDICTIONS).is_file()
    journal = _find_metrics(directory, scores)
    return RunRecord(
        path=directory,
        config=tree,
        cost=cost,
        summary=summary,
        metrics=read_metrics(journal) if journal else (),
        scores=scores,
        predictions=read_records(PredictionLine, directory / PREDICTIONS, CheckpointError) if said else (),
        card=_read_card(directory, str((tree.get("data") or {}).get("path") or "")),
    )


def _check_settings(tree: Facts, paths: Sequence[str], file: Path) -> None:
    """Refuse a file that lacks what is asked of it."""
    for path in paths:
        found: Any = tree
        for name in path.split("."):
            if not isinstance(found, Mapping) or name not in found:
                raise CheckpointError(f"{file}: has no '{path}'; it is damaged or not ours: leave this run out")
            found = found[name]


def _find_metrics(directory: Path, scores: Facts | None) -> Path | None:
    """Where the run's metrics are: its own, or those of the trial whose model it has, or else of its first trial."""
    found = [folder for folder in (directory, *sorted(directory.glob("trials/*"))) if (folder / METRICS).is_file()]
    kept = {name: (scores or {}).get("model", {}).get(name) for name in ("lr", "seed", "labels")}
    for folder in found:
        if folder != directory and (folder / TRIAL).is_file():
            trial: Facts = read_record(TrialRecord, folder / TRIAL, CheckpointError)
            if all(trial.get(name) == value for name, value in kept.items()):
                return folder
    return next(iter(found), None)


def read_results(directory: Path) -> ComparisonResults:
    """The rows of results.json, checked."""
    path = directory / RESULTS
    try:
        text = io.read_bounded(path, DataError, MAX_BYTES).decode()
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}: not UTF-8 at byte {fault.start}") from None
    data = io.parse_json(text, DataError, str(path))
    about = check_record(ResultsFile, data if isinstance(data, dict) else {"rows": data}, DataError, str(path))
    rows = about["rows"]
    if not rows:
        raise DataError(f"{path}: no rows; a list of objects with method, labels, mean and seeds is needed")
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
    """What runs cost that lie in a folder, or in a folder of it, and are not among those that are named."""
    shown = {path.resolve() for path in runs}
    for file in sorted([*directory.glob(f"*/{COST}"), *directory.glob(f"*/*/{COST}")]):
        if file.parent.resolve() not in shown and (file.parent / RUN).is_file():
            yield file.parent.resolve(), read_record(CostFile, file, CheckpointError)


def _resolve_runs(directory: Path, names: Sequence[str]) -> list[Path]:
    """The directories of runs that results name."""
    return [io.resolve_inside(directory, name, DataError, directory / RESULTS, allow_nested=True) for name in names]


def _read_card(directory: Path, path: str) -> CardFile | None:
    """The data card; a relative path is that of where the run was started, perhaps above its directory."""
    if not path:
        return None
    for folder in (Path(), directory, *directory.resolve().parents[:3]):
        if (folder / path / CARD).is_file():
            return read_record(CardFile, folder / path / CARD, DataError)
    return None
