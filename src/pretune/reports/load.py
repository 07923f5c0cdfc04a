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
from pretune.core.errors import CheckpointError, DataError, UsageError, nearest_file
from pretune.core.io.strict_json import LIMIT
from pretune.data.prepare.prepared_data import CardFile
from pretune.training.metrics_log import NAME as METRICS
from pretune.training.metrics_log import read_metrics
from pretune.training.records import CostFile, PredictionLine, ResultsFile, ScoresFile, Tree, Trial

Facts = Mapping[str, Any]
RUN, COST, SCORES, TRIAL = "run.json", "cost.json", "scores.json", "trial.json"
PREDICTIONS, RESULTS, CARD = "predictions.jsonl", "results.json", "card.json"
LEARNT = ("objective.kind", "data.max_length", "train.lr", "train.seed", "train.optimizer.kind", "train.schedule.kind")
TUNED = ("base.path", "method.kind", "train.batch")
"""Settings in run.json that the page asks of pre-training, and of fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run, finished or not."""

    path: Path
    tree: Facts  # run.json
    cost: Facts | None = None
    summary: Facts = field(default_factory=dict)  # what the run said at its end
    lines: Sequence[Facts] = ()  # metrics.jsonl, or that of the first trial
    scores: Facts | None = None  # of fine-tuning
    said: Sequence[Facts] = ()
    card: Facts | None = None  # of the data

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.resolve().name

    @property
    def tuned(self) -> bool:
        """Whether it fine-tuned a model."""
        return "base" in self.tree

    @property
    def learnt(self) -> str:
        """The task that it learnt, or the table of one's own."""
        return self._task("train")

    @property
    def judged(self) -> str:
        """The task that its score is of, or the table of one's own: that of its split, or the one that was divided."""
        return self._task(str((self.scores or {})["result"]["split"]), "train")

    def _task(self, *splits: str) -> str:
        asked = self.tree.get("task")
        mine = asked if isinstance(asked, Mapping) and not asked.get("name") else {}
        return next((str(mine[split]) for split in splits if mine.get(split)), str((self.scores or {}).get("task")))

    @property
    def pretrained(self) -> bool:
        """Whether it pre-trained one."""
        return "model" in self.tree and "objective" in self.tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A comparison: rows of results.json, and what is told with them."""

    path: Path
    rows: Sequence[Facts]
    about: Facts = field(default_factory=dict)
    card: Facts | None = None
    others: Mapping[Path, Facts] = field(default_factory=dict)  # cost.json of runs in the folder that it does not name

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.resolve().name


def gather(path: str | os.PathLike[str]) -> list[Ran | Results]:
    """What lies in a directory: a run, or results, and behind these the runs that they name."""
    where = Path(path)
    if not where.is_dir():
        given = "; give that of a run"
        what = f"not a directory{given}" if where.exists() else f"no such directory{nearest_file(where) or given}"
        raise UsageError(f"{where}: {what}")
    found: list[Ran | Results] = []
    if (where / RESULTS).is_file():
        results = read_results(where)
        found.append(results)
        found += [read_run(run) for run in _named(where, results.about.get("runs", ()))]
    if (where / RUN).is_file():
        found.append(read_run(where))
    if not found:
        raise UsageError(f"{where}: no {RUN} and no {RESULTS} in it; give a run of `pretune pretrain` or `finetune`")
    return found


def read_run(where: Path) -> Ran:
    """A run from its files; those that are damaged are errors, those that are missing are not."""
    tree = read_record(Tree, where / RUN, CheckpointError)
    tuned = "base" in tree
    _whole(tree, TUNED if tuned else LEARNT if "objective" in tree else (), where / RUN)
    cost = read_record(CostFile, where / COST, CheckpointError) if (where / COST).is_file() else None
    summary: Facts = {} if cost is None else cost.get("run", {})
    scored = tuned and (where / SCORES).is_file()
    scores = read_record(ScoresFile, where / SCORES, CheckpointError) if scored else None
    said = (where / PREDICTIONS).is_file()
    journal = _journal(where, scores)
    return Ran(
        path=where,
        tree=tree,
        cost=cost,
        summary=summary,
        lines=read_metrics(journal) if journal else (),
        scores=scores,
        said=read_records(PredictionLine, where / PREDICTIONS, CheckpointError) if said else (),
        card=_card(where, str((tree.get("data") or {}).get("path") or "")),
    )


def _whole(tree: Facts, paths: Sequence[str], file: Path) -> None:
    """Refuse a file that lacks what is asked of it."""
    for path in paths:
        found: Any = tree
        for name in path.split("."):
            if not isinstance(found, Mapping) or name not in found:
                raise CheckpointError(f"{file}: has no '{path}'; it is damaged or not ours: leave this run out")
            found = found[name]


def _journal(where: Path, scores: Facts | None) -> Path | None:
    """Where the run's metrics are: its own, or those of the trial whose model it has, or else of its first trial."""
    found = [folder for folder in (where, *sorted(where.glob("trials/*"))) if (folder / METRICS).is_file()]
    kept = {name: (scores or {}).get("model", {}).get(name) for name in ("lr", "seed", "labels")}
    for folder in found:
        if folder != where and (folder / TRIAL).is_file():
            trial: Facts = read_record(Trial, folder / TRIAL, CheckpointError)
            if all(trial.get(name) == value for name, value in kept.items()):
                return folder
    return next(iter(found), None)


def read_results(where: Path) -> Results:
    """The rows of results.json, checked."""
    path = where / RESULTS
    try:
        text = io.read_bounded(path, DataError, LIMIT).decode()
    except UnicodeDecodeError as fault:
        raise DataError(f"{path}: not UTF-8 at byte {fault.start}") from None
    data = io.parse_json(text, DataError, str(path))
    about = check_record(ResultsFile, data if isinstance(data, dict) else {"rows": data}, DataError, str(path))
    rows = about["rows"]
    if not rows:
        raise DataError(f"{path}: no rows; a list of objects with method, labels, mean and seeds is needed")
    runs = _named(where, about.get("runs", []))
    card = _card(where, str(about["data"])) if about.get("data") else None
    return Results(
        path=where,
        rows=rows,
        about={key: value for key, value in about.items() if key != "rows"},
        card=card,
        others=dict(_others(where, runs)),
    )


def _others(where: Path, named: Sequence[Path]) -> Iterator[tuple[Path, Facts]]:
    """What runs cost that lie in a folder, or in a folder of it, and are not among those that are named."""
    shown = {path.resolve() for path in named}
    for file in sorted([*where.glob(f"*/{COST}"), *where.glob(f"*/*/{COST}")]):
        if file.parent.resolve() not in shown and (file.parent / RUN).is_file():
            yield file.parent.resolve(), read_record(CostFile, file, CheckpointError)


def _named(where: Path, names: Sequence[str]) -> list[Path]:
    """The directories of runs that results name."""
    return [io.resolve_inside(where, name, DataError, where / RESULTS, nested=True) for name in names]


def _card(where: Path, named: str) -> CardFile | None:
    """The data card; a relative path is that of where the run was started, perhaps above its directory."""
    if not named:
        return None
    for folder in (Path(), where, *where.resolve().parents[:3]):
        if (folder / named / CARD).is_file():
            return read_record(CardFile, folder / named / CARD, DataError)
    return None
