"""Baselines of a task: fitted on the training examples and applied to the evaluated split.

rows, skipped = run_baselines(task, parts.train, parts.test, DEFAULT_BASELINES)
rows[0].name, rows[0].predictions          # 'majority', one prediction per example
skipped                                    # {'logistic': 'only with --baselines all', …}
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pretune.adaptation.static.word2vec import Word2Vec
from pretune.core.errors import UsageError, suggest
from pretune.core.seed import make_generator
from pretune.evaluation.baselines import BASELINES, DEFAULT_BASELINES
from pretune.evaluation.baselines.base import Text
from pretune.evaluation.baselines.features import TfIdf
from pretune.evaluation.baselines.regression import Mean, Ridge, RidgeVectors
from pretune.evaluation.baselines.spans import FirstWords, NearWords
from pretune.evaluation.baselines.static_vectors import AveragedVectors
from pretune.evaluation.baselines.table import MAX_TRAIN_EXAMPLES
from pretune.evaluation.baselines.tagging import FrequentTag, WindowTags
from pretune.inference.word_vectors import WordVectors
from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example
from pretune.tasks.task import Task

PROBE, RANDOM, COSINE = "probe", "random", "cosine"
"""Linear probe on the frozen model's features; the same model from random weights; for scored pairs, the cosine of the
embeddings of the model before fine-tuning. The caller runs these three."""
ALL_BASELINES = (*BASELINES.list_names(), PROBE, RANDOM, COSINE)
BASELINE_SETS = {"default": (*DEFAULT_BASELINES, COSINE), "all": ALL_BASELINES, "none": ()}
NAMES_BY_KIND = {
    "regression": {"majority": "mean", "svm": "ridge", "vectors": "ridge_vectors"},
    "tagging": {"majority": "frequent_tag"},
    "span": {"majority": "first_words", "svm": "near_words"},
    "choice": {"majority": "frequent_place", "svm": "tfidf"},
    "generation": {"majority": "first_words"},
}
"""Names of baselines that differ by the kind of task from the classifier whose slot they fill."""

Examples = Sequence[Example]
FitAndPredict = Callable[[Task, Examples, Examples, int], list[Prediction]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """Result of one baseline: name, description, predictions and seconds."""

    name: str
    description: str
    predictions: list[Prediction]
    seconds: float
    slot: str = ""  # the requested name, if different


def parse_baselines(text: str) -> tuple[str, ...]:
    """Parse a list of baselines: default, all, none, or comma-separated names."""
    if text in BASELINE_SETS:
        return BASELINE_SETS[text]
    slots = {name: slot for names in NAMES_BY_KIND.values() for slot, name in names.items()}
    names = tuple(dict.fromkeys(slots.get(name, name) for name in text.split(",")))
    for name in names:
        if name not in ALL_BASELINES:
            allowed_names = [*BASELINE_SETS, *ALL_BASELINES, *slots]
            raise UsageError(
                f"unknown baseline '{name[:40]}'{suggest(name, allowed_names)} (allowed: {', '.join(allowed_names)})"
            )
    return names


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
    subset = train
    if len(train) > max_train_examples:
        subset = [
            train[i] for i in sorted(make_generator(seed, 0).permutation(len(train))[:max_train_examples].tolist())
        ]
    rows: list[BaselineResult] = []
    skip_reasons: dict[str, str] = {}
    names_by_slot = NAMES_BY_KIND.get(task.kind, {})
    for name in ALL_BASELINES:
        if name == COSINE and not is_similarity(task, test):
            skip_reasons[name] = "only for pairs with scores"
            continue
        fit, description = _find_baseline(task, name, vectors)
        if fit is None:
            skip_reasons[name] = description
        elif name not in names:
            skip_reasons[names_by_slot.get(name, name)] = "not requested (`--baselines all`)"
        else:
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of solvers that did not converge
                predictions = fit(task, subset, test, seed)
            seconds = time.perf_counter() - start
            rows.append(
                BaselineResult(
                    name=names_by_slot.get(name, name),
                    description=description,
                    predictions=predictions,
                    seconds=seconds,
                    slot=name,
                )
            )
    return rows, skip_reasons


def is_similarity(task: Task, examples: Examples) -> bool:
    """Return whether a task scores pairs of texts."""
    return task.kind == "regression" and bool(examples) and all(example.pair is not None for example in examples)


def _find_baseline(task: Task, name: str, vectors: str | None) -> tuple[FitAndPredict | None, str]:
    """Return the function that fits a baseline to a kind of task, and its description; else None and the reason."""
    if name in (PROBE, RANDOM, COSINE):
        return None, "not requested (`--baselines all`)"
    if task.kind in ("classification", "pair"):
        return _build_classifier(name, vectors), BASELINES.describe(name).rstrip(".")
    special: dict[str, dict[str, tuple[FitAndPredict, str]]] = {
        "regression": {
            "majority": (_build_regressor(Mean()), "Mean score"),
            "svm": (_build_regressor(Ridge()), "Ridge regression on TF-IDF of words and bigrams"),
            "vectors": (_build_regressor(RidgeVectors(vectors=vectors)), "Ridge regression on averaged static vectors"),
        },
        "tagging": {
            "majority": (_predict_frequent_tags, "Most frequent tag of a word"),
            "svm": (_predict_window_tags, "Linear SVM on the word and its neighbours"),
        },
        "span": {
            "majority": (
                _build_span_finder(FirstWords()),
                "First words of the passage, or no answer if most questions have none",
            ),
            "svm": (
                _build_span_finder(NearWords()),
                "Words near those of the question, or no answer if most questions have none",
            ),
        },
        "choice": {
            "majority": (_predict_frequent_position, "Most frequent position of the right option"),
            "svm": (_choose_by_tfidf, "Option most similar to the text by TF-IDF"),
            "vectors": (
                _build_vector_chooser(vectors),
                "Option most similar to the text by averaged static vectors",
            ),
        },
        "generation": {"majority": (_predict_first_words, "First words of the text, as many as in the answers")},
    }
    entry = special.get(task.kind, {}).get(name)
    return entry or (None, f"not available for tasks of kind '{task.kind}'")


def get_text(example: Example) -> Text:
    """Return the text of an example that baselines read."""
    return example.text if example.pair is None else (example.text, example.pair)


def _build_classifier(name: str, vectors: str | None) -> FitAndPredict:
    def fit(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
        labels = [int(example.label or 0) for example in train]
        method = BASELINES.get(name)
        baseline = AveragedVectors(vectors=vectors) if method is AveragedVectors else method()
        predict = baseline.fit([get_text(example) for example in train], labels, seed=seed)
        return [Prediction(label=int(label)) for label in predict([get_text(example) for example in test])]

    return fit


def _build_regressor(model: Mean | Ridge | RidgeVectors) -> FitAndPredict:
    def fit(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
        values = [float(example.label or 0) for example in train]
        predict = model.fit([get_text(example) for example in train], values, seed=seed)
        return [Prediction(value=value) for value in predict([get_text(example) for example in test])]

    return fit


def _predict_frequent_tags(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    predict = FrequentTag().fit([example.words for example in train], [example.tags for example in train])
    return [Prediction(tags=tuple(tags)) for tags in predict([example.words for example in test])]


def _predict_window_tags(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    predict = WindowTags().fit([example.words for example in train], [example.tags for example in train], seed=seed)
    return [Prediction(tags=tuple(tags)) for tags in predict([example.words for example in test])]


def _build_span_finder(model: FirstWords | NearWords) -> FitAndPredict:
    def fit(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
        questions, new_questions = ([(example.text, example.pair or "") for example in part] for part in (train, test))
        predict = model.fit(questions, [example.answers[0] if example.answers else None for example in train])
        return [Prediction(text=text) for text in predict(new_questions)]

    return fit


def _build_vector_chooser(path: str | None) -> FitAndPredict:
    def fit(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
        examples = [*train, *test]
        texts = [part for example in examples for part in (example.text, example.pair or "", *example.choices)]
        texts = [text for text in texts if text.strip()]
        vectors = WordVectors.load(path) if path else Word2Vec(epochs=10, min_count=2).train(texts, seed=seed)
        predictions = []
        for example in test:
            rows = vectors.average([f"{example.text} {example.pair or ''}", *example.choices])
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            predictions.append(_build_prediction(example, (rows[1:] @ rows[0]).tolist()))
        return predictions

    return fit


def _predict_frequent_position(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    counts = Counter(int(example.label or 0) for example in train)
    best = min(counts, key=lambda position: (-counts[position], position))
    predictions = []
    for example in test:
        position = min(best, len(example.choices) - 1)
        predictions.append(_build_prediction(example, [float(i == position) for i in range(len(example.choices))]))
    return predictions


def _choose_by_tfidf(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    table = TfIdf([" ".join([example.text, example.pair or "", *example.choices]) for example in [*train, *test]])
    predictions = []
    for example in test:
        rows = table([f"{example.text} {example.pair or ''}", *example.choices])
        predictions.append(_build_prediction(example, np.asarray((rows[1:] @ rows[0].T).todense()).ravel().tolist()))
    return predictions


def _build_prediction(example: Example, scores: list[float]) -> Prediction:
    return Prediction(label=int(np.argmax(scores)), scores=tuple(scores))


def _predict_first_words(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    mean = round(float(np.mean([len((example.target or "").split()) for example in train])))
    return [Prediction(text=" ".join(example.text.split()[: max(mean, 1)])) for example in test]
