"""What a baseline is: fit on texts and labels, then a function from texts to labels."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.ragged import Ints

Text = str | tuple[str, str]
"""One text, or a pair of them."""

Label = int | str

Predictor = Callable[[Sequence[Text]], list[Label]]
"""From texts to the labels that a baseline gives them."""


class Baseline(Protocol):
    """A spec with the settings of one simple method."""

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Learn from labelled texts (or pairs); the same seed gives the same predictions."""


def split_pairs(texts: Sequence[Text]) -> tuple[list[str], list[str] | None]:
    """First texts and second texts; None for the second where these are no pairs."""
    first = [text if isinstance(text, str) else text[0] for text in texts]
    second = [text[1] for text in texts if not isinstance(text, str)]
    if second and len(second) < len(first):
        raise UsageError(f"{len(second)} of {len(first)} texts are pairs; give either texts or pairs")
    return first, second or None


def encode_labels(labels: Sequence[Label]) -> tuple[list[Label], Ints]:
    """The different labels in order, and each label as its place among them."""
    classes = sorted(set(labels), key=lambda label: (str(type(label)), label))
    place = {label: i for i, label in enumerate(classes)}
    return classes, np.array([place[label] for label in labels], dtype=np.int64)
