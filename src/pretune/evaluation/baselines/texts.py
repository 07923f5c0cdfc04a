"""Baselines for texts: the majority class, linear models on TF-IDF, and averaged static vectors (a bag of words).

C is chosen by cross-validation. For several labels per text: the most frequent labels, and a linear model per label.
For scores: the mean, and ridge regression on TF-IDF or averaged word vectors.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pretune.core.config import spec
from pretune.data.sequences import Ints
from pretune.evaluation.baselines.base import (
    Baseline,
    Classifier,
    ClassPredictor,
    Label,
    Predictor,
    Text,
    TfIdf,
    average_vectors,
    get_text,
    load_vectors,
    split_pairs,
)
from pretune.evaluation.logistic_regression import fit_probe
from pretune.tasks.example import Examples, Prediction

FOLDS = 3
"""Folds of cross-validation."""


@spec
class Majority(Classifier):
    """Most frequent label for every text; ties are broken alphabetically."""

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Count the labels."""
        counts = Counter(labels)
        majority_label = min(counts, key=lambda label: (-counts[label], str(label)))
        return lambda texts: [majority_label] * len(texts)


class TfIdfClassifier(Classifier):
    """Base class of linear models on TF-IDF of words and bigrams; C is chosen by cross-validation."""

    choices: tuple[float, ...]  # candidates for C

    def build_model(self, seed: int) -> Any:
        """Build the scikit-learn model."""
        raise NotImplementedError

    def fit_classes(self, texts: Sequence[Text], y: Ints, seed: int) -> ClassPredictor:
        features = TfIdf(texts)
        model = fit_best_c(self.build_model(seed), features(texts), y, self.choices, FOLDS, seed)
        return lambda texts: model.predict(features(texts))


@spec
class SVM(TfIdfClassifier):
    """Linear SVM on TF-IDF of words and bigrams (Joachims, 1998; Wang and Manning, 2012)."""

    choices: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)

    def build_model(self, seed: int) -> Any:
        from sklearn.svm import LinearSVC

        return LinearSVC(random_state=seed)


@spec
class LogisticBaseline(TfIdfClassifier):
    """Logistic regression on TF-IDF of words and bigrams."""

    choices: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)

    def build_model(self, seed: int) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(max_iter=300, random_state=seed)


@spec
class AveragedVectors(Classifier):
    """Logistic regression on the mean word vector of a text; the vectors are read from a file or trained here."""

    vectors: str | None = None  # file in word2vec's or GloVe's text format; None: trained on the task's texts
    choices: tuple[float, ...] = (0.03, 0.3, 3.0, 30.0)  # candidates for C

    def fit_classes(self, texts: Sequence[Text], y: Ints, seed: int) -> ClassPredictor:
        vectors = load_vectors(self.vectors, _list_texts(texts), seed)
        probe = fit_probe(average_vectors(vectors, texts), y, self.choices, folds=FOLDS, seed=seed)
        return lambda texts: probe.predict(average_vectors(vectors, texts))


def _list_texts(texts: Sequence[Text]) -> list[str]:
    """Return the texts, and the second ones of pairs, that are not blank."""
    first, second = split_pairs(texts)
    return [text for text in [*first, *(second or [])] if text.strip()]


def fit_best_c(model: Any, x: Any, y: Ints, choices: tuple[float, ...], folds: int, seed: int) -> Any:
    """Fit a model with the best C by stratified cross-validation, refitted on all data.

    The number of folds is at most the size of the smallest class; if that is 1, the middle choice is used.
    """
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = min(folds, int(np.bincount(y).min()))
    if folds < 2:
        return model.set_params(C=choices[len(choices) // 2]).fit(x, y)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return GridSearchCV(model, {"C": list(choices)}, cv=split, error_score="raise").fit(x, y).best_estimator_


@spec
class FrequentLabels(Baseline):
    """Most frequent set of labels, of those that are not empty."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the sets of labels; ties are broken alphabetically."""
        counts = Counter(tuple(sorted(example.tags)) for example in train if example.tags)
        labels = min(counts, key=lambda tags: (-counts[tags], tags), default=())
        return [Prediction(tags=labels)] * len(test)


@spec
class OneVsRest(Baseline):
    """Logistic regression on TF-IDF of words and bigrams, one for each label.

    C is the same for all labels: the one with the best micro F1 in cross-validation.
    """

    choices: tuple[float, ...] = (1.0, 10.0, 100.0)  # candidates for C

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit a classifier for each label of the training examples."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, KFold
        from sklearn.multiclass import OneVsRestClassifier

        labels = sorted({name for example in train for name in example.tags})
        if not labels or not test:
            return [Prediction()] * len(test)
        texts = [get_text(example) for example in train]
        features = TfIdf(texts)
        y = np.array([[name in example.tags for name in labels] for example in train], dtype=int)
        if len(labels) == 1:  # scikit-learn would read one column as two classes
            y = np.hstack([y, np.zeros_like(y)])
        model = OneVsRestClassifier(LogisticRegression(max_iter=300, random_state=seed))
        if len(train) >= 2 * FOLDS:
            split = KFold(FOLDS, shuffle=True, random_state=seed)
            search = GridSearchCV(model, {"estimator__C": list(self.choices)}, cv=split, scoring="f1_micro")
            model = search.fit(features(texts), y).best_estimator_
        else:
            model = model.fit(features(texts), y)
        rows = np.asarray(model.predict(features([get_text(example) for example in test])))[:, : len(labels)]
        return [Prediction(tags=tuple(np.array(labels, dtype=object)[row > 0].tolist())) for row in rows]


ValuePredictor = Callable[[Sequence[Text]], list[float]]


class Regressor(Baseline):
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
    choices: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> ValuePredictor:
        """Train on texts (or pairs) with scores; without a file the vectors are trained on these texts."""
        from sklearn.preprocessing import StandardScaler

        if len(texts) < 6 or not _list_texts(texts):
            return Mean().fit(texts, values)
        vectors = load_vectors(self.vectors, _list_texts(texts), seed)
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

    y, split = np.asarray(values, dtype=np.float64), KFold(FOLDS, shuffle=True, random_state=seed)
    search = GridSearchCV(Model(random_state=seed), {"alpha": list(choices)}, cv=split).fit(features(texts), y)
    low, high = float(y.min()), float(y.max())
    return lambda texts: np.clip(search.predict(features(texts)), low, high).tolist() if texts else []
