"""`pt.evaluate`: how good a model is at anything it can be asked, fine-tuned for it or not.

    evaluate("runs/small", "blimp,lambada")                    # as it is
    evaluate("runs/small", "boolq,copa", shots=[0, 1, 32])     # with solved examples before each question
    evaluate("runs/small", text=["held-out.txt"])              # perplexity
    evaluate("runs/small-sst2", "sst2")                        # a fine-tuned run, by its head

Who does the work depends on what the task asks for and on whether the model was fine-tuned for a task.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from torch import nn

from pretune.adaptation.io import load
from pretune.core import config
from pretune.core.errors import CheckpointError, DataError, UsageError, suggest
from pretune.core.hub import is_hub, resolve_path
from pretune.evaluation.cloze import evaluate_cloze, read_blanks
from pretune.evaluation.few_shot import FewShotConfig, evaluate_few_shot
from pretune.evaluation.generative import KINDS as WRITTEN
from pretune.evaluation.generative import evaluate_generation
from pretune.evaluation.minimal_pairs import evaluate_bias_pairs, evaluate_minimal_pairs
from pretune.evaluation.pair_files import read_bias_pairs, read_pair_folder, read_pairs
from pretune.evaluation.perplexity import evaluate_perplexity
from pretune.evaluation.result import EvaluationResult
from pretune.inference.embed import build_embedder
from pretune.inference.scoring import ScoringConfig
from pretune.metrics.averages import collect_suite_scores, compute_suite_averages
from pretune.runs.build_config import resolve_device
from pretune.runs.defaults import RUN_FILE
from pretune.runs.finetune.saved_task import TASK_FILE, SavedTask
from pretune.tasks import TASKS
from pretune.tasks.task import Task
from pretune.text.corpora import open_corpus
from pretune.training.records import RunFile

FILE_TASKS = ("minimal_pairs", "bias_pairs", "cloze", "scored_pairs", "triplets")
"""Tasks that are a file of one's own, given as `data`."""

ProgressCallback = Callable[[str, int, int], None]
"""Told the task, how much of it is done, and of how much."""

T = TypeVar("T")


class EvaluateOptions(TypedDict, total=False):
    """What else can be said; each has a default that fits most."""

    split: str | None
    limit: int | None  # so many examples
    seed: int  # of the shots, and of a limit
    order: str  # of the lines of `evaluate_minimal_pairs`: good-first or bad-first
    window: int | None  # tokens of a window, of a perplexity
    stride: int | None  # of which so many are judged
    prompt: str | None  # with {text}, {pair} and {answer}
    text_to_text: bool  # an encoder-decoder is asked as T5 was trained
    length: str | None  # how answers are compared: sum, token or byte
    calibrate: bool
    show: bool  # give the prompt of the first example
    base: str | os.PathLike[str] | None  # where the base model of an adapter is now
    words: bool  # later pieces of a word are masked with earlier ones (encoders)
    precision: Literal["float32", "bfloat16"] | None  # of the body; bfloat16 on a GPU where it is None


def evaluate(
    model: str | os.PathLike[str] | nn.Module,
    task: str | Task | Sequence[str | Task] = (),
    *,
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    data: str | os.PathLike[str] | None = None,
    shots: int | Sequence[int] | None = None,
    device: str | None = None,
    on_progress: ProgressCallback | None = None,
    **options: Unpack[EvaluateOptions],
) -> list[EvaluationResult]:
    """Results in the order asked for: perplexity of `text`, then tasks, each with each number of shots.

    `evaluate_task` names tasks of `pretune list tasks` (several with commas), or is one; "minimal_pairs", "bias_pairs",
    "cloze", "scored_pairs" and "triplets" are files of one's own, given as `data`, which is otherwise where tasks lie.
    A run that was fine-tuned is judged by its head, unless `shots` says that it is to be prompted; on what it was
    fine-tuned for, where nothing is named.
    """
    work = _Evaluation(model, device, data, on_progress, options)
    tasks = _parse_tasks(task) or ([] if text else work.finetuned_tasks)
    if not tasks and not text:
        if work.run is not None:
            raise UsageError(
                f"{work.run}: was fine-tuned on a table, and {work.run / 'scores.json'} has its scores; give another "
                "table to judge it by (--test FILE), or name a task (--task)"
            )
        raise UsageError(
            "nothing to evaluate on; name a task (--task, see `pretune list tasks`), or give a text (--text FILE) or a "
            "table (--test FILE)"
        )
    counts: list[int | None] = [None] if shots is None else [shots] if isinstance(shots, int) else [*shots]
    files = [text] if isinstance(text, str | os.PathLike) else [*text]
    found = [_run_timed(lambda: work.compute_perplexity(files))] if files else []
    for each in tasks:
        if _accepts_shots(each):
            found += [_run_timed(partial(work.evaluate_task, each, count)) for count in counts]
            continue
        alone = _run_timed(partial(work.evaluate_task, each, None))
        unread = ("it is judged without a prompt, so there were no shots",) if any(counts) else ()
        found.append(replace(alone, notes=(*alone.notes, *unread)))
    return [*found, *compute_averages(found)]


