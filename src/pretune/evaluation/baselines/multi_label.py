"""Baselines for multi-label classification: the most frequent labels, and a linear model per label."""

from collections import Counter

import numpy as np

from pretune.core.config import spec
from pretune.evaluation.baselines.base import Examples, TaskBaseline, get_text
from pretune.evaluation.baselines.features import TfIdf
from pretune.tasks.example import Prediction


@spec
class FrequentLabels(TaskBaseline):
    """Most frequent set of labels, of those that are not empty."""

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Count the sets of labels; ties are broken alphabetically."""
        counts = Counter(tuple(sorted(example.tags)) for example in train if example.tags)
        labels = min(counts, key=lambda tags: (-counts[tags], tags), default=())
        return [Prediction(tags=labels)] * len(test)


@spec
class OneVsRest(TaskBaseline):
    """Logistic regression on TF-IDF of words and bigrams, one for each label.

    C is the same for all labels: the one with the best micro F1 in cross-validation.
    """

    choices: tuple[float, ...] = (1.0, 10.0, 100.0)  # candidates for C
    folds: int = 3

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
        model = OneVsRestClassifier(LogisticRegression(max_iter=300, random_state=seed))
        if len(train) >= 2 * self.folds:
            split = KFold(self.folds, shuffle=True, random_state=seed)
            search = GridSearchCV(model, {"estimator__C": list(self.choices)}, cv=split, scoring="f1_micro")
            model = search.fit(features(texts), y).best_estimator_
        else:
            model = model.fit(features(texts), y)
        rows = np.asarray(model.predict(features([get_text(example) for example in test])))
        return [Prediction(tags=tuple(np.array(labels, dtype=object)[row > 0].tolist())) for row in rows]
