"""Masked sequence to sequence: one stretch of half the text, anywhere."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Sequences
from pretune.objectives.masked_seq2seq import MaskedSeq2seq
from tests.contracts.restoring import restore_span, sides
from tests.objectives.seq2seq_cases import (
    BOS,
    EOS,
    MASK,
    PAD,
    RELEASED,
    SENTINELS,
    VOCABULARY,
    framed,
    lists,
    made,
    uniform,
)
from tests.objectives.seq2seq_cases import rng as counters
from tests.selection import scale_examples

PLAIN = MaskedSeq2seq(split=(1.0, 0.0, 0.0)).bind(VOCABULARY, "encoder-decoder")


def test_example() -> None:
    """The one of the docstring: three of six tokens, in the middle."""
    text = made([[101, 102, 103, 104, 105, 106, EOS]])
    found = set()
    for seed in range(60):
        after = PLAIN.corrupt(text, counters(text, seed))
        found.add(tuple(lists(after.source)[0]))
        if lists(after.source) == [[101, MASK, MASK, MASK, 105, 106, EOS]]:
            assert lists(after) == [[PAD, 102, 103]] and lists(after, "targets") == [[102, 103, 104]]
    assert len(found) == 4, "every place"


def test_half_of_the_text_anywhere() -> None:
    text = uniform(9000, 9)
    after = PLAIN.corrupt(text, counters(text))
    assert abs(after.lengths.mean() - 4.5) < 3 * 0.5 / np.sqrt(9000) and {*after.lengths.tolist()} == {4, 5}
    starts = (after.source.tokens == MASK).reshape(9000, 10).argmax(1)
    counts = np.bincount(starts[after.lengths == 4], minlength=6)
    expected = (after.lengths == 4).sum() / 6
    assert np.abs(counts - expected).max() < 3 * np.sqrt(expected)


def test_shares_of_the_disguise() -> None:
    text = uniform(400, 100)
    after = MaskedSeq2seq().bind(VOCABULARY, "encoder-decoder").corrupt(text, counters(text))
    hidden = 400 * 50
    for share, found in (
        (0.8, (after.source.tokens == MASK).sum()),
        (0.1, ((after.source.tokens != MASK) & (after.source.tokens != text.tokens)).sum()),
    ):
        assert abs(found - share * hidden) < 3 * np.sqrt(hidden * share * (1 - share)) + hidden * share / 700


@given(text=framed(inner=True), seed=st.integers(0, 99), rate=st.sampled_from((0.5, 0.3, 1.0)))
@settings(max_examples=scale_examples(60))
def test_input_and_target_restore_the_text(text: Sequences, seed: int, rate: float) -> None:
    lesson = MaskedSeq2seq(rate=rate).bind(VOCABULARY, "encoder-decoder")
    after = lesson.corrupt(text, counters(text, seed))
    source, target = lesson.lengths(text.lengths)
    assert (after.lengths <= target).all() and (after.source.lengths == source).all()
    if not any(t in (BOS, EOS) for row in lists(text) for t in row[1:-1]):  # no stretch reaches over one
        assert (restore_span(text, after) == text.tokens).all()
    for before, (shown, labels) in zip(lists(text), sides(after), strict=True):
        ordinary = [t for t in before if t not in (BOS, EOS)]
        assert len(labels) >= (len(ordinary) > 0) and " ".join(map(str, labels)) in " ".join(map(str, ordinary))
        assert [t for t in shown if t in (BOS, EOS)] == [t for t in before if t in (BOS, EOS)]


def test_nothing_to_hide() -> None:
    text = made([[BOS, EOS], [101]])
    after = PLAIN.corrupt(text, counters(text))
    assert lists(after.source) == [[BOS, EOS], [MASK]] and lists(after, "targets") == [[IGNORE_INDEX], [101]]


def test_a_sentinel_stands_in_for_the_mask() -> None:
    text = uniform(3, 40)
    after = MaskedSeq2seq().bind(RELEASED, "encoder-decoder").corrupt(text, counters(text))
    assert (after.source.tokens == SENTINELS[0]).sum() > 30
    both = replace(RELEASED, roles=(("mask", 77),))
    assert (MaskedSeq2seq().bind(both, "encoder-decoder").corrupt(text, counters(text)).source.tokens == 77).any()
