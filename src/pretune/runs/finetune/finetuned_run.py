"""A fine-tuned run on disk: the model with its task, asked for predictions and scores.

fine = FineTuned.open("runs/bert-sst2")
fine.predict(["a gorgeous, witty, seductive movie"])      # [{'label': 'positive', 'probabilities': {…}}]
evaluate_run("runs/bert-mnli", task="snli", data="data/tasks")
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import torch

from pretune.adaptation import methods
from pretune.adaptation.adapted import Adapted, adapt, one_of
from pretune.adaptation.heads.generation import Generation
from pretune.core import config, log
from pretune.core.counted import join_names
from pretune.core.errors import CheckpointError, DataError, UsageError, explain_missing
from pretune.core.hub import located
from pretune.inference.text_model import tokenizer_of
from pretune.runs.build_config import device_of
from pretune.runs.defaults import RUN
from pretune.runs.finetune.config import Wanted
from pretune.runs.finetune.inputs import example_of
from pretune.runs.finetune.saved_task import Kept, Member
from pretune.runs.finetune.task_data import Opened, answered, open_task
from pretune.runs.run_dir import COST
from pretune.tasks import TASKS
from pretune.tasks.decode import Prediction, answer_perplexity, predict, score, with_threshold
from pretune.tasks.encode import Counts, TaskEncoder
from pretune.tasks.encode.base import Rules
from pretune.tasks.example import Example
from pretune.tasks.splits import subset
from pretune.tasks.table_reader import open_table
from pretune.tasks.task import Task, type_of
from pretune.tasks.user_table import own_task
from pretune.tasks.user_types import is_squad
from pretune.training.records import HeadlineFile

SCORES = "scores.json"


@dataclass(slots=True)
class FineTuned(os.PathLike[str]):
    """Where a run lies and what came out; it can be given wherever its path can."""

    path: Path
    scores: dict[str, Any]
    kept: Kept
    device: str | None = None
    head: int | None = None  # of a task among several that were learnt together
    base: Path | None = None  # where the base model of an adapter is now
    _ready: "Ready | None" = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> "FineTuned":
        """A run that is done, or at least has a model."""
        run = Path(path)
        if not run.is_dir():
            raise CheckpointError(f"{run}: {explain_missing(run, 'directory')}; give a run of `pretune finetune`")
        kept = Kept.read(run)
        there = (run / SCORES).is_file()
        scores = {**config.read_record(HeadlineFile, run / SCORES, CheckpointError)} if there else {}
        return cls(run, scores, kept, device, base=None if base is None else located(base))

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def score(self) -> float | None:
        """The headline: the official metric on test, or on dev where test has no answers."""
        found = self.scores.get("result", {}).get("score")
        return None if found is None else float(found)

    def load(self) -> Adapted:
        """The model with its head."""
        return self.ready().model

    def on(self, task: str) -> "FineTuned":
        """The same for one of the tasks that were learnt together, each with a head of its own or all in words."""
        if not self.kept.members and "," in self.kept.name:
            found = replace(self.kept, members=tuple(Member(name=name, max_length=self.kept.max_length,
                            new_tokens=self.kept.new_tokens) for name in self.kept.name.split(",")))  # fmt: skip
            return replace(self, kept=found.of(task)[1], _ready=None)
        if self.kept.members:
            head, kept = self.kept.of(task)
            return replace(self, kept=kept, head=head, _ready=None)
        if task != self.kept.name:
            raise UsageError(f"{self}: learnt '{self.kept.name}', not '{task[:40]}'; leave the task out")
        return self

    def ready(self) -> "Ready":
        """The model in memory, with what reads text for it."""
        if self._ready is None:
            if self.kept.members:
                self.kept.of(None)  # which of the tasks must be said
            self._ready = Ready.of(self.path, self.kept, device_of(self.device), self.head, self.base)
        return self._ready

    def predict(self, inputs: Iterable[Any]) -> list[dict[str, Any]]:
        """What it says of texts, pairs of texts, or mappings with the fields of examples; in order, none lost."""
        examples = [example_of(one, self.kept, f"input {number}") for number, one in enumerate(inputs)]
        task = self.ready().task
        return [said.shown(task) for said in self.ready().predict(examples)] if examples else []

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / COST).is_file()


@dataclass(frozen=True, slots=True)
class Ready:
    """A model with its task and encoder."""

    task: Task
    model: Adapted
    encoder: TaskEncoder
    threshold: float | None
    precision: torch.dtype | None

    @classmethod
    def of(cls, run: Path, kept: Kept, device: str, head: int | None = None, base: Path | None = None) -> "Ready":
        """Read a run's model; of several heads, with one of them."""
        task = kept.task()
        found = methods.load(run, base=base)[0]
        model = found if isinstance(found, Adapted) else adapt(found, Generation())
        model = (model if head is None else one_of(model, head)).eval().to(device)
        encoder = TaskEncoder.of(
            task,
            model,
            tokenizer_of(model),
            max_length=kept.max_length,
            stride=kept.stride,
            slots=kept.slots,
            scale=kept.scale,
            new_tokens=kept.new_tokens,
        )
        half = torch.bfloat16 if device.startswith("cuda") and torch.cuda.is_bf16_supported() else None
        return cls(task, model, encoder, kept.threshold, half)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """One prediction for each example."""
        said = predict(self.model, self.encoder, examples, precision=self.precision)
        return said if self.threshold is None else with_threshold(said, self.threshold)

    def perplexity(self, examples: Sequence[Example]) -> float:
        """Of the right answers, where they are text."""
        return answer_perplexity(self.model, self.encoder, examples, precision=self.precision)

    def on(self, task: Task) -> "Ready":
        """The same for another task whose answers are written."""
        return replace(self, task=task, encoder=replace(self.encoder, rules=_ruled(self.encoder.rules, task)))

    def counts(self, examples: Sequence[Example]) -> Counts:
        """What was cut off."""
        return self.encoder.encode(examples, training=False).counts


