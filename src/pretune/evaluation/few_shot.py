"""Few-shot evaluation: a task prompted with k solved examples (Brown et al., 2020)."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.core.log import format_count
from pretune.evaluation import EvaluationResult, Truncation
from pretune.evaluation.prompting import ChoiceConfig, ChoiceScores, Prompter
from pretune.evaluation.prompts import PromptTemplate, build_text_to_text_prompt, draw_shots, get_options, get_prompt
from pretune.inference.scoring import DEFAULT_SCORING, ScoringConfig
from pretune.metrics.numeric import softmax
from pretune.tasks.example import Example, Examples, Prediction, Predictions
from pretune.tasks.task import Task, sample_subset
from pretune.tasks.types import get_type, has_answer, score
from pretune.tasks.types.base import AnswerPrompt

EVAL_SPLITS = ("test", "dev", "all")
"""Splits to evaluate by default: the first that is available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShotConfig:
    """Settings of a few-shot evaluation."""

    data: str | os.PathLike[str] | None = None
    split: str | None = None
    limit: int | None = None  # maximum number of examples, stratified
    seed: int = 0  # of the shots and the subset
    prompt: PromptTemplate | str | None = None  # a custom prompt; text keeps the default answers
    text_to_text: bool = False  # use the T5 template of the task
    length: str | None = None  # normalization: sum (default for classes), token (for choices) or byte
    calibrate: bool = False
    show: bool = False


DEFAULT = FewShotConfig()


class Selection(NamedTuple):
    """Split to evaluate, its questions, the shots and the split of the shots."""

    split: str
    examples: list[Example]
    shots: list[Example]
    shot_split: str


