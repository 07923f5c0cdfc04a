"""Masked language modelling: how many, which, and what they are shown as."""

from dataclasses import replace

import numpy as np
import pytest

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Sequences, compute_offsets
from pretune.objectives import build_objective
from pretune.objectives.base import Vocabulary
from pretune.objectives.masked import MAX_WORD_TOKENS, MaskedLM
from tests.objectives.texts import CLS, MASK, SEP, VOCABULARY, corrupt, text


def within(found: float, expected: float, count: int, sigmas: float = 3) -> None:
    """A share of so many draws is as expected."""
    assert abs(found - expected) < sigmas * np.sqrt(expected * (1 - expected) / count) + 1e-9, (found, expected, count)


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("words", [False, True])
def test_rate_and_shares(rate: float, words: bool) -> None:
    before = text(2000, 100)
    after = corrupt(MaskedLM(rate=rate, words=words), before)
    chosen = after.targets != IGNORE_INDEX
    ordinary = 2000 * 98
    # Per sequence the count is off by less than one token, or about one word.
    assert abs(chosen.sum() - rate * ordinary) < 3 * np.sqrt(2000 * (4 if words else 0.25))
    count = int(chosen.sum())
    masked, kept = after.tokens == MASK, after.tokens == before.tokens
    within((masked & chosen).sum() / count, 0.8, count)
    within((kept & chosen).sum() / count, 0.1 + 0.1 / 1000, count)
    assert (kept | chosen).all()
    drawn = after.tokens[chosen & ~masked & ~kept]
    assert np.isin(drawn, VOCABULARY.list_ordinary_ids()).all()
    spread = np.bincount(drawn, minlength=VOCABULARY.size)[VOCABULARY.list_ordinary_ids()]
    assert abs(spread.std() - np.sqrt(spread.mean())) < 0.15 * np.sqrt(spread.mean())  # evenly: as Poisson's law has it


def test_every_place_is_as_likely() -> None:
    before = text(20_000, 22)
    chosen = (corrupt(MaskedLM(), before).targets != IGNORE_INDEX).reshape(-1, 22)
    assert not chosen[:, [0, 21]].any()
    for place in range(1, 21):
        within(chosen[:, place].mean(), 0.15, 20_000, sigmas=4)
    counts = chosen.sum(1)
    assert set(counts) == {3}  # 15 % of 20 tokens, exactly
    pairs = (chosen[:, 1:20] & chosen[:, 2:21]).mean()
    within(pairs, 3 * 2 / (20 * 19), 20_000 * 19, sigmas=4)  # neighbours are no more likely than any two


def test_whole_words_are_masked_whole_or_not_at_all() -> None:
    before = text(500, 60)
    after = corrupt(MaskedLM(words=True, rate=0.3), before)
    assert before.words is not None
    number = np.cumsum(before.words)
    chosen = after.targets != IGNORE_INDEX
    share = np.bincount(number, weights=chosen) / np.bincount(number).clip(1)
    assert set(share) == {0.0, 1.0}


def test_a_word_without_end_is_several() -> None:
    """A text that is one word of 400 tokens would be hidden whole, or not at all."""
    before = replace(text(400, 402), words=None)
    starts = np.zeros((400, 402), dtype=bool)
    starts[:, [0, 1, 401]] = True
    before = replace(before, words=starts.ravel())
    counts = (corrupt(MaskedLM(words=True), before).targets != IGNORE_INDEX).reshape(400, -1).sum(1)
    assert counts.min() >= 60 - MAX_WORD_TOKENS and counts.max() <= 60 + MAX_WORD_TOKENS
    assert abs(counts.mean() - 60) < 3 * MAX_WORD_TOKENS / 2 / np.sqrt(400)


def test_short_texts_are_masked_as_often_as_long_ones() -> None:
    before = text(40_000, 3)  # one token between two special ones
    chosen = (corrupt(MaskedLM(), before).targets != IGNORE_INDEX).reshape(-1, 3)
    within(chosen[:, 1].mean(), 0.15, 40_000)


def test_copies_come_again() -> None:
    before = text(20, 50)
    static = MaskedLM(copies=3)
    epochs = [corrupt(static, replace(before, epochs=np.full(20, epoch))).tokens for epoch in range(7)]
    assert (epochs[0] == epochs[3]).all() and (epochs[1] == epochs[4]).all() and (epochs[0] == epochs[6]).all()
    assert len({tokens.tobytes() for tokens in epochs}) == 3
    anew = [corrupt(MaskedLM(), replace(before, epochs=np.full(20, epoch))).tokens for epoch in range(7)]
    assert len({tokens.tobytes() for tokens in anew}) == 7


def test_evaluation_is_the_same_for_all() -> None:
    for trained in (MaskedLM(rate=0.4), MaskedLM(words=True), MaskedLM(copies=10), MaskedLM(split=(1.0, 0.0, 0.0))):
        assert trained.to_evaluation() == MaskedLM() == build_objective("masked")


def test_a_sentence() -> None:
    """The cat sat on the mat: two of the six words at a rate of a third."""
    cat = Sequences(
        tokens=np.array([CLS, 11, 12, 13, 14, 15, 16, SEP]),
        offsets=compute_offsets(np.array([8])),
        special=np.array([1, 0, 0, 0, 0, 0, 0, 1], dtype=bool),
        samples=np.array([0]),
        epochs=np.array([0]),
    )
    after = corrupt(MaskedLM(rate=1 / 3, split=(1.0, 0.0, 0.0)), cat)
    hidden = np.flatnonzero(after.tokens == MASK)
    assert len(hidden) == 2 and set(hidden) <= {1, 2, 3, 4, 5, 6}
    assert after.targets is not None
    assert after.targets[hidden].tolist() == cat.tokens[hidden].tolist()
    assert (np.delete(after.targets, hidden) == IGNORE_INDEX).all()


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"rate": 0.0}, r"\b0\.0\b"),
        ({"rate": 1.5}, r"\b1\.5\b"),
        ({"split": (0.8, 0.1, 0.2)}, r"\(0\.8, 0\.1, 0\.2\)"),
        ({"split": (1.2, -0.1, -0.1)}, r"split\.1 .*-0\.1"),
        ({"copies": 0}, r"\b0\b"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, object], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        build_objective("masked", **settings)


def test_a_vocabulary_that_lacks_something() -> None:
    with pytest.raises(UsageError, match="mask"):
        MaskedLM().bind(Vocabulary(size=9), "encoder")
    MaskedLM(split=(0.0, 1.0, 0.0)).bind(Vocabulary(size=9), "encoder")  # needs none
    with pytest.raises(UsageError, match=r"\b2\b"):
        MaskedLM().bind(Vocabulary(size=2, special=(0, 1), roles=(("mask", 1),)), "encoder")
