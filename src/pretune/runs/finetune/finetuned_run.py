"""Fine-tuned run on disk: the model with its task, for predictions and scores.

run = FinetunedRun.open("runs/bert-sst2")
run.predict(["a gorgeous, witty, seductive movie"])      # [{'label': 'positive', 'probabilities': {…}}]
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
from pretune.core.api import Result
from pretune.core.errors import CheckpointError, DataError, UsageError, explain_missing
from pretune.core.format import join_names
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.inference.text_model import get_tokenizer
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.saved_task import SavedTask, TaskMember
from pretune.runs.finetune.task_data import TaskData, open_task
from pretune.tasks import TASKS
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Counts, EncodingRules
from pretune.tasks.example import Example, Prediction
from pretune.tasks.predict import answer_perplexity, predict
from pretune.tasks.splits import sample_subset
from pretune.tasks.table import open_table
from pretune.tasks.task import Task
from pretune.tasks.types import get_option
from pretune.tasks.types.span import is_squad
from pretune.tasks.user_table import build_user_task
from pretune.training.distributed import resolve_device
from pretune.training.records import HeadlineFile, read_run_record


@dataclass(slots=True, repr=False)
class FinetunedRun(Result, os.PathLike[str]):
    """Path, scores and task of a fine-tuned run; accepted wherever its path is."""

    path: Path
    scores: dict[str, Any]
    saved_task: SavedTask
    device: str | None = None
    head: int | None = None  # of one task of a multi-task run
    base: Path | None = None  # base model of an adapter
    _predictor: "Predictor | None" = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> "FinetunedRun":
        """Open a run that has a model."""
        run = Path(path)
        if not run.is_dir():
            raise CheckpointError(f"{run}: {explain_missing(run, 'directory')}; pass a run of `pretune finetune`")
        saved_task = SavedTask.read(run)
        file = RunDir(run).scores
        scores = {**config.read_record(HeadlineFile, file, CheckpointError)} if file.is_file() else {}
        return cls(run, scores, saved_task, device, base=None if base is None else resolve_path(base))

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def score(self) -> float | None:
        """Headline score: the official metric on test, or on dev if test has no answers."""
        score = self.scores.get("result", {}).get("score")
        return None if score is None else float(score)

    def to_dict(self) -> dict[str, Any]:
        """Return the path, the task and the scores as plain data."""
        return {"path": str(self.path), "task": self.saved_task.name, **self.scores}

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.4f}"
        return f"FinetunedRun({str(self.path)!r}, task={self.saved_task.name!r}{score})"

    def load(self) -> ModelWithHead:
        """Load the model with its head."""
        return self.load_predictor().model

    def select_task(self, task: str) -> "FinetunedRun":
        """Return the run for one task of a multi-task run."""
        if not self.saved_task.members and "," in self.saved_task.name:
            length, max_new_tokens = self.saved_task.max_length, self.saved_task.max_new_tokens
            members = tuple(
                TaskMember(name=name, max_length=length, max_new_tokens=max_new_tokens)
                for name in self.saved_task.name.split(",")
            )
            saved_task = replace(self.saved_task, members=members).select(task)[1]
            return replace(self, saved_task=saved_task, _predictor=None)
        if self.saved_task.members:
            head, saved_task = self.saved_task.select(task)
            return replace(self, saved_task=saved_task, head=head, _predictor=None)
        if task != self.saved_task.name:
            raise UsageError(f"{self}: fine-tuned on '{self.saved_task.name}', not '{task[:40]}'; remove the task")
        return self

    def load_predictor(self) -> "Predictor":
        """Return the loaded model with its encoder."""
        if self._predictor is None:
            if self.saved_task.members:
                self.saved_task.select(None)  # raises: a task must be selected
            self._predictor = Predictor.load(
                self.path, self.saved_task, resolve_device(self.device), self.head, self.base
            )
        return self._predictor

    def predict(self, inputs: Iterable[Any]) -> list[dict[str, Any]]:
        """Predict texts, pairs of texts, or mappings with the fields of examples; one prediction each, in order."""
        examples = [self.saved_task.build_example(value, f"input {number}") for number, value in enumerate(inputs)]
        ready = self.load_predictor()
        return (
            [ready.task.type.format_prediction(prediction) for prediction in ready.predict(examples)]
            if examples
            else []
        )

    @property
    def is_finished(self) -> bool:
        """True if the run is finished."""
        return RunDir(self.path).is_finished


@dataclass(frozen=True, slots=True)
class Predictor:
    """Model with its task and encoder."""

    task: Task
    model: ModelWithHead
    encoder: TaskEncoder
    threshold: float | None
    precision: torch.dtype | None

    @classmethod
    def load(
        cls, run: Path, saved_task: SavedTask, device: str, head: int | None = None, base: Path | None = None
    ) -> "Predictor":
        """Load a run's model; for a multi-task run, with one head."""
        task = saved_task.build_task()
        loaded_model = methods.load(run, base=base)[0]
        model = loaded_model if isinstance(loaded_model, ModelWithHead) else adapt(loaded_model, Generation())
        model = (model if head is None else select_head(model, head)).eval().to(device)
        encoder = TaskEncoder.from_task(
            task,
            model,
            get_tokenizer(model),
            max_length=saved_task.max_length,
            stride=saved_task.stride,
            slots=saved_task.virtual_tokens,
            scale=saved_task.scale,
            max_new_tokens=saved_task.max_new_tokens,
        )
        half = torch.bfloat16 if device.startswith("cuda") and torch.cuda.is_bf16_supported() else None
        return cls(task, model, encoder, saved_task.threshold, half)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return one prediction for each example."""
        predictions = predict(self.model, self.encoder, examples, precision=self.precision)
        return predictions if self.threshold is None else self.task.type.apply_threshold(predictions, self.threshold)

    def compute_perplexity(self, examples: Sequence[Example]) -> float:
        """Return the perplexity of the gold answers, for generation."""
        return answer_perplexity(self.model, self.encoder, examples, precision=self.precision)

    def select_task(self, task: Task) -> "Predictor":
        """Return the predictor for another text-to-text task."""
        return replace(self, task=task, encoder=replace(self.encoder, rules=_replace_task(self.encoder.rules, task)))

    def count_truncated(self, examples: Sequence[Example]) -> Counts:
        """Return counts of truncated and empty inputs."""
        return self.encoder.encode(examples, training=False).counts


def predict_run(
    run: str | os.PathLike[str],
    inputs: Iterable[Any],
    *,
    task: str | None = None,
    device: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """Predict texts, pairs of texts, or mappings with fields by a fine-tuned run; one prediction each, in order.

    `task` selects a task of a multi-task run; `base` is the base model of an adapter. For repeated calls, use
    `FinetunedRun.open`.
    """
    finetuned_run = FinetunedRun.open(run, device=device, base=base)
    return (finetuned_run if task is None else finetuned_run.select_task(task)).predict(inputs)


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
    """Evaluate a fine-tuned run on its own task, or on another task with the same labels, by that task's metrics.

    Uses test by default, or dev if test has no answers; `max_examples` samples a stratified subset. A split that the
    run divided is divided in the same way, so that no training example is evaluated.
    """
    finetuned_run = FinetunedRun.open(run, device=device, base=base)
    if finetuned_run.saved_task.members:
        finetuned_run = finetuned_run.select_task(task if isinstance(task, str) else finetuned_run.saved_task.name)
    run_task, ready = finetuned_run.saved_task.build_task(), finetuned_run.load_predictor()
    eval_task = run_task if task is None else TASKS.get(task) if isinstance(task, str) else task
    if not eval_task.splits:
        raise UsageError(
            f"{finetuned_run}: '{run_task.name}' is not a registered task; pass --task, or see "
            f"{RunDir(finetuned_run.path).scores}"
        )
    if ready.encoder.is_generative and eval_task.template is not None:  # text-to-text models handle any template
        ready, run_task = ready.select_task(eval_task), eval_task
    if eval_task.kind != run_task.kind or (run_task.labels and set(eval_task.labels) != set(run_task.labels)):
        raise UsageError(
            f"{finetuned_run}: fine-tuned on '{run_task.name}' ({run_task.kind}: {join_names(run_task.labels, 10)}), "
            f"which does not match '{eval_task.name}' ({eval_task.kind}: {join_names(eval_task.labels, 10)})"
        )
    split_data = _open_divided_task(finetuned_run.path, eval_task, data)
    if split_data is not None and split in (None, "train", "dev", "test"):
        split_name = split or split_data.headline_split
        examples: list[Example] = getattr(split_data.parts, split_name)
    else:
        available = eval_task.find_available(data)
        split_name = split or next(
            (name for name in ("test", "dev", "all") if name in available), next(iter(eval_task.splits))
        )
        examples = [_relabel(example, eval_task, run_task) for example in eval_task.read(split_name, data)]
        if split is None and split_name == "test" and not run_task.type.has_answers(examples):
            split_name = "dev"
            examples = [_relabel(example, eval_task, run_task) for example in eval_task.read(split_name, data)]
    if not run_task.type.has_answers(examples):
        raise DataError(f"task '{eval_task.name}': split '{split_name}' has no answers; choose another")
    if max_examples is not None and len(examples) > max_examples:
        examples = sample_subset(examples, max_examples, groups=eval_task.get_groups(examples))
    scored_task = (
        run_task if isinstance(task, Task) else replace(run_task, metrics=eval_task.metrics)
    )  # a table has no metrics of its own
    scores = scored_task.type.score(examples, ready.predict(examples))
    if run_task.type.has_free_text:
        scores["perplexity"] = ready.compute_perplexity(examples)
    notes = [] if split_data is None else [*split_data.parts.notes]
    return {"task": eval_task.name, "split": split_name, "examples": len(examples), "scores": scores, "notes": notes}


def build_table_task(run: str | os.PathLike[str], file: str | os.PathLike[str], **roles: str) -> Task:
    """Return the run's task on a table, with its labels and, unless `roles` override them, its columns (`text`, `pair`,
    `label`).
    """
    run_dir = Path(run)
    saved_task = SavedTask.read(run_dir)
    if saved_task.members or "," in saved_task.name:
        raise UsageError(f"{run_dir}: multi-task run of '{saved_task.name}', which needs a --task")
    task_config = _read_task_config(run_dir)
    if task_config.train is not None and _is_same_file(task_config.train, file):
        log.warn(f"{file}: training data of the run; {RunDir(run_dir).scores} has scores on other examples")
    table_columns = match_columns(file, saved_task.text, saved_task.pair)
    default_roles = {
        "text": task_config.text or table_columns[0],
        "pair": task_config.pair or table_columns[1],
        "label": task_config.label,
    }
    text, pair, label = ({**default_roles, **roles}[role] for role in ("text", "pair", "label"))
    task_type = saved_task.build_task().type
    has_pair: bool | None = task_type.needs_pair or saved_task.pair is not None
    if task_type.pair_gold == "score" and task_config.name is not None:
        has_pair = None  # published regression tasks may have pairs
    return build_user_task(
        {"test": file},
        text,
        label,
        pair,
        name=Path(file).name,
        labels=saved_task.labels,
        type=get_option(saved_task.task_kind),
        has_pair=has_pair,
    )


def match_columns(file: str | os.PathLike[str], *columns: str | None) -> tuple[str | None, ...]:
    """Return the run's text columns if the table has them all, else None for each."""
    names = [column for column in columns if column]
    if not names or is_squad(Path(file)):
        return (None,) * len(columns)
    table_columns = open_table(file, names).columns
    return columns if all(column in table_columns for column in names) else (None,) * len(columns)


