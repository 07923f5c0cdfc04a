"""From logits to predictions: classes, scores, options, and tags of words."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pretune.tasks.decode.logits import Floats
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.items import Items
from pretune.tasks.example import Example

OUTSIDE_TAG = "O"
"""The tag of a word that is in no entity."""


def predict_classes(
    encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats
) -> list[Prediction]:
    """The likeliest class of each example, and how likely all are."""
    return [
        Prediction(label=int(row.argmax()), probabilities=tuple(softmax(row).tolist()), scores=tuple(row.tolist()))
        for row in logits
    ]


def predict_values(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """The score of each example."""
    return [Prediction(value=encoder.rules.denormalise_score(float(row[0]))) for row in logits]


def predict_choices(
    encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats
) -> list[Prediction]:
    """The best option of each example."""
    ends = np.cumsum([len(example.choices) for example in examples])[:-1]
    found = np.split(logits[:, 0], ends)
    return [
        Prediction(label=int(row.argmax()), probabilities=tuple(softmax(row).tolist()), scores=tuple(row.tolist()))
        for row in found
    ]


def predict_tags(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """A tag for every word: what its first token says; a word without a token is outside, or has the usual tag."""
    assert items.alignment is not None
    names, offsets = encoder.labels, items.sequences.offsets
    best = logits.argmax(axis=1)
    marked = items.alignment >= 0
    usual = OUTSIDE_TAG
    if OUTSIDE_TAG not in names:
        seen = Counter(best[marked].tolist())
        usual = names[seen.most_common(1)[0][0]] if seen else names[0]
    found: list[Prediction] = []
    for example, low, high in zip(examples, offsets[:-1], offsets[1:], strict=True):
        said = [usual] * len(example.words)
        for at in low + np.flatnonzero(marked[low:high]):
            said[items.alignment[at]] = names[best[at]]
        found.append(Prediction(tags=tuple(said)))
    return found


def softmax(row: Floats) -> Floats:
    """Shares that add up to 1."""
    raised = np.exp(row.astype(np.float64) - row.max())
    return np.asarray(raised / raised.sum())
