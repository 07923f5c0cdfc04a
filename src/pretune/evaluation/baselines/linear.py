"""Linear models on TF-IDF: support vector machine and logistic regression, C chosen by cross-validation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pretune.core.config import spec
from pretune.data.sequences import Ints
from pretune.evaluation.baselines.base import Label, Predictor, Text, encode_labels
from pretune.evaluation.baselines.features import TfIdf
from pretune.evaluation.baselines.majority import Majority


@spec
class SVM:
    """Linear SVM on TF-IDF of words and bigrams (Joachims, 1998; Wang and Manning, 2012)."""

    choices: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)  # candidates for C
    folds: int = 3

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Train on labelled texts (or pairs)."""
        from sklearn.svm import LinearSVC

        if len(set(labels)) < 2:
            return Majority().fit(texts, labels)
        features, (classes, y) = TfIdf(texts), encode_labels(labels)
        model = fit_best_c(LinearSVC(random_state=seed), features(texts), y, self.choices, self.folds, seed)
        return lambda texts: [classes[i] for i in model.predict(features(texts))] if texts else []


@spec
class LogisticBaseline:
    """Logistic regression on TF-IDF of words and bigrams."""

    choices: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)  # candidates for C
    folds: int = 3

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Train on labelled texts (or pairs)."""
        from sklearn.linear_model import LogisticRegression

        if len(set(labels)) < 2:
            return Majority().fit(texts, labels)
        features, (classes, y) = TfIdf(texts), encode_labels(labels)
        model = LogisticRegression(max_iter=300, random_state=seed)
        classifier = fit_best_c(model, features(texts), y, self.choices, self.folds, seed)
        return lambda texts: [classes[i] for i in classifier.predict(features(texts))] if texts else []


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
