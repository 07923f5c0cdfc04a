"""Four ways to read: shares, prefixes, and what a model then sees."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.models.catalog import build
from pretune.nn.attention_mask import MaskKind
from pretune.objectives.multitask_masked import MultitaskMaskedLM
from tests.objectives.seq2seq_cases import EOS, MASK, VOCABULARY, made, rng, uniform

LESSON = MultitaskMaskedLM().bind(VOCABULARY, "encoder")


def test_shares() -> None:
    """A third both ways, a third sequence to sequence, a sixth each from the left and from the right."""
    text = uniform(6000, 8)
    after = LESSON.corrupt(text, rng(text))
    counts = np.bincount(after.view, minlength=4)
    for way, share in (
        (MaskKind.BIDIRECTIONAL, 1 / 3),
        (MaskKind.CAUSAL, 1 / 6),
        (MaskKind.ANTICAUSAL, 1 / 6),
        (MaskKind.PREFIX, 1 / 3),
    ):
        assert abs(counts[way] - 6000 * share) < 3 * np.sqrt(6000 * share * (1 - share))
    asked = (after.targets != IGNORE_INDEX).sum()
    assert abs(asked - 6000 * 1.2) < 3 * np.sqrt(6000 * 0.2 * 0.8)
    assert (after.tokens[after.targets != IGNORE_INDEX] == MASK).mean() > 0.78


def test_only_sequence_to_sequence_has_a_prefix() -> None:
    text = uniform(500, 8)
    after = LESSON.corrupt(text, rng(text))
    parted = after.view == MaskKind.PREFIX
    assert (after.prefix[~parted] == 0).all() and {*after.prefix[parted].tolist()} == {*range(1, 8)}


def test_the_first_segment_is_the_prefix() -> None:
    """Where there are two; a text alone is parted at random."""
    text = made([[101, 102, EOS, 103, 104, 105, EOS], [101, 102, 103, EOS]])
    text = replace(text, segments=np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]))
    lesson = MultitaskMaskedLM(shares=(0.0, 0.0, 0.0, 1.0)).bind(VOCABULARY, "encoder")
    found = {tuple(lesson.corrupt(text, rng(text, seed)).prefix.tolist()) for seed in range(30)}
    assert found == {(3, 1), (3, 2)}


@pytest.mark.parametrize("way", MaskKind)
@torch.no_grad()
def test_a_model_sees_what_it_may(way: MaskKind) -> None:
    """The attention of a model over two sequences in a row, against the rule written out."""
    shares = tuple(float(way == other) for other in MaskKind)
    text = uniform(3, 6)
    after = MultitaskMaskedLM(shares=shares).bind(VOCABULARY, "encoder").corrupt(text, rng(text))
    batch = lay_out(after, np.array([0, 0, 1]), BatchShape(rows=2, length=15))
    model = build("bert-tiny", width=16, depth=2, heads=2, hidden=20, vocab=1000).eval()
    plain = model(batch).states
    seen = model(batch, attention=True)
    torch.testing.assert_close(seen.states, plain, rtol=0, atol=1e-5)
    for layer in seen.attention:
        for number, weights in enumerate(layer):
            split = int(after.prefix[number])
            rule = {
                MaskKind.BIDIRECTIONAL: lambda i, j: True,
                MaskKind.CAUSAL: lambda i, j: j <= i,
                MaskKind.ANTICAUSAL: lambda i, j: j >= i,
                MaskKind.PREFIX: lambda i, j, split=split: j < split or (i >= split and j <= i),
            }[way]
            expected = torch.tensor([[rule(i, j) for j in range(7)] for i in range(7)])
            assert ((weights > 0) == expected).all()


def test_numbers_that_mean_nothing() -> None:
    for wrong in ({"shares": (0.5, 0.5, 0.5, 0.5)}, {"shares": (1.5, -0.5, 0.0, 0.0)}, {"rate": 0.0}):
        with pytest.raises(UsageError):
            MultitaskMaskedLM(**wrong)


def test_evaluation_keeps_the_ways_to_read() -> None:
    spec = MultitaskMaskedLM(rate=0.4, split=(1.0, 0.0, 0.0), shares=(0.25, 0.25, 0.25, 0.25))
    assert spec.to_evaluation() == MultitaskMaskedLM(shares=(0.25, 0.25, 0.25, 0.25))
