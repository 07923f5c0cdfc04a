"""Predictions and scores of fine-tuned runs: of one, or of several as an ensemble.

predict_run(["runs/seed0", "runs/seed1", "runs/seed2"], ["a gorgeous, witty, seductive movie"])
evaluate_run("runs/bert-mnli", task="snli", data="data/tasks")

A run fine-tuned for spans (SQuAD) answers questions from retrieved passages (Chen et al., 2017):

run = load_extractive_run("runs/squad2")                  # None for any other run
extract_answers(run, questions, index.search(questions))  # ExtractedAnswer(text, score, hit, span) each
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from pretune.adaptation.quantized import Quantization
from pretune.core import config, log
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import is_hub
from pretune.core.log import join_names
from pretune.core.run_dir import RunDir
from pretune.evaluation import EvaluationResult
from pretune.inference.index import Hit
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.finetuned_run import FinetunedRun, Predictor
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.finetune.task_data import TaskData, open_task
from pretune.tasks import TASKS
from pretune.tasks.encoding import Counts
from pretune.tasks.example import Example, Prediction
from pretune.tasks.table import open_table
from pretune.tasks.task import Task, sample_subset
from pretune.tasks.types import get_type, has_answers, score
from pretune.tasks.types.span import allows_no_answer, is_squad
from pretune.tasks.user_table import build_user_task

RunPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class EnsemblePredictor(Predictor):
    """Predictors of several runs; encoder and task are those of the first."""

    members: tuple[Predictor, ...] = ()

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return one combined prediction for each example."""
        outputs = [member.predict(examples) for member in self.members]
        return [
            get_type(self.task).outputs.combine(self.task, row, self.threshold) for row in zip(*outputs, strict=True)
        ]

    def compute_perplexity(self, examples: Sequence[Example]) -> float:
        """Raise a UsageError: the runs may have different tokens."""
        raise UsageError("an ensemble has no perplexity; evaluate its runs one by one")

    def count_truncated(self, examples: Sequence[Example]) -> Counts:
        """Return the counts of the run that truncates most."""
        return max((member.count_truncated(examples) for member in self.members), key=lambda counts: counts.cut)


@dataclass(slots=True, repr=False)
class Ensemble(FinetunedRun):
    """Fine-tuned runs of one task; path and task are those of the first."""

    members: tuple[FinetunedRun, ...] = ()

    def load_predictor(self) -> Predictor:
        """Return the predictors of all runs as one."""
        if self._predictor is None:
            members = tuple(member.load_predictor() for member in self.members)
            thresholds = [member.threshold for member in members if member.threshold is not None]
            mean = sum(thresholds) / len(thresholds) if len(thresholds) == len(members) else None
            first = members[0]
            self._predictor = EnsemblePredictor(
                first.task, first.model, first.encoder, mean, first.precision, members=members
            )
        return self._predictor

    def select_task(self, task: str) -> "Ensemble":
        """Return the ensemble for one task of multi-task runs."""
        members = tuple(member.select_task(task) for member in self.members)
        return replace(self, saved_task=members[0].saved_task, members=members, _predictor=None)


def open_runs(
    paths: RunPath | Sequence[RunPath],
    *,
    device: str | None = None,
    base: RunPath | None = None,
    quantize: Quantization | None = None,
) -> FinetunedRun:
    """Open a fine-tuned run, or several of one task as an ensemble.

    Raises:
        UsageError: the runs have different tasks or labels.
        CheckpointError: a directory is no fine-tuned run.
    """
    names = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    runs = [FinetunedRun.open(path, device=device, base=base, quantize=quantize) for path in names]
    if not runs:
        raise UsageError("no run; pass at least one run of `pretune finetune`")
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    for run in runs[1:]:
        ours, theirs = first.saved_task, run.saved_task
        if (ours.task_kind, ours.labels, ours.members) != (theirs.task_kind, theirs.labels, theirs.members):
            raise UsageError(
                f"{run}: fine-tuned on '{theirs.name}' ({join_names(theirs.labels, 10) or theirs.task_kind}), but "
                f"{first} on '{ours.name}' ({join_names(ours.labels, 10) or ours.task_kind}); choose runs of one task"
            )
    return Ensemble(first.path, {}, first.saved_task, device, base=first.base, quantize=quantize, members=tuple(runs))


