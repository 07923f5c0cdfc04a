"""Baselines for scores: the mean, and ridge regression on TF-IDF or averaged word vectors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pretune.adaptation.static.word2vec import Word2Vec
from pretune.core.config import spec
from pretune.evaluation.baselines.base import (
    Examples,
    TaskBaseline,
    Text,
    TfIdf,
    average_vectors,
    get_text,
    split_pairs,
)
from pretune.inference.word_vectors import WordVectors
from pretune.tasks.example import Prediction

ValuePredictor = Callable[[Sequence[Text]], list[float]]


class Regressor(TaskBaseline):
    """Base class of baselines that predict a score of a text or a pair of texts."""

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> ValuePredictor:
        """Train on texts (or pairs) with scores."""
        raise NotImplementedError

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on examples with scores and predict others."""
        values = [float(example.label or 0) for example in train]
        predictor = self.fit([get_text(example) for example in train], values, seed=seed)
        return [Prediction(value=value) for value in predictor([get_text(example) for example in test])]


@spec
class Mean(Regressor):
    """Mean score."""

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> ValuePredictor:
        """Average the scores."""
        mean = float(np.mean(values))
        return lambda texts: [mean] * len(texts)


@spec
class Ridge(Regressor):
    """Ridge regression on TF-IDF of words and bigrams."""

    choices: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> ValuePredictor:
        """Train on texts (or pairs) with scores; predictions are clipped to the range of the training scores."""
        if len(texts) < 6:
            return Mean().fit(texts, values)
        return _fit_ridge(TfIdf(texts), texts, values, self.choices, seed)


@spec
class RidgeVectors(Regressor):
    """Ridge regression on averaged static vectors."""

    vectors: str | None = None  # file in word2vec's or GloVe's text format; None: trained on the task's texts
    word2vec: Word2Vec = Word2Vec(epochs=10, min_count=2)
    choices: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> ValuePredictor:
        """Train on texts (or pairs) with scores; without a file the vectors are trained on these texts."""
        from sklearn.preprocessing import StandardScaler

        first, second = split_pairs(texts)
        words = [text for text in [*first, *(second or [])] if text.strip()]
        if len(texts) < 6 or not words:
            return Mean().fit(texts, values)
        vectors = WordVectors.load(self.vectors) if self.vectors else self.word2vec.train(words, seed=seed)
        scale = StandardScaler().fit(average_vectors(vectors, texts))
        return _fit_ridge(
            lambda texts: scale.transform(average_vectors(vectors, texts)), texts, values, self.choices, seed
        )


def _fit_ridge(
    features: Callable[[Sequence[Text]], Any],
    texts: Sequence[Text],
    values: Sequence[float],
    choices: Sequence[float],
    seed: int,
) -> ValuePredictor:
    from sklearn.linear_model import Ridge as Model
    from sklearn.model_selection import GridSearchCV, KFold

    y, split = np.asarray(values, dtype=np.float64), KFold(3, shuffle=True, random_state=seed)
    search = GridSearchCV(Model(random_state=seed), {"alpha": list(choices)}, cv=split).fit(features(texts), y)
    low, high = float(y.min()), float(y.max())
    return lambda texts: np.clip(search.predict(features(texts)), low, high).tolist() if texts else []
