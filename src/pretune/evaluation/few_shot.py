"""A task put to a model with k solved examples before each question: from its files to a result."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.core.format import format_count
from pretune.evaluation.prompting import ChoiceConfig, ChoiceScores, Prompter, softmax
from pretune.evaluation.prompts import PromptTemplate, build_text_to_text_prompt, get_options, get_prompt
from pretune.evaluation.result import EvaluationResult
from pretune.evaluation.shots import draw_shots
from pretune.inference.scoring import DEFAULT_SCORING, ScoringConfig
from pretune.tasks.decode import Prediction, score
from pretune.tasks.example import Example
from pretune.tasks.splits import sample_subset
from pretune.tasks.task import Task

EVAL_SPLITS = ("test", "dev", "all")
"""Which split is evaluated where none is asked for, the first that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShotConfig:
    """What of a task is put, and how."""

    data: str | os.PathLike[str] | None = None
    split: str | None = None
    limit: int | None = None  # so many examples, stratified
    seed: int = 0  # of the shots, and of a limit
    prompt: PromptTemplate | str | None = None  # another wording; of a text alone the answers are the usual ones
    text_to_text: bool = False  # an encoder-decoder is asked as T5 was trained
    length: str | None = None  # how answers are compared; classes by the sum, choices by the mean over tokens
    calibrate: bool = False
    show: bool = False


DEFAULT = FewShotConfig()


class Truncation(NamedTuple):
    """What did not fit into a model: shots, of each example, and texts that were too long even without them."""

    dropped_shots: Sequence[int]
    truncated: int


