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
from pretune.core.errors import UsageError, nearest
from pretune.core.seed import generator
from pretune.evaluation.baselines import BASELINES, DEFAULT
from pretune.evaluation.baselines.base import Text
from pretune.evaluation.baselines.features import TfIdf
from pretune.evaluation.baselines.regression import Mean, Ridge, RidgeVectors
from pretune.evaluation.baselines.spans import Lead, Near
from pretune.evaluation.baselines.static_vectors import Averaged
from pretune.evaluation.baselines.table import MOST
from pretune.evaluation.baselines.tagging import FrequentTag, WindowTags
from pretune.inference.word_vectors import Vectors
from pretune.tasks.decode import Prediction
from pretune.tasks.example import Example
from pretune.tasks.task import Task

PROBE, RANDOM, COSINE = "probe", "random", "cosine"
"""A linear model on the frozen model's features; the same model from random weights; of pairs with scores, the cosine
of the vectors of the model before fine-tuning. Whoever has it runs them."""
ALL = (*BASELINES.names(), PROBE, RANDOM, COSINE)
NAMED = {"default": (*DEFAULT, COSINE), "all": ALL, "none": ()}
OWN_NAMES = {
    "regression": {"majority": "mean", "svm": "ridge", "vectors": "ridge_vectors"},
    "tagging": {"majority": "frequent_tag"},
    "span": {"majority": "first_words", "svm": "near_words"},
    "choice": {"majority": "frequent_place", "svm": "tfidf"},
    "generation": {"majority": "first_words"},
}
"""Names of baselines that are something else for a kind of task than the classifier in whose place they stand."""

