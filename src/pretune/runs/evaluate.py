"""`pt.evaluate`: perplexity, zero-shot and few-shot tasks, embeddings, and fine-tuned runs.

    evaluate("runs/small", "blimp,lambada")                    # without fine-tuning
    evaluate("runs/small", "boolq,copa", shots=[0, 1, 32])     # with in-context examples
    evaluate("runs/small", text=["held-out.txt"])              # perplexity
    evaluate("runs/small-sst2", "sst2")                        # a fine-tuned run, with its task head

The evaluator depends on the kind of the task and on whether the model was fine-tuned for a task.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from pretune.core.api import ResultList, take_options
from pretune.core.errors import UsageError, suggest
from pretune.evaluation import EvaluationResult
from pretune.metrics import collect_suite_scores, compute_suite_averages
from pretune.runs.evaluation_job import EvaluationJob
from pretune.runs.finetune.saved_task import SavedTask
from pretune.runs.task_options import FILE_TASKS, EvaluateOptions
from pretune.tasks import TASKS
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import AnswerPrompt, ChoicePrompt


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
        quantize: "int8" or "nf4" reduces the weights of linear layers to 8 or 4 bits.
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
    tasks = _parse_tasks(options.task) or ([] if text else work.finetuned_tasks)
    if not tasks and not text:
        if work.run is not None:
            raise UsageError(
                f"{work.run}: fine-tuned on a table, with scores in {work.run / 'scores.json'}; pass another "
                "table (--test FILE) or a task (--task)"
            )
        raise UsageError(
            "nothing to evaluate; pass a task (--task, see `pretune list tasks`), a text (--text FILE) or a table "
            "(--test FILE)"
        )
    counts: list[int | None] = [None] if shots is None else [shots] if isinstance(shots, int) else [*shots]
    files = [text] if isinstance(text, str | os.PathLike) else [*text]
    results = [_run_timed(lambda: work.compute_perplexity(files))] if files else []
    for entry in tasks:
        if _accepts_shots(entry):
            entry_results = [_run_timed(partial(work.evaluate_task, entry, count)) for count in counts]
            unused_shots: tuple[str, ...] = ()
        else:
            entry_results = [_run_timed(partial(work.evaluate_task, entry, None))]
            unused_shots = ("scored without a prompt; shots are ignored",) if any(counts) else ()
        table_notes = entry.notes if isinstance(entry, Task) else ()
        results += [replace(result, notes=(*table_notes, *result.notes, *unused_shots)) for result in entry_results]
    return ResultList([*results, *compute_averages(results)])


def _check_ensemble(
    other_runs: Sequence[str | os.PathLike[str] | nn.Module], first: str | os.PathLike[str] | nn.Module
) -> tuple[str | os.PathLike[str], ...]:
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
