"""Predictions from logits: classes, scores, options, and tags of words."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pretune.tasks.decode.logits import Floats
from pretune.tasks.decode.prediction import Prediction
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.items import Items
from pretune.tasks.example import Example

OUTSIDE_TAG = "O"
"""Tag of a word outside any entity."""


def predict_classes(
    encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats
) -> list[Prediction]:
    """Return the most likely class of each example, and the probabilities of all."""
    return [
        Prediction(label=int(row.argmax()), probabilities=tuple(softmax(row).tolist()), scores=tuple(row.tolist()))
        for row in logits
    ]


def predict_values(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """Return the score of each example."""
    return [Prediction(value=encoder.rules.denormalize_score(float(row[0]))) for row in logits]


def predict_choices(
    encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats
) -> list[Prediction]:
    """Return the best option of each example."""
    ends = np.cumsum([len(example.choices) for example in examples])[:-1]
    options = np.split(logits[:, 0], ends)
    return [
        Prediction(label=int(row.argmax()), probabilities=tuple(softmax(row).tolist()), scores=tuple(row.tolist()))
        for row in options
    ]


def predict_tags(encoder: TaskEncoder, examples: Sequence[Example], items: Items, logits: Floats) -> list[Prediction]:
    """Return the tag of every word, from its first token; a word without tokens gets "O", or the most frequent tag."""
    assert items.alignment is not None
    names, offsets = encoder.labels, items.sequences.offsets
    best = logits.argmax(axis=1)
    is_first = items.alignment >= 0
    default_tag = OUTSIDE_TAG
    if OUTSIDE_TAG not in names:
        tag_counts = Counter(best[is_first].tolist())
        default_tag = names[tag_counts.most_common(1)[0][0]] if tag_counts else names[0]
    predictions: list[Prediction] = []
    for example, low, high in zip(examples, offsets[:-1], offsets[1:], strict=True):
        tags = [default_tag] * len(example.words)
        for index in low + np.flatnonzero(is_first[low:high]):
            tags[items.alignment[index]] = names[best[index]]
        predictions.append(Prediction(tags=tuple(tags)))
    return predictions


def softmax(row: Floats) -> Floats:
    """Return the softmax of a row."""
    exponentials = np.exp(row.astype(np.float64) - row.max())
    return np.asarray(exponentials / exponentials.sum())
