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
from pretune.adaptation.adapted import ModelWithHead, adapt, select_head
from pretune.adaptation.heads.generation import Generation
from pretune.core import config, log
from pretune.core.errors import CheckpointError, DataError, UsageError, explain_missing
from pretune.core.format import join_names
from pretune.core.hub import resolve_path
from pretune.inference.text_model import get_tokenizer
from pretune.runs.build_config import resolve_device
from pretune.runs.defaults import RUN_FILE
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.inputs import build_example
from pretune.runs.finetune.saved_task import SavedTask, TaskMember
from pretune.runs.finetune.task_data import TaskData, has_answers, open_task
from pretune.runs.run_dir import COST_FILE
from pretune.tasks import TASKS
from pretune.tasks.decode import Prediction, answer_perplexity, apply_threshold, predict, score
from pretune.tasks.encode import Counts, TaskEncoder
from pretune.tasks.encode.base import EncodingRules
from pretune.tasks.example import Example
from pretune.tasks.splits import sample_subset
from pretune.tasks.table_reader import open_table
from pretune.tasks.task import Task, get_task_type
from pretune.tasks.user_table import build_user_task
from pretune.tasks.user_types import is_squad
from pretune.training.records import HeadlineFile, read_run_record

SCORES_FILE = "scores.json"


