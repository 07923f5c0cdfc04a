"""The majority class: what is right most often without looking."""

from collections import Counter
from collections.abc import Sequence

from pretune.core.config import spec
from pretune.evaluation.baselines.base import Label, Predictor, Text


@spec
class Majority:
    """The most frequent label for everything; of equally frequent ones the first as text."""

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Count the labels."""
        counts = Counter(labels)
        most = min(counts, key=lambda label: (-counts[label], str(label)))
        return lambda texts: [most] * len(texts)