def predict_run(
    run: RunPath | Sequence[RunPath],
    inputs: Iterable[Any],
    *,
    task: str | None = None,
    device: str | None = None,
    base: RunPath | None = None,
    quantize: Quantization | None = None,
) -> list[dict[str, Any]]:
    """Predict texts, pairs of texts, or mappings with fields by a fine-tuned run; one prediction each, in order.

    Several runs of one task are an ensemble: the mean of their probabilities, or the answer that most of them give.
    `task` selects a task of a multi-task run; `base` is the base model of an adapter; `quantize` ("int8", "int4",
    "nf4") reduces the weights. For repeated calls, use `FinetunedRun.open`.
    """
    finetuned_run = open_runs(run, device=device, base=base, quantize=quantize)
    return (finetuned_run if task is None else finetuned_run.select_task(task)).predict(inputs)


def evaluate_run(
    run: RunPath | Sequence[RunPath],
    *,
    task: str | Task | None = None,
    data: str | os.PathLike[str] | None = None,
    split: str | None = None,
    max_examples: int | None = None,
    device: str | None = None,
    base: RunPath | None = None,
    quantize: Quantization | None = None,
) -> EvaluationResult:
    """Evaluate a fine-tuned run, or several as an ensemble, on their task or on another one with the same labels.

    Uses test by default, or dev if test has no answers; `max_examples` samples a stratified subset. A split that the
    run divided is divided in the same way, so that no training example is evaluated.
    """
    finetuned_run = open_runs(run, device=device, base=base, quantize=quantize)
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
        if split is None and split_name == "test" and not has_answers(run_task, examples):
            split_name = "dev"
            examples = [_relabel(example, eval_task, run_task) for example in eval_task.read(split_name, data)]
    if not has_answers(run_task, examples):
        raise DataError(f"task '{eval_task.name}': split '{split_name}' has no answers; choose another")
    if max_examples is not None and len(examples) > max_examples:
        examples = sample_subset(examples, max_examples, groups=eval_task.get_groups(examples))
    if not isinstance(task, Task):  # a table has no metrics of its own
        run_task = replace(run_task, metrics=eval_task.metrics)
    scores = score(run_task, examples, ready.predict(examples))
    if get_type(run_task).scoring.gold == "text" and not isinstance(finetuned_run, Ensemble):
        perplexity = ready.compute_perplexity(examples)
        scores |= {"loss": math.log(perplexity), "perplexity": perplexity}
    notes = () if split_data is None else split_data.parts.notes
    counts = {"examples": len(examples)}
    return EvaluationResult(task=eval_task.name, split=split_name, scores=scores, counts=counts, notes=notes)


