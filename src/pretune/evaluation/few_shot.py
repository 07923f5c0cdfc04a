"""A task put to a model with k solved examples before each question: from its files to a result."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import nn

from pretune.core.counted import counted
from pretune.core.errors import DataError, UsageError
from pretune.evaluation.prompting import Choosing, Chosen, Prompter, probabilities
from pretune.evaluation.prompts import Prompt, options, prompt_of, text_to_text
from pretune.evaluation.result import Result
from pretune.evaluation.shots import draw
from pretune.inference.scoring import PLAIN, Asking
from pretune.tasks.decode import Prediction, score
from pretune.tasks.example import Example
from pretune.tasks.splits import subset
from pretune.tasks.task import Task

JUDGED = ("test", "dev", "all")
"""Which split is evaluated where none is asked for, the first that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What of a task is put, and how."""

    data: str | os.PathLike[str] | None = None
    split: str | None = None
    limit: int | None = None  # so many examples, stratified
    seed: int = 0  # of the shots, and of a limit
    prompt: Prompt | str | None = None  # another wording; of a text alone the answers are the usual ones
    text_to_text: bool = False  # an encoder-decoder is asked as T5 was trained
    length: str | None = None  # how answers are compared; classes by the sum, choices by the mean over tokens
    calibrate: bool = False
    show: bool = False


USUAL = Trial()


class Lost(NamedTuple):
    """What did not fit into a model: shots, of each example, and texts that were too long even without them."""

    dropped: Sequence[int]
    cut: int


def few_shot(
    model: nn.Module,
    task: Task,
    shots: int = 0,
    trial: Trial = USUAL,
    asking: Asking = PLAIN,
    tell: Callable[[int, int], None] | None = None,
) -> Result:
    """How often a model chooses the right answer, with so many solved examples before each question."""
    prompt, asking = _put(task, trial, asking)
    split, examples, solved, source = asked(task, trial, shots)
    prompter = Prompter(model, prompt, solved, asking)
    length = trial.length or ("sum" if prompt.answers else "token")
    if length not in ("sum", "token", "byte"):
        raise UsageError(f"unknown way to compare answers '{length[:40]}' (sum, token or byte)")
    found = prompter.choose(examples, Choosing(length=length, calibrate=trial.calibrate), tell)  # type: ignore[arg-type]
    predictions = said(found)
    counts = {
        "examples": len(examples),
        "ties": sum(one.label is None for one in predictions),
        "cut": found.cut,
        "shots_dropped": sum(found.dropped),
        "questions_with_fewer_shots": sum(lost > 0 for lost in found.dropped),
    }
    return Result(
        task=task.name,
        split=split,
        shots=shots,
        scores=scores(task, examples, found, predictions),
        counts={name: count for name, count in counts.items() if count or name in ("examples", "ties")},
        notes=notes_of(task, Lost(found.dropped, found.cut), shots, solved, (source, split), trial),
        prompt=_shown(prompter, examples[0]) if trial.show else None,
    )


def asked(task: Task, trial: Trial, shots: int) -> tuple[str, list[Example], list[Example], str]:
    """The split that is evaluated, its questions, and the shots before them with the split they are from."""
    split, examples = questions(task, trial)
    examples = _marked(task, examples)
    solved, source = shots_of(task, trial, split, examples, shots)
    known = {id(example) for example in solved}
    if groups := task.groups(examples):  # a question whose answer is a shot is not asked at all
        parted = {group for example, group in zip(examples, groups, strict=True) if group and id(example) in known}
        known |= {id(example) for example, group in zip(examples, groups, strict=True) if group in parted}
    examples = [example for example in examples if id(example) not in known]
    if trial.limit is not None:
        examples = subset(examples, trial.limit, trial.seed, task.groups(examples))
    return split, examples, solved, source


def questions(task: Task, trial: Trial) -> tuple[str, list[Example]]:
    """The split that is evaluated, asked for or the first with some, and its examples that say what is right."""
    there = task.available(trial.data)
    splits = [name for name in JUDGED if name in there] if trial.split is None else [trial.split]
    for split in splits or [next((name for name in JUDGED if name in task.splits), next(iter(task.splits)))]:
        found = [example for example in task.read(split, trial.data) if _solvable(task, example)]
        if found:
            return split, found
    raise DataError(
        f"task '{task.name}': no example of {', '.join(map(repr, splits))} has a label; choose another split"
    )


def _solvable(task: Task, example: Example) -> bool:
    """Whether it says what is right; a question without an answer in its passage does."""
    return task.kind == "span" or (example.target if task.kind == "generation" else example.label) is not None


def said(found: Chosen) -> list[Prediction]:
    """What was chosen for each example: the likeliest option, and none where two are equally likely."""
    predictions = []
    for scores in found.scores:
        best = np.flatnonzero(scores == scores.max())
        label = int(best[0]) if len(best) == 1 else None
        shares = tuple(probabilities(scores).tolist())
        predictions.append(Prediction(label=label, scores=tuple(scores.tolist()), probabilities=shares))
    return predictions


def scores(
    task: Task, examples: Sequence[Example], found: Chosen, predictions: Sequence[Prediction]
) -> dict[str, float]:
    """The task's metrics, the official one first; beside them what always one answer would get right.

    Of choices compared by their mean also what their sums would give.
    """
    told = score(task, examples, predictions)
    if any(not np.array_equal(one, other) for one, other in zip(found.scores, found.sums, strict=True)):
        plain = replace(found, scores=found.sums)
        told["uncorrected"] = next(iter(score(task, examples, said(plain)).values()))
    gold = Counter(example.label for example in examples)
    return told | {"majority": max(gold.values()) / len(examples)}


def _put(task: Task, trial: Trial, asking: Asking) -> tuple[Prompt, Asking]:
    if isinstance(trial.prompt, str):
        return replace(prompt_of(task), text=trial.prompt, judged="answer"), asking
    if trial.prompt is not None:
        return trial.prompt, asking
    if not trial.text_to_text:
        return prompt_of(task), asking
    if task.template is None:
        raise UsageError(f"task '{task.name}' has no text-to-text template; leave --text-to-text away")
    return text_to_text(task.template), replace(asking, given=True)


def shots_of(
    task: Task, trial: Trial, split: str, examples: Sequence[Example], shots: int
) -> tuple[list[Example], str]:
    """The shots and the split they are from: one for training, or dev; or else they are taken out of the questions."""
    if shots < 0:
        raise UsageError(f"shots must be 0 or more, found {shots}")
    if not shots:
        return [], ""
    there = task.available(trial.data)
    others = [name for name in there if name != split and name.startswith("train")]
    source = next(iter([*others, *(name for name in there if name == "dev" != split)]), None)
    pool = examples if source is None else _marked(task, list(there[source].read()))
    return draw(pool, shots if source else min(shots, len(pool) - 1), trial.seed), source or split


def _marked(task: Task, examples: Sequence[Example]) -> list[Example]:
    """With labels to draw by where an answer is written: whether there is one in the passage, or all alike."""
    if task.kind not in ("span", "generation"):
        return list(examples)
    return [replace(one, label=int(task.kind == "span" and not one.answers)) for one in examples]


def notes_of(
    task: Task, lost: Lost, shots: int, solved: Sequence[Example], splits: tuple[str, str], trial: Trial
) -> tuple[str, ...]:
    """What is to be said of the shots, and of what was lost."""
    notes = []
    source, split = splits
    if solved:
        classes = 0 if any(example.choices for example in solved) else len(task.labels)
        mixed = f", balanced over {counted(classes, 'classes')}" if classes else ""
        many = counted(len(solved), "shots")
        notes.append(f"{many} of '{source}'{mixed}, seed {trial.seed}, the same for all questions")
        if source == split:
            notes.append(f"there is no other split to train on: the shots were taken out of '{source}'")
    if len(solved) < shots:
        notes.append(f"asked for {counted(shots, 'shots')}, found {len(solved)}")
    short = [len(solved) - count for count in lost.dropped if count]
    if short:
        notes.append(
            f"{counted(len(short), 'questions')} with fewer shots, "
            f"{min(short)} at least: more do not fit into the model"
        )
    if lost.cut:
        notes.append(f"{counted(lost.cut, 'texts')} cut at the beginning: longer than the model")
    return tuple(notes)


def _shown(prompter: Prompter, example: Example) -> str:
    answers = " | ".join(options(prompter.prompt, example))
    return f"{prompter.text(example)}\n\n(answers: {answers})"