class _RunFile(TypedDict):
    """Task section of run.json."""

    task: TaskConfig


def _read_task_config(run: Path) -> TaskConfig:
    return config.from_dict(
        TaskConfig, read_run_record(_RunFile, RunDir(run).settings, CheckpointError)["task"], location="task"
    )


def _is_same_file(path: str | os.PathLike[str], other_path: str | os.PathLike[str]) -> bool:
    """Return whether two paths are the same existing file."""
    first, second = Path(path), Path(other_path)
    return first.exists() and second.exists() and first.samefile(second)


def _open_divided_task(run: Path, task: Task, data: str | os.PathLike[str] | None) -> TaskData | None:
    """Open the run's task with its original split if train or dev came from another split; else None."""
    if {"train", "dev"} <= set(task.find_available(data)):
        return None
    task_config = _read_task_config(run)
    if task.name not in (task_config.name or "").split(","):
        return None
    place = None if data is None else os.fspath(data)
    return open_task(replace(task_config, name=task.name, data=place, train_examples=None, max_eval_examples=None))


def _relabel(example: Example, task: Task, run_task: Task) -> Example:
    """Return an example with its label numbered as in the run."""
    if task.labels == run_task.labels or example.label is None:
        return example
    return replace(example, label=run_task.labels.index(task.labels[int(example.label)]))
