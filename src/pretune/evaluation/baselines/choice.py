"""Baselines for multiple choice: the most frequent position, and the option most similar to the text."""

from collections import Counter
from typing import ClassVar

import numpy as np

from pretune.adaptation.static.word2vec import Word2Vec
from pretune.core.config import spec
from pretune.evaluation.baselines.base import Examples, TaskBaseline, TfIdf
from pretune.inference.word_vectors import WordVectors
from pretune.tasks.example import Example, Prediction


@spec
class FrequentPlace(TaskBaseline):
    """Most frequent position of the right option."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the positions of the right options."""
        counts = Counter(int(example.label or 0) for example in train)
        best = min(counts, key=lambda position: (-counts[position], position))
        positions = [min(best, len(example.choices) - 1) for example in test]
        return [
            _choose([float(i == position) for i in range(len(example.choices))])
            for example, position in zip(test, positions, strict=True)
        ]


@spec
class SimilarWords(TaskBaseline):
    """Option most similar to the text by TF-IDF."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the words of all texts and options."""
        table = TfIdf([" ".join(_get_texts(example)) for example in [*train, *test]])
        predictions = []
        for example in test:
            rows = table([f"{example.text} {example.pair or ''}", *example.choices])
            predictions.append(_choose(np.asarray((rows[1:] @ rows[0].T).todense()).ravel().tolist()))
        return predictions


@spec
class SimilarVectors(TaskBaseline):
    """Option most similar to the text by averaged static vectors."""

    display_name: ClassVar[str] = "vectors"
    vectors: str | None = None  # file in word2vec's or GloVe's text format; None: trained on the task's texts

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Read the vectors, or train them on all texts and options."""
        texts = [text for example in [*train, *test] for text in _get_texts(example) if text.strip()]
        path = self.vectors
        vectors = WordVectors.load(path) if path else Word2Vec(epochs=10, min_count=2).train(texts, seed=seed)
        predictions = []
        for example in test:
            rows = vectors.average([f"{example.text} {example.pair or ''}", *example.choices])
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
            predictions.append(_choose((rows[1:] @ rows[0]).tolist()))
        return predictions


def _get_texts(example: Example) -> list[str]:
    return [example.text, example.pair or "", *example.choices]


def _choose(scores: list[float]) -> Prediction:
    return Prediction(label=int(np.argmax(scores)), scores=tuple(scores))
