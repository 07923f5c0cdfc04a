"""Logits that know what is right: what every way from logits to scores must make a perfect score of."""

import itertools
from collections.abc import Sequence

import numpy as np

from pretune.adaptation.heads.span import END, START
from pretune.core.types import IGNORE_INDEX
from pretune.tasks.decode import Prediction
from pretune.tasks.decode.generated import parse_answer
from pretune.tasks.decode.predict import _PREDICTORS
from pretune.tasks.encode import Items, TaskEncoder
from pretune.tasks.example import Example


def perfect(encoder: TaskEncoder, examples: Sequence[Example]) -> list[Prediction]:
    """The predictions of a model that says exactly what training asks for."""
    learnt = encoder.encode(examples)
    if encoder.is_generative:
        targets, offsets = learnt.sequences.targets, learnt.sequences.offsets
        assert targets is not None
        decode = encoder.rules.tokenizer.decode
        parts = [targets[low:high] for low, high in itertools.pairwise(offsets)]
        said = [decode(part[part != IGNORE_INDEX], special=False).strip() for part in parts]
        return [parse_answer(encoder.rules, example, text) for example, text in zip(examples, said, strict=True)]
    items = encoder.encode(examples, training=False)
    return _PREDICTORS[encoder.task.kind](encoder, examples, items, _logits(encoder, examples, learnt, items))


def _logits(
    encoder: TaskEncoder, examples: Sequence[Example], learnt: Items, items: Items
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    kind, labels, targets = encoder.task.kind, learnt.sequences.labels, learnt.sequences.targets
    if kind == "regression":
        assert labels is not None
        return labels[:, None].astype(np.float32)
    if kind in ("classification", "pair"):
        assert labels is not None
        return np.eye(len(encoder.labels), dtype=np.float32)[labels]
    if kind == "choice":
        right = [float(at == example.label) for example in examples for at in range(len(example.choices))]
        return np.array(right, dtype=np.float32)[:, None]
    assert targets is not None
    known = np.where(targets == IGNORE_INDEX, 0, targets)
    if kind == "tagging":
        return np.eye(len(encoder.labels), dtype=np.float32)[known]
    return np.stack((known & START > 0, known & END > 0), axis=1).astype(np.float32) * 9
