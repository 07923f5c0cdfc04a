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
from pretune.core.errors import CheckpointError, DataError, UsageError, nearest
from pretune.core.hub import is_hub, located
from pretune.evaluation.cloze import last_words, read_blanks
from pretune.evaluation.few_shot import Trial, few_shot
from pretune.evaluation.generative import KINDS as WRITTEN
from pretune.evaluation.generative import written
from pretune.evaluation.minimal_pairs import bias_pairs, minimal_pairs
from pretune.evaluation.pair_files import read_bias_pairs, read_pair_folder, read_pairs
from pretune.evaluation.perplexity import text_perplexity
from pretune.evaluation.result import Result
from pretune.inference.embed import embedder
from pretune.inference.scoring import Asking
from pretune.metrics.averages import suite_averages, suite_members
from pretune.runs.build_config import device_of
from pretune.runs.defaults import RUN
from pretune.runs.finetune.saved_task import TASK, Kept
from pretune.tasks import TASKS
from pretune.tasks.task import Task
from pretune.text.corpora import open_corpus
from pretune.training.records import Tree

FILES = ("minimal_pairs", "bias_pairs", "cloze", "scored_pairs", "triplets")
"""Tasks that are a file of one's own, given as `data`."""

Tell = Callable[[str, int, int], None]
"""Told the task, how much of it is done, and of how much."""

T = TypeVar("T")


class How(TypedDict, total=False):
    """What else can be said; each has a default that fits most."""

    split: str | None
    limit: int | None  # so many examples
    seed: int  # of the shots, and of a limit
    order: str  # of the lines of `minimal_pairs`: good-first or bad-first
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
    tell: Tell | None = None,
    **how: Unpack[How],
) -> list[Result]:
    """Results in the order asked for: perplexity of `text`, then tasks, each with each number of shots.

    `task` names tasks of `pretune list tasks` (several with commas), or is one; "minimal_pairs", "bias_pairs",
    "cloze", "scored_pairs" and "triplets" are files of one's own, given as `data`, which is otherwise where tasks lie.
    A run that was fine-tuned is judged by its head, unless `shots` says that it is to be prompted; on what it was
    fine-tuned for, where nothing is named.
    """
    work = _Work(model, device, data, tell, how)
    tasks = _named(task) or ([] if text else work.learnt_tasks)
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
    found = [_timed(lambda: work.perplexity(files))] if files else []
    for each in tasks:
        if _prompted(each):
            found += [_timed(partial(work.task, each, count)) for count in counts]
            continue
        alone = _timed(partial(work.task, each, None))
        unread = ("it is judged without a prompt, so there were no shots",) if any(counts) else ()
        found.append(replace(alone, notes=(*alone.notes, *unread)))
    return [*found, *averages(found)]


def averages(results: Sequence[Result]) -> list[Result]:
    """Return the averages of GLUE, SuperGLUE and STS 2012 to 2016 whose tasks all have a result.

    There is one for each number of shots; tasks without a prompt count for each.
    """
    counts = {result.shots: None for result in results}
    if len(counts) > 1:
        counts.pop(None, None)
    found: dict[tuple[str, int | None], Result] = {}
    for shots in counts:
        scores = {result.task: result.scores for result in results if result.shots in (shots, None)}
        for suite, value in suite_averages(scores).items():
            members = suite_members(suite, scores)
            count = shots if any(each.shots is not None for each in results if each.task in members) else None
            found[suite, count] = Result(
                task=f"{suite} average",
                scores={"average": value},
                shots=count,
                groups=members,
                counts={"tasks": len(members)},
            )
    return [*found.values()]


def _prompted(task: str | Task) -> bool:
    """Whether there may be shots before its questions."""
    if isinstance(task, str) and task in FILES:
        return False
    kind = (TASKS.get(task) if isinstance(task, str) else task).kind
    return kind in ("classification", "pair", "choice", *WRITTEN)


def _timed(work: Callable[[], Result]) -> Result:
    """A result with the seconds that it took."""
    begun = time.monotonic()
    return replace(work(), seconds=round(time.monotonic() - begun, 3))


def _named(task: str | Task | Sequence[str | Task]) -> list[str | Task]:
    """Tasks by name or as values; a name that is not known is refused before anything is loaded."""
    given = [task] if isinstance(task, str | Task) else [*task]
    found: list[str | Task] = []
    for each in given:
        for name in [each] if isinstance(each, Task) else [part.strip() for part in each.split(",") if part.strip()]:
            if isinstance(name, str) and name not in TASKS and name not in FILES:
                raise UsageError(
                    f"unknown task '{name[:60]}'{nearest(name, [*TASKS, *FILES])} (`pretune list tasks` shows all; "
                    f"a table of your own: --test FILE; files of other kinds: {', '.join(FILES)})"
                )
            found.append(name)
    return found


