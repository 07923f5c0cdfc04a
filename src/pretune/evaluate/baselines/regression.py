"""Baselines for scores: the mean of those seen, and ridge regression over TF-IDF."""

from collections.abc import Callable, Sequence

import numpy as np

from pretune.core.config import spec
from pretune.evaluate.baselines.features import TfIdf
from pretune.evaluate.baselines.method import Text

Valued = Callable[[Sequence[Text]], list[float]]


@spec
class Mean:
    """The mean score for everything."""

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> Valued:
        """Average the scores."""
        mean = float(np.mean(values))
        return lambda texts: [mean] * len(texts)


@spec
class Ridge:
    """TF-IDF of words and word pairs, ridge regression, its penalty found by cross-validation."""

    choices: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def fit(self, texts: Sequence[Text], values: Sequence[float], *, seed: int = 0) -> Valued:
        """Learn from texts (or pairs) with scores; predictions stay within those seen."""
        from sklearn.linear_model import Ridge as Model
        from sklearn.model_selection import GridSearchCV, KFold

        if len(texts) < 6:
            return Mean().fit(texts, values)
        features, y = TfIdf(texts), np.asarray(values, dtype=np.float64)
        split = KFold(3, shuffle=True, random_state=seed)
        found = GridSearchCV(Model(random_state=seed), {"alpha": list(self.choices)}, cv=split).fit(features(texts), y)
        low, high = float(y.min()), float(y.max())
        return lambda texts: np.clip(found.predict(features(texts)), low, high).tolist() if texts else []