def compute_averages(results: Sequence[EvaluationResult]) -> list[EvaluationResult]:
    """Return the averages of GLUE, SuperGLUE and STS 2012 to 2016 whose tasks all have a result.

    There is one for each number of shots; tasks without a prompt count for each.
    """
    counts = {result.shots: None for result in results}
    if len(counts) > 1:
        counts.pop(None, None)
    found: dict[tuple[str, int | None], EvaluationResult] = {}
    for shots in counts:
        scores = {result.task: result.scores for result in results if result.shots in (shots, None)}
        for suite, value in compute_suite_averages(scores).items():
            members = collect_suite_scores(suite, scores)
            count = shots if any(each.shots is not None for each in results if each.task in members) else None
            found[suite, count] = EvaluationResult(
                task=f"{suite} average",
                scores={"average": value},
                shots=count,
                groups=members,
                counts={"tasks": len(members)},
            )
    return [*found.values()]


def _accepts_shots(task: str | Task) -> bool:
    """Whether there may be shots before its questions."""
    if isinstance(task, str) and task in FILE_TASKS:
        return False
    kind = (TASKS.get(task) if isinstance(task, str) else task).kind
    return kind in ("classification", "pair", "choice", *WRITTEN)


def _run_timed(compute: Callable[[], EvaluationResult]) -> EvaluationResult:
    """A result with the seconds that it took."""
    begun = time.monotonic()
    return replace(compute(), seconds=round(time.monotonic() - begun, 3))


def _parse_tasks(task: str | Task | Sequence[str | Task]) -> list[str | Task]:
    """Tasks by name or as values; a name that is not known is refused before anything is loaded."""
    given = [task] if isinstance(task, str | Task) else [*task]
    found: list[str | Task] = []
    for each in given:
        for name in [each] if isinstance(each, Task) else [part.strip() for part in each.split(",") if part.strip()]:
            if isinstance(name, str) and name not in TASKS and name not in FILE_TASKS:
                raise UsageError(
                    f"unknown task '{name[:60]}'{suggest(name, [*TASKS, *FILE_TASKS])} (`pretune list tasks` shows all; "
                    f"a table of your own: --test FILE; files of other kinds: {', '.join(FILE_TASKS)})"
                )
            found.append(name)
    return found


