"""Interface of baselines: fit on examples, then predict others; for classifiers, on texts and labels.

Their features: TF-IDF, static vectors, and the overlap of the texts of a pair.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pretune.adaptation.word2vec import Word2Vec
from pretune.core.errors import UsageError
from pretune.data.sequences import Ints
from pretune.inference.word_vectors import WordVectors, split_words
from pretune.tasks.example import Example, Examples, Prediction

Text = str | tuple[str, str]
"""A text, or a pair of texts."""

Label = int | str

Predictor = Callable[[Sequence[Text]], list[Label]]
"""Function from texts to predicted labels."""
ClassPredictor = Callable[[Sequence[Text]], Iterable[int]]
"""Function from texts to the numbers of predicted classes."""


class Baseline:
    """Spec with the settings of a simple method; its docstring begins with a description for reports."""

    display_name: ClassVar[str] = ""  # in results; "": the name in the registry

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on labelled examples and predict others; the same seed gives the same predictions."""
        raise NotImplementedError


class Classifier(Baseline):
    """Base class of baselines that predict a class from a text or a pair of texts."""

    def fit_classes(self, texts: Sequence[Text], y: Ints, seed: int) -> ClassPredictor:
        """Train on texts (or pairs) with two or more classes, as numbers."""
        raise NotImplementedError

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Train on labelled texts (or pairs); the same seed gives the same predictions."""
        classes, y = encode_labels(labels)
        if len(classes) < 2:
            return lambda texts: classes * len(texts)
        predict = self.fit_classes(texts, y, seed)
        return lambda texts: [classes[i] for i in predict(texts)] if texts else []

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        labels = [int(example.label or 0) for example in train]
        predictor = self.fit([get_text(example) for example in train], labels, seed=seed)
        return [Prediction(label=int(label)) for label in predictor([get_text(example) for example in test])]


def get_text(example: Example) -> Text:
    """Return the text of an example that baselines read."""
    return example.text if example.pair is None else (example.text, example.pair)


def split_pairs(texts: Sequence[Text]) -> tuple[list[str], list[str] | None]:
    """Return first texts and second texts; None for the second if the texts are not pairs."""
    first = [text if isinstance(text, str) else text[0] for text in texts]
    second = [text[1] for text in texts if not isinstance(text, str)]
    if second and len(second) < len(first):
        raise UsageError(f"{len(second)} of {len(first)} texts are pairs; pass either texts or pairs")
    return first, second or None


def encode_labels(labels: Sequence[Label]) -> tuple[list[Label], Ints]:
    """Return the sorted classes, and each label as its class index."""
    classes = sorted(set(labels), key=lambda label: (str(type(label)), label))
    index = {label: i for i, label in enumerate(classes)}
    return classes, np.array([index[label] for label in labels], dtype=np.int64)


class TfIdf:
    """TF-IDF of words and word bigrams, weighted by (1 + log tf) x idf.

    The two sides of a pair have separate columns (the same word counts differently in a premise and in a hypothesis);
    their product (shared words) and six overlap features are appended.
    """

    def __init__(self, texts: Sequence[Text]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        first, second = split_pairs(texts)
        self._table = TfidfVectorizer(
            analyzer=extract_ngrams, sublinear_tf=True, min_df=compute_min_df(len(texts)), dtype=np.float32
        )
        documents = first if second is None else [*first, *second]
        try:
            self._table.fit(documents)
        except ValueError:  # no term is in two texts
            self._table.set_params(min_df=1).fit(documents)

    def __call__(self, texts: Sequence[Text]) -> Any:
        """Return a sparse matrix with a row for each text."""
        from scipy import sparse

        first, second = split_pairs(texts)
        left = self._table.transform(first)
        if second is None:
            return left
        right = self._table.transform(second)
        return sparse.hstack(
            [left, right, left.multiply(right), sparse.csr_matrix(compute_overlap(first, second))], format="csr"
        )


def compute_min_df(texts: int) -> int:
    """Return the minimum document frequency for a number of texts."""
    return 2 if texts >= 1000 else 1


def extract_ngrams(text: str) -> list[str]:
    """Return words and bigrams; a text without words gives one empty feature.

    >>> extract_ngrams("Not good")
    ['not', 'good', 'not good']
    """
    words = split_words(text)
    return [*words, *(" ".join(bigram) for bigram in itertools.pairwise(words))] or [""]


def compute_overlap(first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
    """Return six overlap features per pair: coverage both ways, Jaccard of words and bigrams, length ratio and order.

    >>> compute_overlap(["a b"], ["a c d e"]).astype(float).round(2).tolist()
    [[0.5, 0.25, 0.2, 0.0, 0.5, 1.0]]
    """
    rows = []
    for left_text, right_text in zip(first, second, strict=True):
        left_words, right_words = split_words(left_text), split_words(right_text)
        left, right = set(left_words), set(right_words)
        left_bigrams, right_bigrams = set(itertools.pairwise(left_words)), set(itertools.pairwise(right_words))
        common = len(left & right)
        rows.append(
            (
                common / max(len(left), 1),
                common / max(len(right), 1),
                common / max(len(left | right), 1),
                len(left_bigrams & right_bigrams) / max(len(left_bigrams | right_bigrams), 1),
                min(len(left_words), len(right_words)) / max(len(left_words), len(right_words), 1),
                float(len(left_words) < len(right_words)),
            )
        )
    return np.array(rows, dtype=np.float32).reshape(-1, 6)


def load_vectors(path: str | None, texts: Sequence[str], seed: int) -> WordVectors:
    """Return the word vectors of a file; without one those that are trained on the texts."""
    return WordVectors.load(path) if path else Word2Vec(epochs=10, min_count=2).train(texts, seed=seed)


def average_vectors(vectors: WordVectors, texts: Sequence[Text]) -> NDArray[np.float32]:
    """Return the mean vector of each text; for a pair (a, b): a, b, |a - b|, a * b (as in InferSent) and overlap."""
    first, second = split_pairs(texts)
    left = vectors.average(first)
    if second is None:
        return left
    right = vectors.average(second)
    return np.concatenate((left, right, np.abs(left - right), left * right, compute_overlap(first, second)), axis=1)
