"""What a report reads: directories of runs, and folders with results.json. Only files are read, no model is loaded.

    gather("runs/sst2")         # a Ran: run.json, metrics.jsonl, cost.json, scores.json, predictions.jsonl, data card
    gather("runs/quickstart")   # a Results: rows of method, labels, mean and seeds; and the runs they came from

A run that is at work or was killed has no cost.json yet: what there is of it is shown.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.train.metrics import NAME as METRICS
from pretune.train.metrics import read_metrics

Facts = Mapping[str, Any]
RUN, COST, SCORES, PREDICTIONS, RESULTS, CARD = (
    "run.json", "cost.json", "scores.json", "predictions.jsonl", "results.json", "card.json",
)  # fmt: skip
JUDGED = ("task", "kind", "metric", "notes", "examples", "counts", "result", "model", "baselines", "not_run", "curve")
"""What scores.json of a fine-tuning run has."""


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

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.resolve().name


def gather(path: str | os.PathLike[str]) -> list[Ran | Results]:
    """What lies in a directory: a run, or results, and behind these the runs that they name."""
    where = Path(path)
    if not where.is_dir():
        raise UsageError(f"{where}: {'not a directory' if where.exists() else 'no such directory'}; give that of a run")
    found: list[Ran | Results] = []
    if (where / RESULTS).is_file():
        results = read_results(where)
        found.append(results)
        for name in results.about.get("runs", ()):
            found += gather(where / str(name))
    if (where / RUN).is_file():
        found.append(read_run(where))
    if not found:
        raise UsageError(f"{where}: no {RUN} and no {RESULTS} in it; give a run of `pretune pretrain` or `finetune`")
    return found


def read_run(where: Path) -> Ran:
    """A run from its files; those that are damaged are errors, those that are missing are not."""
    tree = io.read_json(where / RUN, CheckpointError)
    cost = io.read_json(where / COST, CheckpointError) if (where / COST).is_file() else None
    summary = (cost or {}).get("run")
    scores = io.read_json(where / SCORES, CheckpointError) if (where / SCORES).is_file() else None
    if scores is not None and "base" in tree:
        missing = [name for name in JUDGED if name not in scores]
        if missing:
            raise CheckpointError(f"{where / SCORES}: has no '{missing[0]}'; fine-tune again, or leave this run out")
    journal = next(
        (folder for folder in (where, *sorted(where.glob("trials/*"))) if (folder / METRICS).is_file()), None
    )
    return Ran(
        path=where,
        tree=tree,
        cost=cost,
        summary=summary if isinstance(summary, dict) else {},
        lines=read_metrics(journal) if journal else (),
        scores=scores if "base" in tree else None,
        said=_lines(where / PREDICTIONS),
        card=_card(where, str((tree.get("data") or {}).get("path") or "")),
    )


def read_results(where: Path) -> Results:
    """The rows of results.json, checked."""
    path = where / RESULTS
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{path}: cannot be read: {fault}") from fault
    data = io.parse_json(text, DataError, str(path))
    about = data if isinstance(data, dict) else {"rows": data}
    rows = about.get("rows")
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path}: no rows; a list of objects with method, labels, mean and seeds is needed")
    for number, row in enumerate(rows, start=1):
        _check(row, f"{path}: row {number}")
    card = _card(where, str(about["data"])) if about.get("data") else None
    return Results(
        path=where, rows=rows, about={key: value for key, value in about.items() if key != "rows"}, card=card
    )


def _check(row: Any, where: str) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("method"), str):
        raise DataError(f"{where}: no 'method'; an object with method, labels, mean and seeds is needed")
    for name in ("labels", "mean"):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{where}: '{name}' is {value!r}; a number is needed")
    if not isinstance(row.get("seeds", 1), int | list):
        raise DataError(f"{where}: 'seeds' is {row['seeds']!r}; a number or a list of seeds is needed")


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise CheckpointError(f"{path}:{number}: not a JSON object; fine-tune again, or delete the file")
        found.append(line)
    return found


def _card(where: Path, named: str) -> dict[str, Any] | None:
    """The data card; a relative path is that of where the run was started, perhaps above its directory."""
    if not named:
        return None
    for folder in (Path(), where, *where.resolve().parents[:3]):
        if (folder / named / CARD).is_file():
            return io.read_json(folder / named / CARD, DataError)
    return None
