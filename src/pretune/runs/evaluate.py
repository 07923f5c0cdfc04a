"""`pt.evaluate`: perplexity, zero-shot and few-shot tasks, embeddings, and fine-tuned runs.

    evaluate("runs/small", "blimp,lambada")                    # without fine-tuning
    evaluate("runs/small", "boolq,copa", shots=[0, 1, 32])     # with in-context examples
    evaluate("runs/small", text=["held-out.txt"])              # perplexity
    evaluate("runs/small-sst2", "sst2")                        # a fine-tuned run, with its task head

The evaluator depends on the kind of the task and on whether the model was fine-tuned for a task.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import nn

from pretune.adaptation.io import load
from pretune.core.api import ResultList, StrPath, take_options
from pretune.core.config import check_path
from pretune.core.errors import CheckpointError, DataError, UsageError, suggest
from pretune.core.hub import is_hub, resolve_path, resolve_short_name
from pretune.core.run_dir import RunDir
from pretune.evaluation import EvaluationResult
from pretune.evaluation.cloze import evaluate_cloze_choices
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
from pretune.metrics import collect_suite_scores, compute_suite_averages
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.task_options import FILE_TASKS, EvaluateOptions
from pretune.tasks import TASKS
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import AnswerPrompt, ChoicePrompt
from pretune.text.corpora import open_corpus
from pretune.training.distributed import resolve_device
from pretune.training.records import RunFile, read_run_record

T = TypeVar("T")
Source = StrPath | nn.Module
"""A model in memory, or its directory."""
SENTENCE_EVALUATORS: Mapping[str, Callable[..., EvaluationResult]] = {
    "minimal_pairs": evaluate_minimal_pairs,
    "cloze": evaluate_cloze,
    "cloze_choice": evaluate_cloze_choices,
}
"""Evaluators that need no prompt and no head."""


@dataclass(slots=True)
class EvaluationJob:
    """The evaluation of one model, which is loaded once, on one task after the other."""

    source: Source  # of an ensemble, its first run
    options: EvaluateOptions
    other_runs: tuple[StrPath, ...] = ()  # of an ensemble, without its first run
    loaded_model: nn.Module | None = None

    def __post_init__(self) -> None:
        if self.options.data is not None:
            check_path(self.options.data, DataError)

    @property
    def base(self) -> Path | None:
        """Directory of an adapter's base model, if set."""
        base = self.options.base
        return None if base is None else resolve_path(base)

    @property
    def run_dir(self) -> RunDir | None:
        """Directory of the model; None for a model in memory or of the hub."""
        if isinstance(self.source, nn.Module) or is_hub(self.source):
            return None
        return RunDir(resolve_short_name(self.source))

    @property
    def run(self) -> Path | None:
        """Directory of a fine-tuned run, or None for other models."""
        run_dir = self.run_dir
        return run_dir.path if run_dir is not None and run_dir.is_finetuned else None

    @property
    def pretrained_length(self) -> int | None:
        """Sequence length of the run's pre-training, if known."""
        run_dir = self.run_dir
        if run_dir is None or not run_dir.settings.is_file():
            return None
        tree = read_run_record(RunFile, run_dir.settings, CheckpointError)
        return (tree.get("data") or {}).get("max_length") if "objective" in tree else None

    @property
    def model(self) -> nn.Module:
        """The loaded model."""
        options, source = self.options, self.source
        if self.loaded_model is not None:
            return self.loaded_model
        if isinstance(source, nn.Module):
            self.loaded_model = source if options.device is None else source.to(resolve_device(options.device))
        else:
            device = resolve_device(options.device)
            self.loaded_model = load(Path(source), base=self.base, device=device, quantize=options.quantize)
        return self.loaded_model

    @property
    def scoring_config(self) -> ScoringConfig:
        options, is_on_gpu = self.options, next(self.model.parameters()).is_cuda
        precision = options.precision or ("bfloat16" if is_on_gpu else "float32")
        return ScoringConfig(rest=options.words, bidirectional=options.bidirectional, precision=precision)

    def bind_progress(self, name: str) -> Callable[[int, int], None] | None:
        report = self.options.on_progress
        return None if report is None else lambda count, total: report(name, count, total)

    def compute_perplexity(self, text: Sequence[StrPath]) -> EvaluationResult:
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
        if isinstance(task, str) and _is_file_task(task, self.options):
            return self.evaluate_file(task)
        if self.options.data is not None and Path(self.options.data).is_file():
            raise UsageError(
                f"--data {self.options.data} is a file, which only {', '.join(FILE_TASKS)} support; pass a directory"
            )
        task_spec = TASKS.get(task) if isinstance(task, str) else task
        evaluator = get_type(task_spec).scoring.evaluator
        if isinstance(evaluator, str) and evaluator in SENTENCE_EVALUATORS:
            return self.score_task(task_spec, SENTENCE_EVALUATORS[evaluator])
        kinds = frozenset() if self.run is None else SavedTask.read(self.run).kinds
        if evaluator in ("retrieval", "similarity") and task_spec.kind not in kinds:
            return self.evaluate_embeddings(task_spec)
        if self.run is not None and shots is None:
            return self.evaluate_finetuned(self.run, task)
        if self.other_runs:
            raise UsageError("an ensemble is evaluated with its task heads; remove --shots, or pass one model")
        work = evaluate_generation if isinstance(evaluator, AnswerPrompt) else evaluate_few_shot
        config = FewShotConfig(**{field.name: getattr(self.options, field.name) for field in fields(FewShotConfig)})
        report = self.bind_progress(task_spec.name)
        return work(self.model, task_spec, shots or 0, config, self.scoring_config, report)

    def evaluate_embeddings(self, task: Task) -> EvaluationResult:
        """Evaluate similarity or retrieval."""
        from pretune.evaluation.embedding import BASELINE, evaluate_retrieval, evaluate_similarity

        options, report = self.options, self.bind_progress(task.name)
        if get_type(task).scoring.evaluator == "similarity":
            embedder = self.build_embedder()
            return evaluate_similarity(
                embedder, task, data=options.data, split=options.split, limit=options.limit, on_progress=report
            )
        result = evaluate_retrieval(self.build_embedder(normalise=True), task, data=options.data, on_progress=report)
        baseline = evaluate_retrieval(BASELINE, task, data=options.data).scores["ndcg"]
        notes = () if options.limit is None else ("limit is ignored for retrieval",)
        return replace(result, scores={**result.scores, BASELINE: baseline}, notes=notes)

    def build_embedder(self, *, normalise: bool | None = None) -> Embedder:
        """Build the embedder of the model; a directory is passed as a path, since it may configure its pooling."""
        model = self.source if isinstance(self.source, nn.Module) else Path(self.source)
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
            bias_pairs = subsample(read_bias_pairs(path), limit)
            return evaluate_bias_pairs(self.model, bias_pairs, self.scoring_config, on_progress=report)
        if name == "cloze":
            blanks = subsample(read_blanks(path), limit)
            return evaluate_cloze(self.model, blanks, self.scoring_config, name=name, on_progress=report)
        order = self.options.order
        pairs, skipped_files = read_pair_folder(path, order) if path.is_dir() else (read_pairs(path, order), [])
        result = evaluate_minimal_pairs(self.model, subsample(pairs, limit), self.scoring_config, on_progress=report)
        notes = (f"skipped files without pairs: {', '.join(skipped_files)}",) if skipped_files else ()
        return replace(result, notes=(*result.notes, *notes))

    def evaluate_similarity(self, name: str, path: Path) -> EvaluationResult:
        """Compare embeddings of texts: correlation with gold scores, or triplet accuracy."""
        from pretune.evaluation.embedding import compute_cosines, correlate, evaluate_triplets
        from pretune.tasks.types.embedding import read_dataset

        dataset = read_dataset(train=path)
        if (name == "triplets") != (dataset.columns == 3) or (name == "scored_pairs") != dataset.is_scored:
            columns = "anchor, positive and negative" if name == "triplets" else "sentence1, sentence2 and score"
            raise DataError(f"{path}: {name} needs a table with the columns {columns}")
        ready = self.build_embedder()
        rows = subsample([*zip(dataset.texts, dataset.gold, strict=True)], self.options.limit)
        if name == "triplets":
            triplets = [(anchor, positive, negative) for (anchor, positive, negative), _ in rows]
            return evaluate_triplets(ready, triplets)
        pairs = [(first, second) for (first, second), _ in rows]
        similarities = compute_cosines(ready, pairs, self.bind_progress(name))
        scores = correlate([gold for _, gold in rows], similarities)
        return EvaluationResult(task=name, scores=scores, counts={"pairs": len(rows)})

    def score_task(self, task: Task, work: Callable[..., EvaluationResult]) -> EvaluationResult:
        """Score minimal pairs or cloze with the language model."""
        available = task.find_available(self.options.data)
        split = self.options.split or ("test" if "test" in available or not available else next(iter(available)))
        examples = subsample([*task.read(split, self.options.data)], self.options.limit)
        result = work(
            self.model, examples, self.scoring_config, name=task.name, on_progress=self.bind_progress(task.name)
        )
        return replace(result, split=split)

    def evaluate_finetuned(self, run: Path, task: str | Task) -> EvaluationResult:
        from pretune.runs.finetune.inference import evaluate_run

        options = self.options
        return evaluate_run(
            [run, *self.other_runs],
            task=task,
            data=options.data,
            split=options.split,
            max_examples=options.limit,
            device=options.device,
            base=self.base,
            quantize=options.quantize,
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


@take_options(EvaluateOptions, required_names=["model"])
def evaluate(options: EvaluateOptions) -> ResultList:
    """Evaluate a model on tasks, with or without few-shot prompts, and on the perplexity of texts.

    A fine-tuned run is evaluated with its task head, unless `shots` selects prompting; by default on its own task.

    Args:
        model: A model, a run, a Hugging Face directory, or hf:OWNER/NAME. Several fine-tuned runs of one task are
            evaluated as an ensemble.
        task: Names of tasks (`pt.list_tasks`; comma-separated, or a list), or a Task. "minimal_pairs", "bias_pairs",
            "cloze", "scored_pairs" and "triplets" take a file of yours as `data`.
        text: Text files whose perplexity is computed.
        data: Directory of task data, or the file of a task that takes one.
        shots: Solved examples in the prompt; several numbers give a result each.
        split: Split of the task; None: the one with public labels.
        limit: Maximum number of examples.
        seed: Seed of the shots and of the subsample that `limit` draws.
        show: Add the rendered prompt of the first example to the result.
        prompt: Prompt template with {text}, {pair} and {answer}; None: that of the task.
        calibrate: Contextual calibration: subtract the model's answer to an empty input (Zhao et al., 2021).
        length: Normalization of the answers' log-probabilities: "sum", "token" or "byte".
        text_to_text: Prompt an encoder-decoder in the text-to-text format of T5.
        order: Order of the two lines of "minimal_pairs": "good-first" or "bad-first".
        words: Mask the later pieces of a word together with the earlier ones (encoders).
        bidirectional: Score each token from both sides, with a decoder that was trained with `masked_next`.
        window: Context window of a perplexity, in tokens.
        stride: Tokens scored per window.
        pooling: Pooling of embeddings (similarity, retrieval): "mean", "cls" …; None: that of the model's directory.
        base: Directory of an adapter's base model, if it was moved.
        device: "cpu" or "cuda"; None: a GPU if available.
        precision: "float32" or "bfloat16"; None: bfloat16 on a GPU.
        quantize: "int8", "int4" or "nf4" reduces the weights of linear layers to 8 or 4 bits.
        on_progress: Called with the name of a stage and the completed share.

    Returns:
        A list of results: the perplexity of `text`, then the tasks in order, each with each number of shots, then
        averages of benchmark suites. `.to_dict()` and `.to_pandas()` give it as data.

    Raises:
        UsageError: an unknown task, or a model that cannot be evaluated on it.
        DataError: missing or damaged task data.
    """
    return run_evaluate(options)


def run_evaluate(options: EvaluateOptions) -> ResultList:
    """Evaluate a model on tasks and texts."""
    model, text, shots = options.model, options.text, options.shots
    models = [model] if isinstance(model, str | os.PathLike | nn.Module) else [*model]
    if not models:
        raise UsageError("no model; pass a model, a run, or several runs of one task")
    work = EvaluationJob(models[0], options, other_runs=_check_ensemble(models[1:], models[0]))
    tasks = _parse_tasks(options.task)
    if not tasks and not text:
        if work.run is None:
            raise UsageError(
                "nothing to evaluate; pass a task (--task, see `pretune list tasks`), a text (--text FILE) or a table "
                "(--test FILE)"
            )
        tasks = [name for name in SavedTask.read(work.run).name.split(",") if name in TASKS]
        if not tasks:
            raise UsageError(
                f"{work.run}: fine-tuned on a table, with scores in {work.run / 'scores.json'}; pass another "
                "table (--test FILE) or a task (--task)"
            )
    counts: list[int | None] = [None] if shots is None else [shots] if isinstance(shots, int) else [*shots]
    files = [text] if isinstance(text, str | os.PathLike) else [*text]
    results = [_run_timed(lambda: work.compute_perplexity(files))] if files else []
    for entry in tasks:
        reads_shots = _accepts_shots(entry)
        entry_results = [
            _run_timed(partial(work.evaluate_task, entry, count)) for count in (counts if reads_shots else [None])
        ]
        unused_shots = ("scored without a prompt; shots are ignored",) if any(counts) and not reads_shots else ()
        table_notes = entry.notes if isinstance(entry, Task) else ()
        results += [replace(result, notes=(*table_notes, *result.notes, *unused_shots)) for result in entry_results]
    return ResultList([*results, *compute_averages(results)])


def _check_ensemble(other_runs: Sequence[Source], first: Source) -> tuple[StrPath, ...]:
    """Return the other runs of an ensemble; all models must be fine-tuned runs."""
    paths = tuple(run for run in other_runs if isinstance(run, str | os.PathLike))
    if other_runs and (isinstance(first, nn.Module) or len(paths) < len(other_runs)):
        raise UsageError("an ensemble consists of directories of fine-tuned runs; pass their paths")
    for path in (first, *paths) if paths and not isinstance(first, nn.Module) else ():
        SavedTask.read(Path(path))
    return paths


def compute_averages(results: Sequence[EvaluationResult]) -> list[EvaluationResult]:
    """Return the averages of GLUE, SuperGLUE and STS 2012 to 2016 whose tasks all have a result.

    There is one for each number of shots; tasks without a prompt count for each.
    """
    counts = {result.shots: None for result in results}
    if len(counts) > 1:
        counts.pop(None, None)
    averages: dict[tuple[str, int | None], EvaluationResult] = {}
    for shots in counts:
        scores = {result.task: result.scores for result in results if result.shots in (shots, None)}
        for suite, value in compute_suite_averages(scores).items():
            members = collect_suite_scores(suite, scores)
            count = shots if any(outcome.shots is not None for outcome in results if outcome.task in members) else None
            averages[suite, count] = EvaluationResult(
                task=f"{suite} average",
                scores={"average": value},
                shots=count,
                groups=members,
                counts={"tasks": len(members)},
            )
    return [*averages.values()]


def _is_file_task(task: str, options: EvaluateOptions) -> bool:
    """Return whether a task reads the user's file; one that is built in does so only if `data` is no directory."""
    return task in FILE_TASKS and (task not in TASKS or (options.data is not None and not Path(options.data).is_dir()))


def _accepts_shots(task: str | Task) -> bool:
    """Return whether a task accepts in-context examples."""
    if isinstance(task, str) and task in FILE_TASKS:
        return False
    task_type = get_type(TASKS.get(task) if isinstance(task, str) else task)
    return isinstance(task_type.scoring.evaluator, ChoicePrompt | AnswerPrompt)


def _run_timed(compute: Callable[[], EvaluationResult]) -> EvaluationResult:
    """Return a result with its wall-clock seconds."""
    start = time.monotonic()
    return replace(compute(), seconds=round(time.monotonic() - start, 3))


def _parse_tasks(task: str | Task | Sequence[str | Task]) -> list[str | Task]:
    """Return tasks by name or value; unknown names raise before anything is loaded."""
    entries = [task] if isinstance(task, str | Task) else [*task]
    tasks: list[str | Task] = []
    for entry in entries:
        for name in [entry] if isinstance(entry, Task) else [part.strip() for part in entry.split(",") if part.strip()]:
            if isinstance(name, str) and name not in TASKS and name not in FILE_TASKS:
                raise UsageError(
                    f"unknown task '{name[:60]}'{suggest(name, [*TASKS, *FILE_TASKS])} (see `pretune list tasks`; "
                    f"your own table: --test FILE; other files: {', '.join(FILE_TASKS)})"
                )
            tasks.append(name)
    return tasks
