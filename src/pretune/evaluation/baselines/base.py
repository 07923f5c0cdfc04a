"""Interface of baselines: fit on examples, then predict others; for classifiers, on texts and labels."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import numpy as np

from pretune.core.errors import UsageError
from pretune.data.sequences import Ints
from pretune.tasks.example import Example, Prediction

Text = str | tuple[str, str]
"""A text, or a pair of texts."""

Label = int | str

Predictor = Callable[[Sequence[Text]], list[Label]]
"""Function from texts to predicted labels."""


Examples = Sequence[Example]


class Baseline(Protocol):
    """Spec with the settings of a simple method; its docstring begins with a description for reports."""

    display_name: ClassVar[str]  # in results; "": the name in the registry

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on labelled examples and predict others; the same seed gives the same predictions."""


class TaskBaseline:
    """Base class of baselines."""

    display_name: ClassVar[str] = ""


class Classifier(TaskBaseline):
    """Base class of baselines that predict a class from a text or a pair of texts."""

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Train on labelled texts (or pairs); the same seed gives the same predictions."""
        raise NotImplementedError

    def predict(self, train: Examples, test: Examples, *, seed: int = 0) -> list[Prediction]:
        """Fit on labelled examples and predict others."""
        labels = [int(example.label or 0) for example in train]
        predictor = self.fit([get_text(example) for example in train], labels, seed=seed)
        return [Prediction(label=int(label)) for label in predictor([get_text(example) for example in test])]


def get_text(example: Example) -> Text:
    """Return the text of an example that baselines read."""
    return example.text if example.pair is None else (example.text, example.pair)


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
