"""Simple baselines without pre-training, for tasks of all types.

    rows, skipped = run_baselines(task, parts.train, parts.test, DEFAULT_BASELINES)
    rows[0].name, rows[0].predictions      # 'majority', one prediction per example
    skipped                                # {'logistic': 'only with --baselines all', …}

Each is a spec whose `predict(train, test, seed=0)` fits it on examples and returns a prediction for each of others. A
task type names its baselines by the slot that they fill: `--baselines svm` runs ridge regression for scores.
"""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from pretune.core.errors import DataError
from pretune.core.registry import Registry
from pretune.core.seed import make_generator
from pretune.tasks.example import Examples, Prediction
from pretune.tasks.task import Task
from pretune.tasks.types import get_type

if TYPE_CHECKING:
    from pretune.evaluation.baselines.base import Baseline  # NOTE: its imports are slow, and a run may have none

BASELINES: "Registry[type[Baseline]]" = Registry(
    "baseline",
    {
        "majority": "pretune.evaluation.baselines.texts:Majority",
        "svm": "pretune.evaluation.baselines.texts:SVM",
        "vectors": "pretune.evaluation.baselines.texts:AveragedVectors",
        "logistic": "pretune.evaluation.baselines.texts:LogisticBaseline",
        "bilstm": "pretune.evaluation.baselines.bilstm:BiLSTMBaseline",
        "frequent_labels": "pretune.evaluation.baselines.texts:FrequentLabels",
        "one_vs_rest": "pretune.evaluation.baselines.texts:OneVsRest",
        "mean": "pretune.evaluation.baselines.texts:Mean",
        "ridge": "pretune.evaluation.baselines.texts:Ridge",
        "ridge_vectors": "pretune.evaluation.baselines.texts:RidgeVectors",
        "frequent_tag": "pretune.evaluation.baselines.tagging:FrequentTag",
        "window_tags": "pretune.evaluation.baselines.tagging:WindowTags",
        "adjacent_head": "pretune.evaluation.baselines.tagging:AdjacentHead",
        "bilstm_parser": "pretune.evaluation.baselines.tagging:BiLSTMParser",
        "same_words": "pretune.evaluation.baselines.mentions:SameWords",
        "nearest_mention": "pretune.evaluation.baselines.mentions:NearestMention",
        "frequent_place": "pretune.evaluation.baselines.answers:FrequentPlace",
        "tfidf": "pretune.evaluation.baselines.answers:SimilarWords",
        "choice_vectors": "pretune.evaluation.baselines.answers:SimilarVectors",
        "first_words": "pretune.evaluation.baselines.answers:FirstWords",
        "near_words": "pretune.evaluation.baselines.answers:NearWords",
        "lead_words": "pretune.evaluation.baselines.answers:LeadWords",
        "frequent_answer": "pretune.evaluation.baselines.answers:FrequentAnswer",
    },
)

SLOTS = ("majority", "svm", "vectors", "logistic", "bilstm")
"""Names of `--baselines`, those of classifiers; other types fill some of these slots with other baselines."""
DEFAULT_BASELINES = ("majority", "svm", "vectors")
"""Baselines reported with every result by default."""