def build_table_task(run: str | os.PathLike[str], file: str | os.PathLike[str], **roles: str) -> Task:
    """Return the run's task on a table, with its labels and, unless `roles` override them, its columns (`text`, `pair`,
    `label`).
    """
    run_dir = Path(run)
    saved_task = SavedTask.read(run_dir)
    if saved_task.members or "," in saved_task.name:
        raise UsageError(f"{run_dir}: multi-task run of '{saved_task.name}', which needs a --task")
    task_config = _read_task_config(run_dir)
    text, pair, label, train = (getattr(task_config, name, None) for name in ("text", "pair", "label", "train"))
    if train is not None and _is_same_file(train, file):
        scores = RunDir(run_dir).scores
        log.warn(f"{file}: training data of the run{f'; {scores} has scores on other examples' * scores.is_file()}")
    table_columns = match_columns(file, saved_task.text, saved_task.pair)
    default_roles = {"text": text or table_columns[0], "pair": pair or table_columns[1], "label": label}
    text, pair, label = ({**default_roles, **roles}[role] for role in ("text", "pair", "label"))
    task_type = get_type(saved_task.build_task())
    has_pair: bool | None = task_type.inputs.second_text == "required" or saved_task.pair is not None
    is_published = saved_task.name in TASKS if task_config is None else task_config.name is not None
    if task_type.scoring.gold == "score" and is_published:
        has_pair = None  # published regression tasks may have pairs
    return build_user_task(
        {"test": file},
        text,
        label,
        pair,
        name=Path(file).name,
        labels=saved_task.labels,
        type=saved_task.task_kind,
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


def _read_task_config(run: Path) -> TaskConfig | None:
    """Return the task section of a run; None of an exported model."""
    run_dir = RunDir(run)
    if not run_dir.settings.is_file():
        return None
    record = config.check_record(_RunFile, run_dir.locate_settings().tree, CheckpointError, str(run_dir.settings))
    return config.from_dict(TaskConfig, record["task"], location="task")


def _is_same_file(path: str | os.PathLike[str], other_path: str | os.PathLike[str]) -> bool:
    """Return whether two paths are the same existing file."""
    first, second = Path(path), Path(other_path)
    return first.exists() and second.exists() and first.samefile(second)


def _open_divided_task(run: Path, task: Task, data: str | os.PathLike[str] | None) -> TaskData | None:
    """Open the run's task with its original split if train or dev came from another split; else None."""
    if {"train", "dev"} <= set(task.find_available(data)):
        return None
    task_config = _read_task_config(run)
    if task_config is None or task.name not in (task_config.name or "").split(","):
        return None
    place = None if data is None else os.fspath(data)
    return open_task(replace(task_config, name=task.name, data=place, train_examples=None, max_eval_examples=None))


def _relabel(example: Example, task: Task, run_task: Task) -> Example:
    """Return an example with its label numbered as in the run."""
    if task.labels == run_task.labels or example.label is None:
        return example
    return replace(example, label=run_task.labels.index(task.labels[int(example.label)]))


class ExtractedAnswer(NamedTuple):
    """Answer with its score, passage, and character span there; an empty text is no answer."""

    text: str
    score: float | None
    hit: Hit | None
    span: tuple[int, int] | None


def load_extractive_run(path: str | os.PathLike[str], *, device: str | None = None) -> FinetunedRun | None:
    """Return a run fine-tuned to extract spans; None for any other model, also a generative one."""
    if is_hub(path) or not RunDir(Path(path)).is_finetuned:
        return None
    run = FinetunedRun.open(path, device=device)
    if run.saved_task.members:
        names = [
            member.name for member in run.saved_task.members if get_type(TASKS.get(member.name)).scoring.gold == "span"
        ]
        if not names:
            return None
        run = run.select_task(names[0])
    is_extractive = get_type(run.saved_task.build_task()).scoring.gold == "span"
    return run if is_extractive and not run.load_predictor().encoder.is_generative else None


def extract_answers(
    run: FinetunedRun, questions: Sequence[str], hits: Sequence[Sequence[Hit]]
) -> list[ExtractedAnswer]:
    """Return the best span among the hits of each question.

    A run with unanswerable questions (SQuAD 2.0) ranks passages by the margin of the span over no answer, and returns
    none if no passage has one. Others rank by span score: start plus end logits.
    """
    candidates = [(number, hit) for number, query_hits in enumerate(hits) for hit in query_hits]
    examples = [Example(text=questions[number], pair=hit.text) for number, hit in candidates]
    predictions = run.load_predictor().predict(examples) if examples else []
    may_lack = allows_no_answer(run.load_predictor().task)
    best: list[ExtractedAnswer] = [ExtractedAnswer("", None, None, None)] * len(questions)
    for (number, hit), prediction in zip(candidates, predictions, strict=True):
        if not prediction.text or prediction.span is None:
            continue
        margin = prediction.null_score_diff if may_lack else None
        score = prediction.candidates[0].score if margin is None else -margin
        best_score = best[number].score
        if best_score is None or score > best_score:
            best[number] = ExtractedAnswer(prediction.text, score, hit, prediction.span)
    return best