def predict_run(
    run: str | os.PathLike[str],
    inputs: Iterable[Any],
    *,
    task: str | None = None,
    device: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """What a fine-tuned run says of texts, pairs of texts, or mappings with fields; one answer each, in order.

    `task` is which one, of a run that learnt several; `base` is where the base model of an adapter is now. A run that
    is asked often is better kept: `FineTuned.open`.
    """
    fine = FineTuned.open(run, device=device, base=base)
    return (fine if task is None else fine.on(task)).predict(inputs)


def _ruled(rules: Rules, task: Task) -> Rules:
    return replace(rules, task=task, scale=task.scale)


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    task: str | Task | None = None,
    data: str | os.PathLike[str] | None = None,
    split: str | None = None,
    most: int | None = None,
    device: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The scores of a fine-tuned run on its own task, or on another with the same labels, by that one's metrics.

    On test by default, or on dev where test has no answers; `most` takes so many examples, stratified. Where the run
    had divided the one split that there is, it is divided again: no example that was trained on is asked.
    """
    fine = FineTuned.open(run, device=device, base=base)
    if fine.kept.members:
        fine = fine.on(task if isinstance(task, str) else fine.kept.name)
    own, ready = fine.kept.task(), fine.ready()
    found = own if task is None else TASKS.get(task) if isinstance(task, str) else task
    if not found.splits:
        raise UsageError(f"{fine}: no task of ours is '{own.name}'; give --task, or see {fine.path / SCORES}")
    if ready.encoder.written and found.template is not None:  # whatever is asked in words is answered in words
        ready, own = ready.on(found), found
    if found.kind != own.kind or (own.labels and set(found.labels) != set(own.labels)):
        raise UsageError(
            f"{fine}: learnt '{own.name}' ({own.kind}: {join_names(own.labels, 10)}), which is not what '{found.name}' "
            f"asks ({found.kind}: {join_names(found.labels, 10)})"
        )
    opened = _divided(fine.path, found, data)
    if opened is not None and split in (None, "train", "dev", "test"):
        chosen = split or opened.headline
        examples: list[Example] = getattr(opened.parts, chosen)
    else:
        there = found.available(data)
        chosen = split or next((name for name in ("test", "dev", "all") if name in there), next(iter(found.splits)))
        examples = [_relabelled(example, found, own) for example in found.read(chosen, data)]
        if split is None and chosen == "test" and not answered(own, examples):
            chosen = "dev"
            examples = [_relabelled(example, found, own) for example in found.read(chosen, data)]
    if not answered(own, examples):
        raise DataError(f"task '{found.name}': split '{chosen}' has no answers to score by; choose another")
    if most is not None and len(examples) > most:
        examples = subset(examples, most, groups=found.groups(examples))
    judged = own if isinstance(task, Task) else replace(own, metrics=found.metrics)  # a table has none of its own
    scores = score(judged, examples, ready.predict(examples))
    if own.kind == "generation":
        scores["perplexity"] = ready.perplexity(examples)
    notes = [] if opened is None else [*opened.parts.notes]
    return {"task": found.name, "split": chosen, "examples": len(examples), "scores": scores, "notes": notes}


def table_task(run: str | os.PathLike[str], file: str | os.PathLike[str], **roles: str) -> Task:
    """What a fine-tuned run has learnt, asked of a table: with its labels, in the columns (`text`, `pair`, `label`)
    that it was trained on unless `roles` name others."""
    where = Path(run)
    kept = Kept.read(where)
    if kept.members or "," in kept.name:
        raise UsageError(f"{where}: learnt '{kept.name}', several tasks that no single table asks; name a --task")
    wanted = _wanted(where)
    if wanted.train is not None and _same(wanted.train, file):
        log.warn(
            f"{file}: the run was trained on it, and knows these answers; {where / SCORES} has what it says of others"
        )
    known = columns_in(file, kept.text, kept.pair)
    usual = {"text": wanted.text or known[0], "pair": wanted.pair or known[1], "label": wanted.label}
    text, pair, label = ({**usual, **roles}[role] for role in ("text", "pair", "label"))
    name, type_ = Path(file).name, type_of(kept.kind_of)
    paired: bool | None = kept.kind_of == "pair" or kept.pair is not None
    if kept.kind_of == "regression" and wanted.name is not None:
        paired = None  # a published task of scores has pairs where the table has
    return own_task({"test": file}, text, label, pair, name=name, labels=kept.labels, type=type_, paired=paired)


def columns_in(file: str | os.PathLike[str], *columns: str | None) -> tuple[str | None, ...]:
    """The columns by which a run reads its texts, if a table has them all; another table may name them otherwise."""
    named = [column for column in columns if column]
    if not named or is_squad(Path(file)):
        return (None,) * len(columns)
    there = open_table(file, named).columns
    return columns if all(column in there for column in named) else (None,) * len(columns)


class _RunFile(TypedDict):
    """run.json, as far as its task is asked for."""

    task: Wanted


def _wanted(run: Path) -> Wanted:
    return config.from_dict(Wanted, config.read_record(_RunFile, run / RUN, CheckpointError)["task"], where="task")


def _same(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths lead to one file; a path of a run may lead nowhere by now."""
    first, second = Path(one), Path(other)
    return first.exists() and second.exists() and first.samefile(second)


def _divided(run: Path, task: Task, data: str | os.PathLike[str] | None) -> Opened | None:
    """A run's own task, divided as it was, where train or dev came out of another split; None where nothing did."""
    if {"train", "dev"} <= set(task.available(data)):
        return None
    wanted = _wanted(run)
    if task.name not in (wanted.name or "").split(","):
        return None
    place = None if data is None else os.fspath(data)
    return open_task(replace(wanted, name=task.name, data=place, labels=None, most=None))


def _relabelled(example: Example, task: Task, own: Task) -> Example:
    """An example of another task with its label as the run numbers it."""
    if task.labels == own.labels or example.label is None or task.kind == "choice":
        return example
    return replace(example, label=own.labels.index(task.labels[int(example.label)]))
