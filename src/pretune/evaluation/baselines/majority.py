"""Majority class baseline."""

from collections import Counter
from collections.abc import Sequence

from pretune.core.config import spec
from pretune.evaluation.baselines.base import Label, Predictor, Text


@spec
class Majority:
    """Most frequent label for every text; ties are broken alphabetically."""

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Count the labels."""
        counts = Counter(labels)
        majority_label = min(counts, key=lambda label: (-counts[label], str(label)))
        return lambda texts: [majority_label] * len(texts)