@dataclass(slots=True)
class _Work:
    """A model, loaded when it is needed, and what was said of how to ask it."""

    given: str | os.PathLike[str] | nn.Module
    device: str | None
    data: str | os.PathLike[str] | None
    tell: Tell | None
    how: How
    loaded: nn.Module | None = None

    @property
    def base(self) -> Path | None:
        """The directory of an adapter's base model, where it is given."""
        given = self.how.get("base")
        return None if given is None else located(given)

    @property
    def run(self) -> Path | None:
        """The directory of a fine-tuned run, where it is one."""
        path = None if isinstance(self.given, nn.Module) or is_hub(self.given) else Path(self.given)
        return path if path is not None and (path / TASK).is_file() else None

    @property
    def learnt_tasks(self) -> list[str | Task]:
        """Those tasks of ours that a run was fine-tuned for."""
        return [] if self.run is None else [name for name in Kept.read(self.run).name.split(",") if name in TASKS]

    @property
    def learnt(self) -> frozenset[str]:
        """The kinds of tasks that a run was fine-tuned for."""
        return frozenset() if self.run is None else Kept.read(self.run).kinds

    @property
    def read(self) -> int | None:
        """How long the sequences were that a run was pre-trained on, where it is one of ours."""
        if isinstance(self.given, nn.Module) or is_hub(self.given) or not (Path(self.given) / RUN).is_file():
            return None
        tree = config.read_record(Tree, Path(self.given) / RUN, CheckpointError)
        return (tree.get("data") or {}).get("max_length") if "objective" in tree else None

    @property
    def model(self) -> nn.Module:
        """The model in memory."""
        if self.loaded is None:
            if isinstance(self.given, nn.Module):
                self.loaded = self.given if self.device is None else self.given.to(device_of(self.device))
            else:
                self.loaded = load(Path(self.given), base=self.base, device=device_of(self.device))
        return self.loaded

    @property
    def asking(self) -> Asking:
        gpu = next(self.model.parameters()).is_cuda
        precision = self.how.get("precision") or ("bfloat16" if gpu else "float32")
        return Asking(rest=self.how.get("words", True), precision=precision)

    def told(self, name: str) -> Callable[[int, int], None] | None:
        tell = self.tell
        return None if tell is None else lambda done, of: tell(name, done, of)

    def perplexity(self, text: Sequence[str | os.PathLike[str]]) -> Result:
        texts = [document.text for document in open_corpus([os.fspath(one) for one in text]).documents()]
        return text_perplexity(
            self.model,
            texts,
            self.asking,
            window=self.how.get("window"),
            stride=self.how.get("stride"),
            learnt=self.read,
            tell=self.told("perplexity"),
        )

    def task(self, task: str | Task, shots: int | None) -> Result:
        """One task, by whoever can do it."""
        if isinstance(task, str) and task in FILES:
            return self.own(task)
        if self.data is not None and Path(self.data).is_file():
            raise UsageError(f"--data {self.data} is a file, which only {', '.join(FILES)} read; give a directory")
        found = TASKS.get(task) if isinstance(task, str) else task
        if found.kind in ("pairs", "cloze"):
            return self.scored(found)
        if found.kind in ("retrieval", "regression") and found.kind not in self.learnt:
            return self.by_vectors(found)
        if self.run is not None and shots is None:
            return self.fine_tuned(self.run, task)
        work = written if found.kind in WRITTEN else few_shot
        return work(self.model, found, shots or 0, self.trial, self.asking, self.told(found.name))

    def by_vectors(self, task: Task) -> Result:
        """Similarity and retrieval; a directory is given as it is, for it may say how vectors are made."""
        from pretune.evaluation.retrieval import BASELINE, retrieval
        from pretune.evaluation.similarity import similarity

        given = self.given if isinstance(self.given, nn.Module) else Path(self.given)
        tell, device = self.told(task.name), None if self.device is None else device_of(self.device)
        if task.kind == "retrieval":
            found = retrieval(given, task, data=self.data, tell=tell, device=device)
            found[BASELINE] = retrieval(BASELINE, task, data=self.data)["ndcg"]  # the simple way, beside it
        else:
            split, limit = self.how.get("split"), self.how.get("limit")
            found = similarity(given, task, data=self.data, split=split, limit=limit, tell=tell, device=device)
        whole = task.kind == "retrieval" and self.how.get("limit") is not None
        notes = ("a limit is not for retrieval: all was read",) if whole else ()
        return replace(_told(task.name, found), notes=notes)

    def own(self, name: str) -> Result:
        """A file of one's own."""
        if self.data is None:
            raise UsageError(f"{name} is a file of your own; give it with --data FILE")
        path, limit, tell = Path(self.data), self.how.get("limit"), self.told(name)
        if name in ("scored_pairs", "triplets"):
            return self.compared(name, path)
        if name == "bias_pairs":
            return bias_pairs(self.model, thinned([*read_bias_pairs(path)], limit), self.asking, tell=tell)
        if name == "cloze":
            return last_words(self.model, thinned(read_blanks(path), limit), self.asking, name=name, tell=tell)
        order = self.how.get("order", "good-first")
        pairs, skipped = read_pair_folder(path, order) if path.is_dir() else (read_pairs(path, order), [])
        found = minimal_pairs(self.model, thinned(pairs, limit), self.asking, tell=tell)
        return replace(found, notes=(f"skipped, no pairs: {', '.join(skipped)}",)) if skipped else found

    def compared(self, name: str, path: Path) -> Result:
        """Texts whose vectors are compared: with people's scores, or which of two is nearer."""
        from pretune.evaluation.similarity import correlations, cosines, triplet_accuracy
        from pretune.runs.embedding.pair_dataset import read

        lessons = read(train=path)
        if (name == "triplets") != (lessons.columns == 3) or (name == "scored_pairs") != lessons.scored:
            wanted = "anchor, positive and negative" if name == "triplets" else "sentence1, sentence2 and score"
            raise DataError(f"{path}: {name} are a table with the columns {wanted}")
        given = self.given if isinstance(self.given, nn.Module) else Path(self.given)
        ready = embedder(given, device=None if self.device is None else device_of(self.device))
        kept = thinned([*zip(lessons.texts, lessons.gold, strict=True)], self.how.get("limit"))
        if name == "triplets":
            return _told(name, triplet_accuracy(ready, [(one, near, far) for (one, near, far), _ in kept]))
        near = cosines(ready, [(one, other) for (one, other), _ in kept], tell=self.told(name))
        return _told(name, {"pairs": len(kept), **correlations([gold for _, gold in kept], near)})

    def scored(self, task: Task) -> Result:
        """Tasks for language models as they are."""
        there = task.available(self.data)
        split = self.how.get("split") or ("test" if "test" in there or not there else next(iter(there)))
        examples = thinned([*task.read(split, self.data)], self.how.get("limit"))
        work = minimal_pairs if task.kind == "pairs" else last_words
        found = work(self.model, examples, self.asking, name=task.name, tell=self.told(task.name))
        return replace(found, split=split)

    def fine_tuned(self, run: Path, task: str | Task) -> Result:
        from pretune.runs.finetune.finetuned_run import evaluate_run

        split, most = self.how.get("split"), self.how.get("limit")
        told = evaluate_run(run, task=task, data=self.data, split=split, most=most, device=self.device, base=self.base)
        counts = {"examples": told["examples"]}
        notes = tuple(told["notes"])
        return Result(task=told["task"], split=told["split"], scores=told["scores"], counts=counts, notes=notes)

    @property
    def trial(self) -> Trial:
        """How a task is put in words."""
        return Trial(
            data=self.data,
            split=self.how.get("split"),
            limit=self.how.get("limit"),
            seed=self.how.get("seed", 0),
            prompt=self.how.get("prompt"),
            text_to_text=self.how.get("text_to_text", False),
            length=self.how.get("length"),
            calibrate=self.how.get("calibrate", False),
            show=self.how.get("show", False),
        )


def thinned(examples: list[T], limit: int | None) -> list[T]:
    """So many of them, evenly spread.

    >>> thinned(list(range(10)), 4)
    [0, 2, 5, 7]
    """
    if limit is None or limit >= len(examples):
        return examples
    if limit < 1:
        raise UsageError(f"a limit must be 1 or more, found {limit}")
    return [examples[at * len(examples) // limit] for at in range(limit)]


def _told(name: str, found: Mapping[str, Any]) -> Result:
    """A result out of what similarity and retrieval give: numbers that are whole are counts."""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    groups = {key: _first(value) for key, value in found.get("groups", {}).items()}
    return Result(
        task=name,
        split=found.get("split"),
        scores={key: value for key, value in numbers.items() if isinstance(value, float)},
        counts={key: value for key, value in numbers.items() if isinstance(value, int)},
        groups=groups,
    )


def _first(found: Mapping[str, Any]) -> float:
    """The headline among what is told of a part: the first number that is no count."""
    return next(value for value in found.values() if isinstance(value, float))
