"""Interface of baselines: fit on texts and labels, then predict labels of texts."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Ints

Text = str | tuple[str, str]
"""A text, or a pair of texts."""

Label = int | str

Predictor = Callable[[Sequence[Text]], list[Label]]
"""Function from texts to predicted labels."""


class Baseline(Protocol):
    """Spec with the settings of a simple method."""

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Train on labelled texts (or pairs); the same seed gives the same predictions."""


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