Examples = Sequence[Example]
Fit = Callable[[Task, Examples, Examples, int], list[Prediction]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One baseline: its name, what it is, what it says of every example, and the seconds it took."""

    name: str
    about: str
    predictions: list[Prediction]
    seconds: float
    slot: str = ""  # the name that it was asked for by, where that is another


def names_of(wish: str) -> tuple[str, ...]:
    """The baselines that are asked for: default, all, none, or names with commas between them."""
    if wish in NAMED:
        return NAMED[wish]
    places = {own: slot for names in OWN_NAMES.values() for slot, own in names.items()}
    names = tuple(dict.fromkeys(places.get(name, name) for name in wish.split(",")))
    for name in names:
        if name not in ALL:
            known = [*NAMED, *ALL, *places]
            raise UsageError(f"unknown baseline '{name[:40]}'{nearest(name, known)} (allowed: {', '.join(known)})")
    return names


def beside(
    task: Task,
    train: Examples,
    judged: Examples,
    names: Sequence[str],
    *,
    most: int = MOST,
    seed: int = 0,
    vectors: str | None = None,
) -> tuple[list[Beside], dict[str, str]]:
    """Fit baselines on at most so many training examples and predict a split; and those not run, with the reason.

    `vectors` is a file of word vectors for the baseline of averaged vectors, else trained on the task's texts.
    """
    some = train
    if len(train) > most:
        some = [train[i] for i in sorted(generator(seed, 0).permutation(len(train))[:most].tolist())]
    rows: list[Beside] = []
    absent: dict[str, str] = {}
    own = OWN_NAMES.get(task.kind, {})
    for name in ALL:
        if name == COSINE and not is_similarity(task, judged):
            absent[name] = "it is for pairs with scores"
            continue
        fit, about = _found(task, name, vectors)
        if fit is None:
            absent[name] = about
        elif name not in names:
            absent[own.get(name, name)] = "not asked for (`--baselines all`)"
        else:
            begun = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a solver that has not quite come to its end
                said = fit(task, some, judged, seed)
            seconds = time.perf_counter() - begun
            rows.append(Beside(name=own.get(name, name), about=about, predictions=said, seconds=seconds, slot=name))
    return rows, absent


def is_similarity(task: Task, examples: Examples) -> bool:
    """Return whether a task asks for scores of pairs of texts."""
    return task.kind == "regression" and bool(examples) and all(one.pair is not None for one in examples)


def _found(task: Task, name: str, vectors: str | None) -> tuple[Fit | None, str]:
    """How a baseline is fitted to a kind of task and what it is; None and why where it is not."""
    if name in (PROBE, RANDOM, COSINE):
        return None, "not asked for (`--baselines all`)"
    if task.kind in ("classification", "pair"):
        return _classes(name, vectors), BASELINES.describe(name).rstrip(".")
    special: dict[str, dict[str, tuple[Fit, str]]] = {
        "regression": {
            "majority": (_values(Mean()), "The mean score for everything"),
            "svm": (_values(Ridge()), "TF-IDF of words and word pairs, ridge regression"),
            "vectors": (_values(RidgeVectors(vectors=vectors)), "Averaged static vectors, ridge regression"),
        },
        "tagging": {
            "majority": (_tags, "A word's most frequent tag"),
            "svm": (_window, "A linear SVM on the word and its neighbours"),
        },
        "span": {
            "majority": (_spans(Lead()), "The first words of the passage, or none where most have no answer"),
            "svm": (_spans(Near()), "Words near to those of the question, or none where most have no answer"),
        },
        "choice": {
            "majority": (_place, "The option that is right most often by its place"),
            "svm": (_overlap, "The option that is most like the text by TF-IDF"),
            "vectors": (_alike(vectors), "The option that is most like the text by averaged static vectors"),
        },
        "generation": {"majority": (_lead, "The first words of the text, as many as answers have")},
    }
    found = special.get(task.kind, {}).get(name)
    return found or (None, f"it is not for tasks of the kind '{task.kind}'")


def text_of(example: Example) -> Text:
    """What baselines read of an example."""
    return example.text if example.pair is None else (example.text, example.pair)


def _classes(name: str, vectors: str | None) -> Fit:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        labels = [int(example.label or 0) for example in train]
        method = BASELINES.get(name)
        baseline = Averaged(vectors=vectors) if method is Averaged else method()
        found = baseline.fit([text_of(one) for one in train], labels, seed=seed)
        return [Prediction(label=int(label)) for label in found([text_of(one) for one in judged])]

    return fit


def _values(model: Mean | Ridge | RidgeVectors) -> Fit:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        values = [float(example.label or 0) for example in train]
        found = model.fit([text_of(one) for one in train], values, seed=seed)
        return [Prediction(value=value) for value in found([text_of(one) for one in judged])]

    return fit


def _tags(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
    found = FrequentTag().fit([one.words for one in train], [one.tags for one in train])
    return [Prediction(tags=tuple(tags)) for tags in found([one.words for one in judged])]


def _window(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
    found = WindowTags().fit([one.words for one in train], [one.tags for one in train], seed=seed)
    return [Prediction(tags=tuple(tags)) for tags in found([one.words for one in judged])]


def _spans(model: Lead | Near) -> Fit:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        asked, new = ([(one.text, one.pair or "") for one in some] for some in (train, judged))
        found = model.fit(asked, [one.answers[0] if one.answers else None for one in train])
        return [Prediction(text=text) for text in found(new)]

    return fit


def _alike(path: str | None) -> Fit:
    def fit(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
        texts = [part for one in [*train, *judged] for part in (one.text, one.pair or "", *one.choices) if part.strip()]
        vectors = Vectors.load(path) if path else Word2Vec(epochs=10, least=2).train(texts, seed=seed)
        found = []
        for one in judged:
            rows = vectors.average([f"{one.text} {one.pair or ''}", *one.choices])
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            found.append(_chosen(one, (rows[1:] @ rows[0]).tolist()))
        return found

    return fit


def _place(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
    counts = Counter(int(one.label or 0) for one in train)
    best = min(counts, key=lambda place: (-counts[place], place))
    return [_chosen(one, [float(place == min(best, len(one.choices) - 1)) for place in range(len(one.choices))])
            for one in judged]  # fmt: skip


def _overlap(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
    table = TfIdf([" ".join([one.text, one.pair or "", *one.choices]) for one in [*train, *judged]])
    found = []
    for one in judged:
        rows = table([f"{one.text} {one.pair or ''}", *one.choices])
        found.append(_chosen(one, np.asarray((rows[1:] @ rows[0].T).todense()).ravel().tolist()))
    return found


def _chosen(example: Example, scores: list[float]) -> Prediction:
    return Prediction(label=int(np.argmax(scores)), scores=tuple(scores))


def _lead(task: Task, train: Examples, judged: Examples, seed: int) -> list[Prediction]:
    mean = round(float(np.mean([len((one.target or "").split()) for one in train])))
    return [Prediction(text=" ".join(one.text.split()[: max(mean, 1)])) for one in judged]