@dataclass(slots=True)
class _Evaluation:
    """A model, loaded when it is needed, and what was said of how to ask it."""

    model_or_path: str | os.PathLike[str] | nn.Module
    device: str | None
    data: str | os.PathLike[str] | None
    on_progress: ProgressCallback | None
    options: EvaluateOptions
    loaded_model: nn.Module | None = None

    @property
    def base(self) -> Path | None:
        """The directory of an adapter's base model, where it is given."""
        given = self.options.get("base")
        return None if given is None else resolve_path(given)

    @property
    def run(self) -> Path | None:
        """The directory of a fine-tuned run, where it is one."""
        path = (
            None
            if isinstance(self.model_or_path, nn.Module) or is_hub(self.model_or_path)
            else Path(self.model_or_path)
        )
        return path if path is not None and (path / TASK_FILE).is_file() else None

    @property
    def finetuned_tasks(self) -> list[str | Task]:
        """Those tasks of ours that a run was fine-tuned for."""
        return [] if self.run is None else [name for name in SavedTask.read(self.run).name.split(",") if name in TASKS]

    @property
    def finetuned_kinds(self) -> frozenset[str]:
        """The kinds of tasks that a run was fine-tuned for."""
        return frozenset() if self.run is None else SavedTask.read(self.run).kinds

    @property
    def pretrained_length(self) -> int | None:
        """How long the sequences were that a run was pre-trained on, where it is one of ours."""
        if (
            isinstance(self.model_or_path, nn.Module)
            or is_hub(self.model_or_path)
            or not (Path(self.model_or_path) / RUN_FILE).is_file()
        ):
            return None
        tree = config.read_record(RunFile, Path(self.model_or_path) / RUN_FILE, CheckpointError)
        return (tree.get("data") or {}).get("max_length") if "objective" in tree else None

    @property
    def model(self) -> nn.Module:
        """The model in memory."""
        if self.loaded_model is None:
            if isinstance(self.model_or_path, nn.Module):
                self.loaded_model = (
                    self.model_or_path if self.device is None else self.model_or_path.to(resolve_device(self.device))
                )
            else:
                self.loaded_model = load(Path(self.model_or_path), base=self.base, device=resolve_device(self.device))
        return self.loaded_model

    @property
    def scoring_config(self) -> ScoringConfig:
        gpu = next(self.model.parameters()).is_cuda
        precision = self.options.get("precision") or ("bfloat16" if gpu else "float32")
        return ScoringConfig(rest=self.options.get("words", True), precision=precision)

    def bind_progress(self, name: str) -> Callable[[int, int], None] | None:
        tell = self.on_progress
        return None if tell is None else lambda done, of: tell(name, done, of)

    def compute_perplexity(self, text: Sequence[str | os.PathLike[str]]) -> EvaluationResult:
        texts = [document.text for document in open_corpus([os.fspath(one) for one in text]).read_documents()]
        return evaluate_perplexity(
            self.model,
            texts,
            self.scoring_config,
            window=self.options.get("window"),
            stride=self.options.get("stride"),
            train_length=self.pretrained_length,
            on_progress=self.bind_progress("perplexity"),
        )

    def evaluate_task(self, task: str | Task, shots: int | None) -> EvaluationResult:
        """One task, by whoever can do it."""
        if isinstance(task, str) and task in FILE_TASKS:
            return self.evaluate_file(task)
        if self.data is not None and Path(self.data).is_file():
            raise UsageError(f"--data {self.data} is a file, which only {', '.join(FILE_TASKS)} read; give a directory")
        found = TASKS.get(task) if isinstance(task, str) else task
        if found.kind in ("pairs", "cloze"):
            return self.score_task(found)
        if found.kind in ("retrieval", "regression") and found.kind not in self.finetuned_kinds:
            return self.evaluate_embeddings(found)
        if self.run is not None and shots is None:
            return self.evaluate_finetuned(self.run, task)
        work = evaluate_generation if found.kind in WRITTEN else evaluate_few_shot
        return work(
            self.model, found, shots or 0, self.few_shot_config, self.scoring_config, self.bind_progress(found.name)
        )

    def evaluate_embeddings(self, task: Task) -> EvaluationResult:
        """Similarity and retrieval; a directory is given as it is, for it may say how vectors are made."""
        from pretune.evaluation.retrieval import BASELINE, evaluate_retrieval
        from pretune.evaluation.similarity import evaluate_similarity

        given = self.model_or_path if isinstance(self.model_or_path, nn.Module) else Path(self.model_or_path)
        tell, device = self.bind_progress(task.name), None if self.device is None else resolve_device(self.device)
        if task.kind == "retrieval":
            found = evaluate_retrieval(given, task, data=self.data, on_progress=tell, device=device)
            found[BASELINE] = evaluate_retrieval(BASELINE, task, data=self.data)["ndcg"]  # the simple way, beside it
        else:
            split, limit = self.options.get("split"), self.options.get("limit")
            found = evaluate_similarity(
                given, task, data=self.data, split=split, limit=limit, on_progress=tell, device=device
            )
        whole = task.kind == "retrieval" and self.options.get("limit") is not None
        notes = ("a limit is not for retrieval: all was read",) if whole else ()
        return replace(_build_result(task.name, found), notes=notes)

    def evaluate_file(self, name: str) -> EvaluationResult:
        """A file of one's own."""
        if self.data is None:
            raise UsageError(f"{name} is a file of your own; give it with --data FILE")
        path, limit, tell = Path(self.data), self.options.get("limit"), self.bind_progress(name)
        if name in ("scored_pairs", "triplets"):
            return self.evaluate_similarity(name, path)
        if name == "bias_pairs":
            return evaluate_bias_pairs(
                self.model, subsample([*read_bias_pairs(path)], limit), self.scoring_config, on_progress=tell
            )
        if name == "cloze":
            return evaluate_cloze(
                self.model, subsample(read_blanks(path), limit), self.scoring_config, name=name, on_progress=tell
            )
        order = self.options.get("order", "good-first")
        pairs, skipped = read_pair_folder(path, order) if path.is_dir() else (read_pairs(path, order), [])
        found = evaluate_minimal_pairs(self.model, subsample(pairs, limit), self.scoring_config, on_progress=tell)
        return replace(found, notes=(f"skipped, no pairs: {', '.join(skipped)}",)) if skipped else found

    def evaluate_similarity(self, name: str, path: Path) -> EvaluationResult:
        """Texts whose vectors are compared: with people's scores, or which of two is nearer."""
        from pretune.evaluation.similarity import compute_cosines, correlate, triplet_accuracy
        from pretune.runs.embedding.pair_dataset import read_dataset

        lessons = read_dataset(train=path)
        if (name == "triplets") != (lessons.columns == 3) or (name == "scored_pairs") != lessons.is_scored:
            wanted = "anchor, positive and negative" if name == "triplets" else "sentence1, sentence2 and score"
            raise DataError(f"{path}: {name} are a table with the columns {wanted}")
        given = self.model_or_path if isinstance(self.model_or_path, nn.Module) else Path(self.model_or_path)
        ready = build_embedder(given, device=None if self.device is None else resolve_device(self.device))
        kept = subsample([*zip(lessons.texts, lessons.gold, strict=True)], self.options.get("limit"))
        if name == "triplets":
            return _build_result(name, triplet_accuracy(ready, [(one, near, far) for (one, near, far), _ in kept]))
        near = compute_cosines(ready, [(one, other) for (one, other), _ in kept], on_progress=self.bind_progress(name))
        return _build_result(name, {"pairs": len(kept), **correlate([gold for _, gold in kept], near)})

    def score_task(self, task: Task) -> EvaluationResult:
        """Tasks for language models as they are."""
        there = task.find_available(self.data)
        split = self.options.get("split") or ("test" if "test" in there or not there else next(iter(there)))
        examples = subsample([*task.read(split, self.data)], self.options.get("limit"))
        work = evaluate_minimal_pairs if task.kind == "pairs" else evaluate_cloze
        found = work(
            self.model, examples, self.scoring_config, name=task.name, on_progress=self.bind_progress(task.name)
        )
        return replace(found, split=split)

    def evaluate_finetuned(self, run: Path, task: str | Task) -> EvaluationResult:
        from pretune.runs.finetune.finetuned_run import evaluate_run

        split, most = self.options.get("split"), self.options.get("limit")
        told = evaluate_run(
            run, task=task, data=self.data, split=split, max_examples=most, device=self.device, base=self.base
        )
        counts = {"examples": told["examples"]}
        notes = tuple(told["notes"])
        return EvaluationResult(
            task=told["task"], split=told["split"], scores=told["scores"], counts=counts, notes=notes
        )

    @property
    def few_shot_config(self) -> FewShotConfig:
        """How a task is put in words."""
        return FewShotConfig(
            data=self.data,
            split=self.options.get("split"),
            limit=self.options.get("limit"),
            seed=self.options.get("seed", 0),
            prompt=self.options.get("prompt"),
            text_to_text=self.options.get("text_to_text", False),
            length=self.options.get("length"),
            calibrate=self.options.get("calibrate", False),
            show=self.options.get("show", False),
        )


def subsample(examples: list[T], limit: int | None) -> list[T]:
    """So many of them, evenly spread.

    >>> subsample(list(range(10)), 4)
    [0, 2, 5, 7]
    """
    if limit is None or limit >= len(examples):
        return examples
    if limit < 1:
        raise UsageError(f"a limit must be 1 or more, found {limit}")
    return [examples[at * len(examples) // limit] for at in range(limit)]


def _build_result(name: str, metrics: Mapping[str, Any]) -> EvaluationResult:
    """A result out of what similarity and retrieval give: numbers that are whole are counts."""
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
    """The headline among what is told of a part: the first number that is no count."""
    return next(value for value in metrics.values() if isinstance(value, float))
