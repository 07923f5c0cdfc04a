"""The evaluation of one model: loaded once, then evaluated on one task after the other."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from pretune.adaptation.io import load
from pretune.core.config import check_path
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import is_hub, resolve_path
from pretune.core.run_dir import RunDir
from pretune.evaluation import EvaluationResult
from pretune.evaluation.few_shot import FewShotConfig, evaluate_few_shot
from pretune.evaluation.generative import evaluate_generation
from pretune.evaluation.minimal_pairs import (
    evaluate_bias_pairs,
    evaluate_minimal_pairs,
    read_bias_pairs,
    read_pair_folder,
    read_pairs,
)
from pretune.evaluation.perplexity import evaluate_cloze, evaluate_perplexity, read_blanks
from pretune.inference.embed import Embedder, build_embedder
from pretune.inference.scoring import ScoringConfig
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.task_options import FILE_TASKS, EvaluateOptions
from pretune.tasks import TASKS
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import AnswerPrompt
from pretune.text.corpora import open_corpus
from pretune.training.distributed import resolve_device
from pretune.training.records import RunFile, read_run_record

T = TypeVar("T")


@dataclass(slots=True)
class EvaluationJob:
    """Lazily loaded model, with the options of the evaluation."""

    model_or_path: str | os.PathLike[str] | nn.Module  # of an ensemble, its first run
    options: EvaluateOptions
    loaded_model: nn.Module | None = None
    other_runs: tuple[str | os.PathLike[str], ...] = ()  # of an ensemble, without its first run

    def __post_init__(self) -> None:
        if self.options.data is not None:
            check_path(self.options.data, DataError)

    @property
    def base(self) -> Path | None:
        """Directory of an adapter's base model, if set."""
        base = self.options.base
        return None if base is None else resolve_path(base)

    @property
    def run(self) -> Path | None:
        """Directory of a fine-tuned run, or None for other models."""
        path = (
            None
            if isinstance(self.model_or_path, nn.Module) or is_hub(self.model_or_path)
            else Path(self.model_or_path)
        )
        return path if path is not None and RunDir(path).is_finetuned else None

    @property
    def finetuned_tasks(self) -> list[str | Task]:
        """Registered tasks that the run was fine-tuned for."""
        return [] if self.run is None else [name for name in SavedTask.read(self.run).name.split(",") if name in TASKS]

    @property
    def finetuned_kinds(self) -> frozenset[str]:
        """Kinds of tasks that the run was fine-tuned for."""
        return frozenset() if self.run is None else SavedTask.read(self.run).kinds

    @property
    def pretrained_length(self) -> int | None:
        """Sequence length of the run's pre-training, if known."""
        if (
            isinstance(self.model_or_path, nn.Module)
            or is_hub(self.model_or_path)
            or not RunDir(Path(self.model_or_path)).settings.is_file()
        ):
            return None
        tree = read_run_record(RunFile, RunDir(Path(self.model_or_path)).settings, CheckpointError)
        return (tree.get("data") or {}).get("max_length") if "objective" in tree else None

    @property
    def model(self) -> nn.Module:
        """The loaded model."""
        if self.loaded_model is None:
            if isinstance(self.model_or_path, nn.Module):
                self.loaded_model = (
                    self.model_or_path
                    if self.options.device is None
                    else self.model_or_path.to(resolve_device(self.options.device))
                )
            else:
                self.loaded_model = load(
                    Path(self.model_or_path),
                    base=self.base,
                    device=resolve_device(self.options.device),
                    quantize=self.options.quantize,
                )
        return self.loaded_model

    @property
    def scoring_config(self) -> ScoringConfig:
        gpu = next(self.model.parameters()).is_cuda
        precision = self.options.precision or ("bfloat16" if gpu else "float32")
        return ScoringConfig(
            rest=self.options.words,
            bidirectional=self.options.bidirectional,
            precision=precision,
        )

    def bind_progress(self, name: str) -> Callable[[int, int], None] | None:
        report = self.options.on_progress
        return None if report is None else lambda count, total: report(name, count, total)

    def compute_perplexity(self, text: Sequence[str | os.PathLike[str]]) -> EvaluationResult:
        texts = [document.text for document in open_corpus([os.fspath(path) for path in text]).read_documents()]
        return evaluate_perplexity(
            self.model,
            texts,
            self.scoring_config,
            window=self.options.window,
            stride=self.options.stride,
            train_length=self.pretrained_length,
            on_progress=self.bind_progress("perplexity"),
        )

    def evaluate_task(self, task: str | Task, shots: int | None) -> EvaluationResult:
        """Evaluate one task with the evaluator of its kind."""
        if isinstance(task, str) and task in FILE_TASKS:
            return self.evaluate_file(task)
        if self.options.data is not None and Path(self.options.data).is_file():
            raise UsageError(
                f"--data {self.options.data} is a file, which only {', '.join(FILE_TASKS)} support; pass a directory"
            )
        task_spec = TASKS.get(task) if isinstance(task, str) else task
        evaluator = get_type(task_spec).scoring.evaluator
        if evaluator in ("minimal_pairs", "cloze"):
            return self.score_task(task_spec)
        if evaluator in ("retrieval", "similarity") and task_spec.kind not in self.finetuned_kinds:
            return self.evaluate_embeddings(task_spec)
        if self.run is not None and shots is None:
            return self.evaluate_finetuned(self.run, task)
        if self.other_runs:
            raise UsageError("an ensemble is evaluated with its task heads; remove --shots, or pass one model")
        work = evaluate_generation if isinstance(evaluator, AnswerPrompt) else evaluate_few_shot
        return work(
            self.model,
            task_spec,
            shots or 0,
            self.few_shot_config,
            self.scoring_config,
            self.bind_progress(task_spec.name),
        )

    def evaluate_embeddings(self, task: Task) -> EvaluationResult:
        """Evaluate similarity or retrieval."""
        from pretune.evaluation.embedding import BASELINE, evaluate_retrieval, evaluate_similarity

        report, is_retrieval = self.bind_progress(task.name), get_type(task).scoring.evaluator == "retrieval"
        if is_retrieval:
            embedder = self.build_embedder(normalise=True)
            metrics = evaluate_retrieval(embedder, task, data=self.options.data, on_progress=report)
            metrics[BASELINE] = evaluate_retrieval(BASELINE, task, data=self.options.data)["ndcg"]  # the baseline
        else:
            options = self.options
            metrics = evaluate_similarity(
                self.build_embedder(),
                task,
                data=options.data,
                split=options.split,
                limit=options.limit,
                on_progress=report,
            )
        ignores_limit = is_retrieval and self.options.limit is not None
        notes = ("limit is ignored for retrieval",) if ignores_limit else ()
        return replace(_build_result(task.name, metrics), notes=notes)

    def build_embedder(self, *, normalise: bool | None = None) -> Embedder:
        """Build the embedder of the model; a directory is passed as a path, since it may configure its pooling."""
        model = self.model_or_path if isinstance(self.model_or_path, nn.Module) else Path(self.model_or_path)
        device = None if self.options.device is None else resolve_device(self.options.device)
        return build_embedder(model, device=device, pooling=self.options.pooling, normalise=normalise)

    def evaluate_file(self, name: str) -> EvaluationResult:
        """Evaluate the user's file."""
        if self.options.data is None:
            raise UsageError(f"{name} needs a file; pass it with --data FILE")
        path, limit, report = Path(self.options.data), self.options.limit, self.bind_progress(name)
        if name in ("scored_pairs", "triplets"):
            return self.evaluate_similarity(name, path)
        if name == "bias_pairs":
            return evaluate_bias_pairs(
                self.model, subsample(read_bias_pairs(path), limit), self.scoring_config, on_progress=report
            )
        if name == "cloze":
            return evaluate_cloze(
                self.model, subsample(read_blanks(path), limit), self.scoring_config, name=name, on_progress=report
            )
        order = self.options.order
        pairs, skipped_files = read_pair_folder(path, order) if path.is_dir() else (read_pairs(path, order), [])
        result = evaluate_minimal_pairs(self.model, subsample(pairs, limit), self.scoring_config, on_progress=report)
        return (
            replace(result, notes=(f"skipped files without pairs: {', '.join(skipped_files)}",))
            if skipped_files
            else result
        )

    def evaluate_similarity(self, name: str, path: Path) -> EvaluationResult:
        """Compare embeddings of texts: correlation with gold scores, or triplet accuracy."""
        from pretune.evaluation.embedding import compute_cosines, correlate, triplet_accuracy
        from pretune.tasks.types.embedding import read_dataset

        dataset = read_dataset(train=path)
        if (name == "triplets") != (dataset.columns == 3) or (name == "scored_pairs") != dataset.is_scored:
            columns = "anchor, positive and negative" if name == "triplets" else "sentence1, sentence2 and score"
            raise DataError(f"{path}: {name} needs a table with the columns {columns}")
        ready = self.build_embedder()
        rows = subsample([*zip(dataset.texts, dataset.gold, strict=True)], self.options.limit)
        if name == "triplets":
            return _build_result(
                name,
                triplet_accuracy(ready, [(anchor, positive, negative) for (anchor, positive, negative), _ in rows]),
            )
        similarities = compute_cosines(
            ready, [(first, second) for (first, second), _ in rows], self.bind_progress(name)
        )
        return _build_result(name, {"pairs": len(rows), **correlate([gold for _, gold in rows], similarities)})

    def score_task(self, task: Task) -> EvaluationResult:
        """Score minimal pairs or cloze with the language model."""
        available = task.find_available(self.options.data)
        split = self.options.split or ("test" if "test" in available or not available else next(iter(available)))
        examples = subsample([*task.read(split, self.options.data)], self.options.limit)
        work = evaluate_minimal_pairs if get_type(task).scoring.evaluator == "minimal_pairs" else evaluate_cloze
        result = work(
            self.model, examples, self.scoring_config, name=task.name, on_progress=self.bind_progress(task.name)
        )
        return replace(result, split=split)

    def evaluate_finetuned(self, run: Path, task: str | Task) -> EvaluationResult:
        from pretune.runs.finetune.inference import evaluate_run

        split, limit = self.options.split, self.options.limit
        scores = evaluate_run(
            [run, *self.other_runs],
            task=task,
            data=self.options.data,
            split=split,
            max_examples=limit,
            device=self.options.device,
            base=self.base,
            quantize=self.options.quantize,
        )
        counts = {"examples": scores["examples"]}
        notes = tuple(scores["notes"])
        return EvaluationResult(
            task=scores["task"], split=scores["split"], scores=scores["scores"], counts=counts, notes=notes
        )

    @property
    def few_shot_config(self) -> FewShotConfig:
        """Prompting options of a task."""
        return FewShotConfig(
            data=self.options.data,
            split=self.options.split,
            limit=self.options.limit,
            seed=self.options.seed,
            prompt=self.options.prompt,
            text_to_text=self.options.text_to_text,
            length=self.options.length,
            calibrate=self.options.calibrate,
            show=self.options.show,
        )


def subsample(examples: list[T], limit: int | None) -> list[T]:
    """Return `limit` evenly spaced examples.

    >>> subsample(list(range(10)), 4)
    [0, 2, 5, 7]
    """
    if limit is None or limit >= len(examples):
        return examples
    if limit < 1:
        raise UsageError(f"limit must be at least 1, got {limit}")
    return [examples[place * len(examples) // limit] for place in range(limit)]


def _build_result(name: str, metrics: Mapping[str, Any]) -> EvaluationResult:
    """Build a result from metrics of similarity and retrieval; integers are counts."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    groups = {key: _find_headline(value) for key, value in metrics.get("groups", {}).items()}
    return EvaluationResult(
        task=name,
        split=metrics.get("split"),
        scores={key: value for key, value in numbers.items() if isinstance(value, float)},
        counts={key: value for key, value in numbers.items() if isinstance(value, int)},
        groups=groups,
    )


def _find_headline(metrics: Mapping[str, Any]) -> float:
    """Return the headline of a group: the first number that is not a count."""
    return next(value for value in metrics.values() if isinstance(value, float))
