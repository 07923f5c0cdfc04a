"""Logits that know what is right: what every way from logits to scores must make a perfect score of."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from pretune.adaptation.heads.coreference import decode_mentions
from pretune.adaptation.heads.dependency import decode_arcs
from pretune.adaptation.heads.token import END, START
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Floats, Items
from pretune.tasks.example import Example, Prediction
from pretune.tasks.types import get_type


def perfect(encoder: TaskEncoder, examples: Sequence[Example]) -> list[Prediction]:
    """The predictions of a model that says exactly what training asks for."""
    training_items = encoder.encode(examples)
    if get_type(encoder.task).inputs.compares_answers:
        sums = np.tile([[-1.0, 1.0], [-3.0, 2.0]], (len(examples), 1)).astype(np.float32)  # means of -1 and -1.5
        return get_type(encoder.task).outputs.decode(encoder.rules, examples, training_items, sums)
    if encoder.is_generative:
        targets, offsets = training_items.sequences.targets, training_items.sequences.offsets
        assert targets is not None
        decode = encoder.rules.tokenizer.decode
        parts = [targets[low:high] for low, high in itertools.pairwise(offsets)]
        texts = [decode(part[part != IGNORE_INDEX], special=False).strip() for part in parts]
        return [
            get_type(encoder.rules.task).outputs.parse_answer(encoder.rules, example, text)
            for example, text in zip(examples, texts, strict=True)
        ]
    items = encoder.encode(examples, training=False)
    return get_type(encoder.task).outputs.decode(
        encoder.rules, examples, items, _logits(encoder, examples, training_items, items)
    )


def _logits(
    encoder: TaskEncoder, examples: Sequence[Example], training_items: Items, items: Items
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    kind, labels, targets = encoder.task.kind, training_items.sequences.labels, training_items.sequences.targets
    if kind == "regression":
        assert labels is not None
        return labels[:, None].astype(np.float32)
    if kind == "multi-label":
        assert labels is not None
        return 2 * labels.astype(np.float32) - 1
    if get_type(encoder.task).scoring.gold == "class":
        assert labels is not None
        return np.eye(len(encoder.task.labels), dtype=np.float32)[labels]
    if kind == "choice":
        right = [float(index == example.label) for example in examples for index in range(len(example.choices))]
        return np.array(right, dtype=np.float32)[:, None]
    assert targets is not None
    if kind == "dependency":
        return _arcs(items, targets, len(encoder.task.labels))
    if kind == "coreference":
        return _links(items, targets)
    target_labels = np.where(targets == IGNORE_INDEX, 0, targets)
    if kind in ("tagging", "srl"):
        return np.eye(len(encoder.task.labels), dtype=np.float32)[target_labels]
    return np.stack((target_labels & START > 0, target_labels & END > 0), axis=1).astype(np.float32) * 9


def _arcs(items: Items, targets: Ints, classes: int) -> Floats:
    """The score and the relation of every pair of tokens, and of every token with the root."""
    blocks = []
    for low, high in itertools.pairwise(items.sequences.offsets):
        pairs = np.zeros((high - low, 1 + high - low, 2), dtype=np.float32)
        for token, target in enumerate(targets[low:high]):
            if target >= 0:
                distance, relation = (int(part) for part in decode_arcs(torch.tensor(target), classes))
                pairs[token, 1 + token + distance if distance else 0] = 9, relation
        blocks.append(pairs.reshape(-1, 2))
    return np.concatenate(blocks)


def _links(items: Items, targets: Ints) -> Floats:
    """A row for each mention, with the last row before it of the same cluster."""
    rows = np.full((len(targets), 3), -1.0, dtype=np.float32)
    assert items.alignment is not None
    for number in np.unique(items.examples):
        sequences = np.flatnonzero(items.examples == number)
        low, high = items.sequences.offsets[sequences[0]], items.sequences.offsets[sequences[-1] + 1]
        tokens = low + np.flatnonzero(items.alignment[low:high] >= 0)
        rows_of_clusters: dict[int, int] = {}
        slots = low + np.flatnonzero(targets[low:high] != IGNORE_INDEX)
        for row, slot in enumerate(slots.tolist()):
            shift, width, cluster = (int(part) for part in decode_mentions(torch.tensor(targets[slot])))
            first = int(np.searchsorted(tokens, slot + shift))
            rows[low + row] = tokens[first] - low, tokens[first + width - 1] - low, rows_of_clusters.get(cluster, -1)
            rows_of_clusters[cluster] = row
    return rows