def evaluate_few_shot(
    model: nn.Module,
    task: Task,
    shots: int = 0,
    config: FewShotConfig = DEFAULT,
    scoring: ScoringConfig = DEFAULT_SCORING,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """How often a model chooses the right answer, with so many solved examples before each question."""
    prompt, scoring = _resolve_prompt(task, config, scoring)
    split, examples, solved, source = select_examples(task, config, shots)
    prompter = Prompter(model, prompt, solved, scoring)
    length = config.length or ("sum" if prompt.answers else "token")
    if length not in ("sum", "token", "byte"):
        raise UsageError(f"unknown way to compare answers '{length[:40]}' (sum, token or byte)")
    found = prompter.score_choices(examples, ChoiceConfig(length=length, calibrate=config.calibrate), on_progress)  # type: ignore[arg-type]
    predictions = predict(found)
    counts = {
        "examples": len(examples),
        "ties": sum(one.label is None for one in predictions),
        "cut": found.truncated,
        "shots_dropped": sum(found.dropped_shots),
        "questions_with_fewer_shots": sum(lost > 0 for lost in found.dropped_shots),
    }
    return EvaluationResult(
        task=task.name,
        split=split,
        shots=shots,
        scores=compute_scores(task, examples, found, predictions),
        counts={name: count for name, count in counts.items() if count or name in ("examples", "ties")},
        notes=build_notes(
            task, Truncation(found.dropped_shots, found.truncated), shots, solved, (source, split), config
        ),
        prompt=_render_prompt(prompter, examples[0]) if config.show else None,
    )


def select_examples(task: Task, config: FewShotConfig, shots: int) -> tuple[str, list[Example], list[Example], str]:
    """The split that is evaluated, its questions, and the shots before them with the split they are from."""
    split, examples = read_questions(task, config)
    examples = _add_labels(task, examples)
    solved, source = select_shots(task, config, split, examples, shots)
    known = {id(example) for example in solved}
    if groups := task.get_groups(examples):  # a question whose answer is a shot is not asked at all
        parted = {group for example, group in zip(examples, groups, strict=True) if group and id(example) in known}
        known |= {id(example) for example, group in zip(examples, groups, strict=True) if group in parted}
    examples = [example for example in examples if id(example) not in known]
    if config.limit is not None:
        examples = sample_subset(examples, config.limit, config.seed, task.get_groups(examples))
    return split, examples, solved, source


def read_questions(task: Task, config: FewShotConfig) -> tuple[str, list[Example]]:
    """The split that is evaluated, asked for or the first with some, and its examples that say what is right."""
    there = task.find_available(config.data)
    splits = [name for name in EVAL_SPLITS if name in there] if config.split is None else [config.split]
    for split in splits or [next((name for name in EVAL_SPLITS if name in task.splits), next(iter(task.splits)))]:
        found = [example for example in task.read(split, config.data) if _has_answer(task, example)]
        if found:
            return split, found
    raise DataError(
        f"task '{task.name}': no example of {', '.join(map(repr, splits))} has a label; choose another split"
    )


def _has_answer(task: Task, example: Example) -> bool:
    """Whether it says what is right; a question without an answer in its passage does."""
    return task.kind == "span" or (example.target if task.kind == "generation" else example.label) is not None


def predict(choices: ChoiceScores) -> list[Prediction]:
    """What was chosen for each example: the likeliest option, and none where two are equally likely."""
    predictions = []
    for scores in choices.scores:
        best = np.flatnonzero(scores == scores.max())
        label = int(best[0]) if len(best) == 1 else None
        shares = tuple(softmax(scores).tolist())
        predictions.append(Prediction(label=label, scores=tuple(scores.tolist()), probabilities=shares))
    return predictions


def compute_scores(
    task: Task, examples: Sequence[Example], choices: ChoiceScores, predictions: Sequence[Prediction]
) -> dict[str, float]:
    """The task's metrics, the official one first; beside them what always one answer would get right.

    Of choices compared by their mean also what their sums would give.
    """
    told = score(task, examples, predictions)
    if any(not np.array_equal(one, other) for one, other in zip(choices.scores, choices.sums, strict=True)):
        plain = replace(choices, scores=choices.sums)
        told["uncorrected"] = next(iter(score(task, examples, predict(plain)).values()))
    gold = Counter(example.label for example in examples)
    return told | {"majority": max(gold.values()) / len(examples)}


def _resolve_prompt(task: Task, config: FewShotConfig, scoring: ScoringConfig) -> tuple[PromptTemplate, ScoringConfig]:
    if isinstance(config.prompt, str):
        return replace(get_prompt(task), text=config.prompt, judged="answer"), scoring
    if config.prompt is not None:
        return config.prompt, scoring
    if not config.text_to_text:
        return get_prompt(task), scoring
    if task.template is None:
        raise UsageError(f"task '{task.name}' has no text-to-text template; leave --text-to-text away")
    return build_text_to_text_prompt(task.template), replace(scoring, given=True)


def select_shots(
    task: Task, config: FewShotConfig, split: str, examples: Sequence[Example], shots: int
) -> tuple[list[Example], str]:
    """The shots and the split they are from: one for training, or dev; or else they are taken out of the questions."""
    if shots < 0:
        raise UsageError(f"shots must be 0 or more, found {shots}")
    if not shots:
        return [], ""
    there = task.find_available(config.data)
    others = [name for name in there if name != split and name.startswith("train")]
    source = next(iter([*others, *(name for name in there if name == "dev" != split)]), None)
    pool = examples if source is None else _add_labels(task, list(there[source].read()))
    return draw_shots(pool, shots if source else min(shots, len(pool) - 1), config.seed), source or split


def _add_labels(task: Task, examples: Sequence[Example]) -> list[Example]:
    """With labels to draw by where an answer is written: whether there is one in the passage, or all alike."""
    if task.kind not in ("span", "generation"):
        return list(examples)
    return [replace(one, label=int(task.kind == "span" and not one.answers)) for one in examples]


def build_notes(
    task: Task,
    truncation: Truncation,
    shots: int,
    shot_examples: Sequence[Example],
    splits: tuple[str, str],
    config: FewShotConfig,
) -> tuple[str, ...]:
    """What is to be said of the shots, and of what was lost."""
    notes = []
    source, split = splits
    if shot_examples:
        classes = 0 if any(example.choices for example in shot_examples) else len(task.labels)
        mixed = f", balanced over {format_count(classes, 'classes')}" if classes else ""
        many = format_count(len(shot_examples), "shots")
        notes.append(f"{many} of '{source}'{mixed}, seed {config.seed}, the same for all questions")
        if source == split:
            notes.append(f"there is no other split to train on: the shots were taken out of '{source}'")
    if len(shot_examples) < shots:
        notes.append(f"asked for {format_count(shots, 'shots')}, found {len(shot_examples)}")
    short = [len(shot_examples) - count for count in truncation.dropped_shots if count]
    if short:
        notes.append(
            f"{format_count(len(short), 'questions')} with fewer shots, "
            f"{min(short)} at least: more do not fit into the model"
        )
    if truncation.truncated:
        notes.append(f"{format_count(truncation.truncated, 'texts')} cut at the beginning: longer than the model")
    return tuple(notes)


def _render_prompt(prompter: Prompter, example: Example) -> str:
    answers = " | ".join(get_options(prompter.prompt, example))
    return f"{prompter.render(example)}\n\n(answers: {answers})"