def evaluate_few_shot(
    model: nn.Module,
    task: Task,
    shots: int = 0,
    config: FewShotConfig = DEFAULT,
    scoring: ScoringConfig = DEFAULT_SCORING,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Evaluate a model on a classification or choice task with `shots` solved examples before each question."""
    prompt, scoring = _resolve_prompt(task, config, scoring)
    selection = select_examples(task, config, shots)
    examples = selection.examples
    prompter = Prompter(model, prompt, selection.shots, scoring)
    length = config.length or ("sum" if prompt.answers else "token")
    if length not in ("sum", "token", "byte"):
        raise UsageError(f"unknown length normalization '{length[:40]}' (allowed: sum, token, byte)")
    choice = ChoiceConfig(length=length, calibrate=config.calibrate)  # type: ignore[arg-type]
    choices = prompter.score_choices(examples, choice, on_progress)
    predictions = predict(choices)
    return build_result(
        task,
        shots,
        config,
        selection,
        choices.truncation,
        scores=compute_scores(task, examples, choices, predictions),
        counts={"ties": sum(prediction.label is None for prediction in predictions)},
        prompt=_render_prompt(prompter, examples[0]) if config.show else None,
    )


def build_result(
    task: Task,
    shots: int,
    config: FewShotConfig,
    selection: Selection,
    truncation: Truncation,
    *,
    scores: Mapping[str, float],
    counts: Mapping[str, int],
    prompt: str | None,
) -> EvaluationResult:
    """Build the result of a prompted evaluation; counts of zero are dropped, except those given."""
    dropped_shots = truncation.dropped_shots
    truncation_counts = {
        "cut": truncation.truncated_texts,
        "shots_dropped": sum(dropped_shots),
        "questions_with_fewer_shots": sum(count > 0 for count in dropped_shots),
    }
    return EvaluationResult(
        task=task.name,
        split=selection.split,
        shots=shots,
        scores=scores,
        counts={
            "examples": len(selection.examples),
            **counts,
            **{name: count for name, count in truncation_counts.items() if count},
        },
        notes=build_notes(task, truncation, shots, selection, config.seed),
        prompt=prompt,
    )


def select_examples(task: Task, config: FewShotConfig, shots: int) -> Selection:
    """Select the questions and the shots."""
    split, examples = read_questions(task, config)
    examples = _add_labels(task, examples)
    shot_examples, source = select_shots(task, config, split, examples, shots)
    shot_ids = {id(example) for example in shot_examples}
    is_grouped = task.get_groups(examples) is not None  # all answers of a question are dropped if one of them is a shot
    shot_groups = {example.group for example in examples if is_grouped and example.group and id(example) in shot_ids}
    examples = [example for example in examples if id(example) not in shot_ids and example.group not in shot_groups]
    if config.limit is not None:
        examples = sample_subset(examples, config.limit, config.seed, task.get_groups(examples))
    return Selection(split, examples, shot_examples, source)


def read_questions(task: Task, config: FewShotConfig) -> tuple[str, list[Example]]:
    """Return the split to evaluate (the requested one, or the first with labels) and its labelled examples."""
    available = task.find_available(config.data)
    splits = [name for name in EVAL_SPLITS if name in available] if config.split is None else [config.split]
    for split in splits or [next((name for name in EVAL_SPLITS if name in task.splits), next(iter(task.splits)))]:
        labelled_examples = [example for example in task.read(split, config.data) if has_answer(task, example)]
        if labelled_examples:
            return split, labelled_examples
    raise DataError(
        f"task '{task.name}': no example of {', '.join(map(repr, splits))} has a label; choose another split"
    )


def predict(choices: ChoiceScores) -> list[Prediction]:
    """Return a prediction for each example: the likeliest option, or None for a tie."""
    predictions = []
    for scores in choices.scores:
        best = np.flatnonzero(scores == scores.max())
        label = int(best[0]) if len(best) == 1 else None
        shares = tuple(softmax(scores).tolist())
        predictions.append(Prediction(label=label, scores=tuple(scores.tolist()), probabilities=shares))
    return predictions


def compute_scores(task: Task, examples: Examples, choices: ChoiceScores, predictions: Predictions) -> dict[str, float]:
    """Compute the task's metrics, the official one first, and the accuracy of the majority class.

    For choices with normalized scores, `uncorrected` is the score of the unnormalized sums.
    """
    metrics = score(task, examples, predictions)
    if any(not np.array_equal(scores, sums) for scores, sums in zip(choices.scores, choices.sums, strict=True)):
        by_sum = replace(choices, scores=choices.sums)
        metrics["uncorrected"] = next(iter(score(task, examples, predict(by_sum)).values()))
    gold = Counter(example.label for example in examples)
    return metrics | {"majority": max(gold.values()) / len(examples)}


def _resolve_prompt(task: Task, config: FewShotConfig, scoring: ScoringConfig) -> tuple[PromptTemplate, ScoringConfig]:
    if isinstance(config.prompt, str):
        return replace(get_prompt(task), text=config.prompt, scored_part="answer"), scoring
    if config.prompt is not None:
        return config.prompt, scoring
    if not config.text_to_text:
        return get_prompt(task), scoring
    if task.template and not task.template.targets:
        raise UsageError("this task's template has no answers to choose among; omit --text-to-text")
    return build_text_to_text_prompt(task), replace(scoring, conditional=True)


def select_shots(
    task: Task, config: FewShotConfig, split: str, examples: Examples, shots: int
) -> tuple[list[Example], str]:
    """Select shots from a training split, else dev, else the evaluated split; return them and the split's name."""
    if shots < 0:
        raise UsageError(f"shots must be >= 0, got {shots}")
    if not shots:
        return [], ""
    available = task.find_available(config.data)
    train_splits = [name for name in available if name != split and name.startswith("train")]
    source = next(iter([*train_splits, *(name for name in available if name == "dev" != split)]), None)
    pool = examples if source is None else _add_labels(task, list(available[source].read()))
    return draw_shots(pool, shots if source else min(shots, len(pool) - 1), config.seed), source or split


def count_repeats(shots: Examples, examples: Examples) -> int:
    """Return how many shots have the texts of an evaluated example."""
    texts = {(example.text, example.pair, example.choices) for example in examples}
    return sum((shot.text, shot.pair, shot.choices) in texts for shot in shots)


def _add_labels(task: Task, examples: Examples) -> list[Example]:
    """Add labels to sample by if the answer is text: whether there is none, where a question may have none."""
    evaluator = get_type(task).scoring.evaluator
    if not isinstance(evaluator, AnswerPrompt):
        return [*examples]
    may_lack = bool(evaluator.no_answer)
    return [replace(example, label=int(may_lack and not example.answers)) for example in examples]


def build_notes(task: Task, truncation: Truncation, shots: int, selection: Selection, seed: int) -> tuple[str, ...]:
    """Return notes on the shots and on truncation."""
    notes = []
    split, _, shot_examples, source = selection
    if shot_examples:
        classes = 0 if any(example.choices for example in shot_examples) else len(task.labels)
        balance = f", balanced over {format_count(classes, 'classes')}" if classes else ""
        shot_count = format_count(len(shot_examples), "shots")
        notes.append(f"{shot_count} of '{source}'{balance}, seed {seed}, the same for all examples")
        repeat_count = count_repeats(shot_examples, selection.examples)
        if repeat_count:
            notes.append(f"{repeat_count} of {shot_count} are among the evaluated examples: their answers are given")
        if source == split:
            notes.append(f"no training split: the shots are from '{source}' and excluded from evaluation")
    if len(shot_examples) < shots:
        notes.append(f"only {len(shot_examples)} of {format_count(shots, 'shots')} available")
    short = [len(shot_examples) - count for count in truncation.dropped_shots if count]
    if short:
        notes.append(
            f"{format_count(len(short), 'examples')} with fewer shots (at least "
            f"{min(short)}): the model's maximum length is reached"
        )
    if truncation.truncated_texts:
        notes.append(
            f"{format_count(truncation.truncated_texts, 'texts')} truncated on the left: too long for the model"
        )
    return tuple(notes)


def _render_prompt(prompter: Prompter, example: Example) -> str:
    answers = " | ".join(get_options(prompter.prompt, example))
    return f"{prompter.render(example)}\n\n(answers: {answers})"