@dataclass(slots=True)
class FinetunedRun(os.PathLike[str]):
    """Where a run lies and what came out; it can be given wherever its path can."""

    path: Path
    scores: dict[str, Any]
    saved_task: SavedTask
    device: str | None = None
    head: int | None = None  # of a task among several that were learnt together
    base: Path | None = None  # where the base model of an adapter is now
    _predictor: "Predictor | None" = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> "FinetunedRun":
        """A run that is done, or at least has a model."""
        run = Path(path)
        if not run.is_dir():
            raise CheckpointError(f"{run}: {explain_missing(run, 'directory')}; give a run of `pretune finetune`")
        kept = SavedTask.read(run)
        there = (run / SCORES_FILE).is_file()
        scores = {**config.read_record(HeadlineFile, run / SCORES_FILE, CheckpointError)} if there else {}
        return cls(run, scores, kept, device, base=None if base is None else resolve_path(base))

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def score(self) -> float | None:
        """The headline: the official metric on test, or on dev where test has no answers."""
        found = self.scores.get("result", {}).get("score")
        return None if found is None else float(found)

    def load(self) -> ModelWithHead:
        """The model with its head."""
        return self.load_predictor().model

    def select_task(self, task: str) -> "FinetunedRun":
        """The same for one of the tasks that were learnt together, each with a head of its own or all in words."""
        if not self.saved_task.members and "," in self.saved_task.name:
            found = replace(self.saved_task, members=tuple(TaskMember(name=name, max_length=self.saved_task.max_length,
                            max_new_tokens=self.saved_task.max_new_tokens) for name in self.saved_task.name.split(",")))  # fmt: skip
            return replace(self, saved_task=found.select(task)[1], _predictor=None)
        if self.saved_task.members:
            head, kept = self.saved_task.select(task)
            return replace(self, saved_task=kept, head=head, _predictor=None)
        if task != self.saved_task.name:
            raise UsageError(f"{self}: learnt '{self.saved_task.name}', not '{task[:40]}'; leave the task out")
        return self

    def load_predictor(self) -> "Predictor":
        """The model in memory, with what reads text for it."""
        if self._predictor is None:
            if self.saved_task.members:
                self.saved_task.select(None)  # which of the tasks must be said
            self._predictor = Predictor.load(
                self.path, self.saved_task, resolve_device(self.device), self.head, self.base
            )
        return self._predictor

    def predict(self, inputs: Iterable[Any]) -> list[dict[str, Any]]:
        """What it says of texts, pairs of texts, or mappings with the fields of examples; in order, none lost."""
        examples = [build_example(one, self.saved_task, f"input {number}") for number, one in enumerate(inputs)]
        task = self.load_predictor().task
        return [said.to_dict(task) for said in self.load_predictor().predict(examples)] if examples else []

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / COST_FILE).is_file()


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model with its task and encoder."""

    task: Task
    model: ModelWithHead
    encoder: TaskEncoder
    threshold: float | None
    precision: torch.dtype | None

    @classmethod
    def load(
        cls, run: Path, saved_task: SavedTask, device: str, head: int | None = None, base: Path | None = None
    ) -> "Predictor":
        """Read a run's model; of several heads, with one of them."""
        task = saved_task.build_task()
        found = methods.load(run, base=base)[0]
        model = found if isinstance(found, ModelWithHead) else adapt(found, Generation())
        model = (model if head is None else select_head(model, head)).eval().to(device)
        encoder = TaskEncoder.from_task(
            task,
            model,
            get_tokenizer(model),
            max_length=saved_task.max_length,
            stride=saved_task.stride,
            slots=saved_task.virtual_tokens,
            scale=saved_task.scale,
            new_tokens=saved_task.max_new_tokens,
        )
        half = torch.bfloat16 if device.startswith("cuda") and torch.cuda.is_bf16_supported() else None
        return cls(task, model, encoder, saved_task.threshold, half)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """One prediction for each example."""
        said = predict(self.model, self.encoder, examples, precision=self.precision)
        return said if self.threshold is None else apply_threshold(said, self.threshold)

    def compute_perplexity(self, examples: Sequence[Example]) -> float:
        """Of the right answers, where they are text."""
        return answer_perplexity(self.model, self.encoder, examples, precision=self.precision)

    def select_task(self, task: Task) -> "Predictor":
        """The same for another task whose answers are written."""
        return replace(self, task=task, encoder=replace(self.encoder, rules=_replace_task(self.encoder.rules, task)))

    def count_truncated(self, examples: Sequence[Example]) -> Counts:
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
    is asked often is better kept: `FinetunedRun.open`.
    """
    fine = FinetunedRun.open(run, device=device, base=base)
    return (fine if task is None else fine.select_task(task)).predict(inputs)


def _replace_task(rules: EncodingRules, task: Task) -> EncodingRules:
    return replace(rules, task=task, scale=task.scale)


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    task: str | Task | None = None,
    data: str | os.PathLike[str] | None = None,
    split: str | None = None,
    max_examples: int | None = None,
    device: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The scores of a fine-tuned run on its own task, or on another with the same labels, by that one's metrics.

    On test by default, or on dev where test has no answers; `most` takes so many examples, stratified. Where the run
    had divided the one split that there is, it is divided again: no example that was trained on is asked.
    """
    fine = FinetunedRun.open(run, device=device, base=base)
    if fine.saved_task.members:
        fine = fine.select_task(task if isinstance(task, str) else fine.saved_task.name)
    own, ready = fine.saved_task.build_task(), fine.load_predictor()
    found = own if task is None else TASKS.get(task) if isinstance(task, str) else task
    if not found.splits:
        raise UsageError(f"{fine}: no task of ours is '{own.name}'; give --task, or see {fine.path / SCORES_FILE}")
    if ready.encoder.is_generative and found.template is not None:  # whatever is asked in words is answered in words
        ready, own = ready.select_task(found), found
    if found.kind != own.kind or (own.labels and set(found.labels) != set(own.labels)):
        raise UsageError(
            f"{fine}: learnt '{own.name}' ({own.kind}: {join_names(own.labels, 10)}), which is not what '{found.name}' "
            f"asks ({found.kind}: {join_names(found.labels, 10)})"
        )
    opened = _open_divided_task(fine.path, found, data)
    if opened is not None and split in (None, "train", "dev", "test"):
        chosen = split or opened.headline_split
        examples: list[Example] = getattr(opened.parts, chosen)
    else:
        there = found.find_available(data)
        chosen = split or next((name for name in ("test", "dev", "all") if name in there), next(iter(found.splits)))
        examples = [_relabel(example, found, own) for example in found.read(chosen, data)]
        if split is None and chosen == "test" and not has_answers(own, examples):
            chosen = "dev"
            examples = [_relabel(example, found, own) for example in found.read(chosen, data)]
    if not has_answers(own, examples):
        raise DataError(f"task '{found.name}': split '{chosen}' has no answers to score by; choose another")
    if max_examples is not None and len(examples) > max_examples:
        examples = sample_subset(examples, max_examples, groups=found.get_groups(examples))
    judged = own if isinstance(task, Task) else replace(own, metrics=found.metrics)  # a table has none of its own
    scores = score(judged, examples, ready.predict(examples))
    if own.kind == "generation":
        scores["perplexity"] = ready.compute_perplexity(examples)
    notes = [] if opened is None else [*opened.parts.notes]
    return {"task": found.name, "split": chosen, "examples": len(examples), "scores": scores, "notes": notes}


