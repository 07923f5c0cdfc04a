"""Baselines beside a result: which there are for a task's kind, what they predict on the same split, and who is absent.

rows, absent = beside(task, parts.train, parts.test, DEFAULT)
rows[0].name, rows[0].predictions          # 'majority', one prediction an example
absent                                     # {'logistic': 'only with --baselines all', …}
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
"""A linear model on the frozen model's features; the same model from random weights; of pairs with scores, the cosine
of the vectors of the model before fine-tuning. Whoever has it runs them."""
ALL_BASELINES = (*BASELINES.list_names(), PROBE, RANDOM, COSINE)
BASELINE_SETS = {"default": (*DEFAULT_BASELINES, COSINE), "all": ALL_BASELINES, "none": ()}
NAMES_BY_KIND = {
    "regression": {"majority": "mean", "svm": "ridge", "vectors": "ridge_vectors"},
    "tagging": {"majority": "frequent_tag"},
    "span": {"majority": "first_words", "svm": "near_words"},
    "choice": {"majority": "frequent_place", "svm": "tfidf"},
    "generation": {"majority": "first_words"},
}
"""Names of baselines that are something else for a kind of task than the classifier in whose place they stand."""

Examples = Sequence[Example]
FitAndPredict = Callable[[Task, Examples, Examples, int], list[Prediction]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """One baseline: its name, what it is, what it says of every example, and the seconds it took."""

    name: str
    description: str
    predictions: list[Prediction]
    seconds: float
    slot: str = ""  # the name that it was asked for by, where that is another


def parse_baselines(text: str) -> tuple[str, ...]:
    """The baselines that are asked for: default, all, none, or names with commas between them."""
    if text in BASELINE_SETS:
        return BASELINE_SETS[text]
    places = {own: slot for names in NAMES_BY_KIND.values() for slot, own in names.items()}
    names = tuple(dict.fromkeys(places.get(name, name) for name in text.split(",")))
    for name in names:
        if name not in ALL_BASELINES:
            known = [*BASELINE_SETS, *ALL_BASELINES, *places]
            raise UsageError(f"unknown baseline '{name[:40]}'{suggest(name, known)} (allowed: {', '.join(known)})")
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
    """Fit baselines on at most so many training examples and predict a split; and those not run, with the reason.

    `vectors` is a file of word vectors for the baseline of averaged vectors, else trained on the task's texts.
    """
    some = train
    if len(train) > max_train_examples:
        some = [train[i] for i in sorted(make_generator(seed, 0).permutation(len(train))[:max_train_examples].tolist())]
    rows: list[BaselineResult] = []
    absent: dict[str, str] = {}
    own = NAMES_BY_KIND.get(task.kind, {})
    for name in ALL_BASELINES:
        if name == COSINE and not is_similarity(task, test):
            absent[name] = "it is for pairs with scores"
            continue
        fit, about = _find_baseline(task, name, vectors)
        if fit is None:
            absent[name] = about
        elif name not in names:
            absent[own.get(name, name)] = "not asked for (`--baselines all`)"
        else:
            begun = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a solver that has not quite come to its end
                said = fit(task, some, test, seed)
            seconds = time.perf_counter() - begun
            rows.append(
                BaselineResult(
                    name=own.get(name, name), description=about, predictions=said, seconds=seconds, slot=name
                )
            )
    return rows, absent


def is_similarity(task: Task, examples: Examples) -> bool:
    """Return whether a task asks for scores of pairs of texts."""
    return task.kind == "regression" and bool(examples) and all(one.pair is not None for one in examples)


def _find_baseline(task: Task, name: str, vectors: str | None) -> tuple[FitAndPredict | None, str]:
    """How a baseline is fitted to a kind of task and what it is; None and why where it is not."""
    if name in (PROBE, RANDOM, COSINE):
        return None, "not asked for (`--baselines all`)"
    if task.kind in ("classification", "pair"):
        return _build_classifier(name, vectors), BASELINES.describe(name).rstrip(".")
    special: dict[str, dict[str, tuple[FitAndPredict, str]]] = {
        "regression": {
            "majority": (_build_regressor(Mean()), "The mean score for everything"),
            "svm": (_build_regressor(Ridge()), "TF-IDF of words and word pairs, ridge regression"),
            "vectors": (_build_regressor(RidgeVectors(vectors=vectors)), "Averaged static vectors, ridge regression"),
        },
        "tagging": {
            "majority": (_predict_frequent_tags, "A word's most frequent tag"),
            "svm": (_predict_window_tags, "A linear SVM on the word and its neighbours"),
        },
        "span": {
            "majority": (
                _build_span_finder(FirstWords()),
                "The first words of the passage, or none where most have no answer",
            ),
            "svm": (
                _build_span_finder(NearWords()),
                "Words near to those of the question, or none where most have no answer",
            ),
        },
        "choice": {
            "majority": (_predict_frequent_position, "The option that is right most often by its place"),
            "svm": (_choose_by_tfidf, "The option that is most like the text by TF-IDF"),
            "vectors": (
                _build_vector_chooser(vectors),
                "The option that is most like the text by averaged static vectors",
            ),
        },
        "generation": {"majority": (_predict_first_words, "The first words of the text, as many as answers have")},
    }
    found = special.get(task.kind, {}).get(name)
    return found or (None, f"it is not for tasks of the kind '{task.kind}'")


def get_text(example: Example) -> Text:
    """What baselines read of an example."""
    return example.text if example.pair is None else (example.text, example.pair)


def _build_classifier(name: str, vectors: str | None) -> FitAndPredict:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        labels = [int(example.label or 0) for example in train]
        method = BASELINES.get(name)
        baseline = AveragedVectors(vectors=vectors) if method is AveragedVectors else method()
        found = baseline.fit([get_text(one) for one in train], labels, seed=seed)
        return [Prediction(label=int(label)) for label in found([get_text(one) for one in judged])]

    return fit


def _build_regressor(model: Mean | Ridge | RidgeVectors) -> FitAndPredict:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        values = [float(example.label or 0) for example in train]
        found = model.fit([get_text(one) for one in train], values, seed=seed)
        return [Prediction(value=value) for value in found([get_text(one) for one in judged])]

    return fit


def _predict_frequent_tags(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    found = FrequentTag().fit([one.words for one in train], [one.tags for one in train])
    return [Prediction(tags=tuple(tags)) for tags in found([one.words for one in test])]


def _predict_window_tags(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    found = WindowTags().fit([one.words for one in train], [one.tags for one in train], seed=seed)
    return [Prediction(tags=tuple(tags)) for tags in found([one.words for one in test])]


def _build_span_finder(model: FirstWords | NearWords) -> FitAndPredict:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        asked, new = ([(one.text, one.pair or "") for one in some] for some in (train, judged))
        found = model.fit(asked, [one.answers[0] if one.answers else None for one in train])
        return [Prediction(text=text) for text in found(new)]

    return fit


def _build_vector_chooser(path: str | None) -> FitAndPredict:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        texts = [part for one in [*train, *judged] for part in (one.text, one.pair or "", *one.choices) if part.strip()]
        vectors = WordVectors.load(path) if path else Word2Vec(epochs=10, least=2).train(texts, seed=seed)
        found = []
        for one in judged:
            rows = vectors.average([f"{one.text} {one.pair or ''}", *one.choices])
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            found.append(_build_prediction(one, (rows[1:] @ rows[0]).tolist()))
        return found

    return fit


def _predict_frequent_position(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    counts = Counter(int(one.label or 0) for one in train)
    best = min(counts, key=lambda place: (-counts[place], place))
    return [_build_prediction(one, [float(place == min(best, len(one.choices) - 1)) for place in range(len(one.choices))])
            for one in test]  # fmt: skip


def _choose_by_tfidf(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    table = TfIdf([" ".join([one.text, one.pair or "", *one.choices]) for one in [*train, *test]])
    found = []
    for one in test:
        rows = table([f"{one.text} {one.pair or ''}", *one.choices])
        found.append(_build_prediction(one, np.asarray((rows[1:] @ rows[0].T).todense()).ravel().tolist()))
    return found


def _build_prediction(example: Example, scores: list[float]) -> Prediction:
    return Prediction(label=int(np.argmax(scores)), scores=tuple(scores))


def _predict_first_words(task: Task, train: Examples, test: Examples, seed: int) -> list[Prediction]:
    mean = round(float(np.mean([len((one.target or "").split()) for one in train])))
    return [Prediction(text=" ".join(one.text.split()[: max(mean, 1)])) for one in test]
