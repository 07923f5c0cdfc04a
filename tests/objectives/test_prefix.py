"""Prefix language modelling: the split is fair, and input and target are the text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences
from pretune.objectives.prefix import PrefixLM, draw_split_points
from tests.contracts.restoring import restore_prefix
from tests.objectives.seq2seq_cases import BOS, EOS, PAD, VOCABULARY, framed, lists, made, rng, uniform
from tests.selection import scale_examples

DECODER, PAIR = (PrefixLM().bind(VOCABULARY, shape) for shape in ("decoder", "encoder-decoder"))


def test_example() -> None:
    """The one of the docstring: two tokens given."""
    text = made([[101, 102, 103, 104, 105, EOS]])
    seed = next(s for s in range(99) if draw_split_points(text, rng(text, s)).tolist() == [2])
    after = DECODER.corrupt(text, rng(text, seed))
    assert lists(after, "tokens") == [[101, 102, 103, 104, 105, EOS]]
    assert lists(after, "targets") == [[IGNORE_INDEX, 103, 104, 105, EOS, IGNORE_INDEX]]
    assert after.prefix.tolist() == [2]
    after = PAIR.corrupt(text, rng(text, seed))
    assert lists(after.source) == [[101, 102, EOS]]
    assert lists(after) == [[PAD, 103, 104, 105]] and lists(after, "targets") == [[103, 104, 105, EOS]]


def test_every_split_is_equally_likely() -> None:
    text = uniform(14_000, 8)
    _, counts = np.unique(draw_split_points(text, rng(text)), return_counts=True)
    assert len(counts) == 7, "from one token given to one asked for"
    assert np.abs(counts - 2000).max() < 3 * np.sqrt(2000 * 6 / 7)


@given(text=framed(inner=True), seed=st.integers(0, 99))
@settings(max_examples=scale_examples(60))
def test_input_and_target_restore_the_text(text: Sequences, seed: int) -> None:
    after = PAIR.corrupt(text, rng(text, seed))
    assert (restore_prefix(text, after) == text.tokens).all()
    source, target = PAIR.lengths(text.lengths)
    assert (after.lengths <= target).all() and (after.source.lengths <= source).all()
    assert (after.lengths > 0).all() and (after.source.lengths > 0).all()
    alone = DECODER.corrupt(text, rng(text, seed))
    asked = [[label for label in labels if label != IGNORE_INDEX] for labels in lists(alone, "targets")]
    assert asked == [[label for label in labels if label != IGNORE_INDEX] for labels in lists(after, "targets")]


def test_texts_too_short_to_be_split() -> None:
    text = made([[101], [101, EOS], [BOS, EOS], [101, 102]])
    after = PAIR.corrupt(text, rng(text))
    assert lists(after.source) == [[101], [101, EOS], [BOS, EOS], [101]]
    assert lists(after, "targets") == [[IGNORE_INDEX], [EOS], [IGNORE_INDEX], [102]]
    assert DECODER.corrupt(text, rng(text)).prefix.tolist() == [1, 1, 2, 1]


def test_the_batch_has_the_prefix() -> None:
    text = uniform(3, 6)
    after = DECODER.corrupt(text, rng(text))
    batch = lay_out(after, np.array([0, 0, 1]), BatchShape(rows=2, length=14))
    assert batch.prefix[[0, 1, 3]].tolist() == after.prefix.tolist()