def build_table_task(run: str | os.PathLike[str], file: str | os.PathLike[str], **roles: str) -> Task:
    """What a fine-tuned run has learnt, asked of a table: with its labels, in the columns (`text`, `pair`, `label`)
    that it was trained on unless `roles` name others."""
    where = Path(run)
    kept = SavedTask.read(where)
    if kept.members or "," in kept.name:
        raise UsageError(f"{where}: learnt '{kept.name}', several tasks that no single table asks; name a --task")
    wanted = _read_task_config(where)
    if wanted.train is not None and _is_same_file(wanted.train, file):
        log.warn(
            f"{file}: the run was trained on it, and knows these answers; {where / SCORES_FILE} has what it says of others"
        )
    known = match_columns(file, kept.text, kept.pair)
    usual = {"text": wanted.text or known[0], "pair": wanted.pair or known[1], "label": wanted.label}
    text, pair, label = ({**usual, **roles}[role] for role in ("text", "pair", "label"))
    name, type_ = Path(file).name, get_task_type(kept.task_kind)
    paired: bool | None = kept.task_kind == "pair" or kept.pair is not None
    if kept.task_kind == "regression" and wanted.name is not None:
        paired = None  # a published task of scores has pairs where the table has
    return build_user_task(
        {"test": file}, text, label, pair, name=name, labels=kept.labels, type=type_, has_pair=paired
    )


def match_columns(file: str | os.PathLike[str], *columns: str | None) -> tuple[str | None, ...]:
    """The columns by which a run reads its texts, if a table has them all; another table may name them otherwise."""
    named = [column for column in columns if column]
    if not named or is_squad(Path(file)):
        return (None,) * len(columns)
    there = open_table(file, named).columns
    return columns if all(column in there for column in named) else (None,) * len(columns)


class _RunFile(TypedDict):
    """run.json, as far as its task is asked for."""

    task: TaskConfig


def _read_task_config(run: Path) -> TaskConfig:
    return config.from_dict(
        TaskConfig, read_run_record(_RunFile, run / RUN_FILE, CheckpointError)["task"], location="task"
    )


def _is_same_file(path: str | os.PathLike[str], other_path: str | os.PathLike[str]) -> bool:
    """Whether two paths lead to one file; a path of a run may lead nowhere by now."""
    first, second = Path(path), Path(other_path)
    return first.exists() and second.exists() and first.samefile(second)


def _open_divided_task(run: Path, task: Task, data: str | os.PathLike[str] | None) -> TaskData | None:
    """A run's own task, divided as it was, where train or dev came out of another split; None where nothing did."""
    if {"train", "dev"} <= set(task.find_available(data)):
        return None
    wanted = _read_task_config(run)
    if task.name not in (wanted.name or "").split(","):
        return None
    place = None if data is None else os.fspath(data)
    return open_task(replace(wanted, name=task.name, data=place, train_examples=None, max_eval_examples=None))


def _relabel(example: Example, task: Task, run_task: Task) -> Example:
    """An example of another task with its label as the run numbers it."""
    if task.labels == run_task.labels or example.label is None or task.kind == "choice":
        return example
    return replace(example, label=run_task.labels.index(task.labels[int(example.label)]))
