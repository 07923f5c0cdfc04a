"""Sequence autoencoder: the same text twice, with a loss on the second reading, which only a state can help."""

import numpy as np
import torch

from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.objectives.autoencoder import SequenceAutoencoder
from tests.objectives.seq2seq_cases import EOS, PAD, VOCABULARY, lists, made
from tests.objectives.seq2seq_cases import rng as counters

TEXT = made([[101, 102, 103, EOS], [104]])
NONE = IGNORE_INDEX


def test_the_examples_of_the_docstring() -> None:
    two = SequenceAutoencoder().bind(VOCABULARY, "encoder-decoder").corrupt(TEXT, counters(TEXT))
    assert lists(two.source) == [[101, 102, 103, EOS], [104]] == lists(two, "targets")
    assert lists(two) == [[PAD, 101, 102, 103], [PAD]]
    one = SequenceAutoencoder().bind(VOCABULARY, "decoder").corrupt(TEXT, counters(TEXT))
    assert lists(one) == [[101, 102, 103, EOS] * 2, [104] * 2]
    assert lists(one, "targets") == [[NONE, NONE, NONE, 101, 102, 103, EOS, NONE], [104, NONE]]


def test_the_second_reading_starts_from_the_state_of_the_first() -> None:
    sizes = {"width": 16, "hidden": 16, "depth": 2, "vocab": 300}
    model = build(resolve("ulmfit", sizes), seed=1).eval()
    after = SequenceAutoencoder().bind(VOCABULARY, "decoder").corrupt(TEXT, counters(TEXT))
    batch = lay_out(after, np.array([0, 0]), BatchShape(rows=1, length=10))
    loss = SequenceAutoencoder().loss(model, batch)
    assert int(loss.count) == 5 and torch.isfinite(loss.sum)
    first = batch.tokens[:1]
    states = model.states(batch)
    batch.tokens[0] = 105  # the first reading of another text
    changed = model.states(batch)
    assert not torch.allclose(states[4:8], changed[4:8], atol=1e-6) and torch.equal(states[8:10], changed[8:10])
    assert int(first) == 105  # a view: the text was changed in place