MAX_TRAIN_EXAMPLES = 20_000
"""Default maximum number of training examples of baselines."""
PROBE, RANDOM, COSINE = "probe", "random", "cosine"
"""Linear probe on the frozen model's features; the same model from random weights; for scored pairs, the cosine of the
embeddings of the model before fine-tuning."""
ZERO_SHOT, FEW_SHOT = "untuned", "few_shot"
"""Answers of the model before fine-tuning, alone and after some solved examples, for types that name them."""
MODEL_BASELINES = (PROBE, RANDOM, COSINE, ZERO_SHOT, FEW_SHOT)
"""Baselines that need the model; the caller runs them."""
ALL_BASELINES = (*SLOTS, *MODEL_BASELINES)
BASELINE_SETS = {"default": (*DEFAULT_BASELINES, COSINE, ZERO_SHOT, FEW_SHOT), "all": ALL_BASELINES, "none": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """Result of one baseline: name, description, predictions and seconds."""

    name: str
    description: str
    predictions: list[Prediction]
    seconds: float
    slot: str = ""  # the requested name, if different
    scores: Mapping[str, float] = field(default_factory=dict)  # besides those of the predictions


def run_baselines(
    task: Task,
    train: Examples,
    test: Examples,
    names: Sequence[str],
    *,
    max_train_examples: int = MAX_TRAIN_EXAMPLES,
    seed: int = 0,
    vectors: str | None = None,
) -> tuple[list[BaselineResult], dict[str, str]]:
    """Fit baselines on at most `max_train_examples` examples and predict a split.

    Return the results, and the reasons for the baselines that were not run. `vectors` is a file of word vectors for the
    baseline of averaged vectors; by default they are trained on the task's texts.
    """
    sample = make_generator(seed, 0).permutation(len(train))[:max_train_examples]
    subset = [train[i] for i in sorted(sample.tolist())]
    rows: list[BaselineResult] = []
    skip_reasons: dict[str, str] = {}
    for slot in ALL_BASELINES:
        name = get_type(task).scoring.baselines.get(slot)
        if slot in (ZERO_SHOT, FEW_SHOT) and name is None:
            continue
        if slot == COSINE and not is_similarity(task, test):
            skip_reasons[slot] = "only for pairs with scores"
        elif slot in MODEL_BASELINES:
            skip_reasons[slot] = "not requested (`--baselines all`)"
        elif name is None:
            skip_reasons[slot] = f"not available for tasks of kind '{task.kind}'"
        elif slot not in names:
            skip_reasons[get_baseline_name(task, slot)] = "not requested (`--baselines all`)"
        else:
            start = time.perf_counter()
            with warnings.catch_warnings(), use_one_thread(keep_torch=slot == "bilstm"):
                warnings.simplefilter("ignore")  # of solvers that did not converge
                try:
                    predictions = _build_baseline(name, vectors).predict(subset, test, seed=seed)
                except DataError as error:
                    if slot == "vectors" and vectors is not None:  # the user's file
                        raise
                    skip_reasons[get_baseline_name(task, slot)] = str(error)
                    continue
            rows.append(
                BaselineResult(
                    name=get_baseline_name(task, slot),
                    description=BASELINES.describe(name).rstrip("."),
                    predictions=predictions,
                    seconds=time.perf_counter() - start,
                    slot=slot,
                )
            )
    return rows, skip_reasons


@contextmanager
def use_one_thread(*, keep_torch: bool = False) -> Iterator[None]:
    """Limit products of NumPy, SciPy and, unless `keep_torch`, torch to one thread.

    Their threads wait for work in busy loops. Where threads of several libraries or several processes share the cores,
    each keeps the other from its work: linear models of seconds took minutes. Alone, a second thread hardly helps them.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    with threadpool_limits(1, user_api="blas"):
        try:
            torch.set_num_threads(threads if keep_torch else 1)
            yield
        finally:
            torch.set_num_threads(threads)


def get_baseline_name(task: Task, slot: str) -> str:
    """Return the name of the baseline that fills a slot for a task."""
    name = get_type(task).scoring.baselines.get(slot)
    return slot if name is None or slot in MODEL_BASELINES else BASELINES.get(name).display_name or name


def _build_baseline(name: str, vectors: str | None) -> "Baseline":
    baseline = BASELINES.get(name)
    has_vectors = any(part.name == "vectors" for part in fields(baseline))  # type: ignore[arg-type]
    return baseline(vectors=vectors) if has_vectors else baseline()  # type: ignore[call-arg]


def is_similarity(task: Task, examples: Examples) -> bool:
    """Return whether a task scores pairs of texts."""
    is_scored = get_type(task).scoring.gold == "score"
    return is_scored and bool(examples) and all(example.pair is not None for example in examples)
