"""Scores of texts, the noise of Pareto, and the threshold that keeps a share."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.seed import mix_array
from pretune.text.quality import (
    MAX_CHARACTERS,
    QualityClassifier,
    draw_pareto,
    fit_classifier,
    hash_ngrams,
    select_texts,
)
from tests.data.texts import WORDS, stories


def noises(count: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices("asdfghjkl ", k=200)) for _ in range(count)]


def fit(good: list[str], other: list[str]) -> QualityClassifier:
    return fit_classifier([*map(hash_ngrams, good)], [*map(hash_ngrams, other)])


def test_n_grams_are_a_set_of_words_pairs_and_bytes() -> None:
    text = "One two, three."
    assert hash_ngrams(text).tolist() == hash_ngrams("ONE  two\nthree").tolist()
    assert len(hash_ngrams(text)) == 3 + 2 + len("one two three") - 2
    assert len(hash_ngrams("one two one two")) == 2 + 2 + 8  # each once: 'one', 'ne ', …
    assert len(hash_ngrams("")) == 0 and len(hash_ngrams("a")) == 1
    assert hash_ngrams("a b " * MAX_CHARACTERS + "end").tolist() == hash_ngrams("a b " * MAX_CHARACTERS).tolist()


def test_it_tells_text_from_noise() -> None:
    classifier = fit(stories(100), noises(100))
    assert classifier.accuracy == 1.0
    assert min(map(classifier.score, stories(50, 1000))) > 2 > -2 > max(map(classifier.score, noises(150)[100:]))
    assert classifier.score("") in classifier.biases
    again = fit(stories(100), noises(100))
    assert again.biases == classifier.biases and (again.weights == classifier.weights).all()


def test_shuffled_words_are_noise() -> None:
    order = " ".join(WORDS)
    shuffled = [" ".join(random.Random(number).sample(WORDS, len(WORDS))) for number in range(200)]
    classifier = fit([f"{order} {text}" for text in stories(100)], shuffled[:100])
    assert classifier.score(order) > max(map(classifier.score, shuffled[100:]))


def test_few_texts_have_no_accuracy() -> None:
    assert fit(["good text"], ["bad words"]).accuracy is None


def test_noise_is_that_of_numpy() -> None:
    drawn = np.sort(draw_pareto(mix_array((1,), np.arange(100_000, dtype=np.uint64))))
    expected = np.sort(np.random.default_rng(0).pareto(9, 100_000))
    places = [10_000, 50_000, 90_000, 99_000]
    assert drawn[places] == pytest.approx(expected[places], rel=0.04) and drawn[0] >= 0


@given(st.lists(st.floats(-40, 40), min_size=1, max_size=50), st.floats(0.01, 1), st.integers(0, 2**32))
def test_the_shift_keeps_the_share(scores: list[float], share: float, seed: int) -> None:
    keys, values = mix_array((seed,), np.arange(len(scores), dtype=np.uint64)), np.array(scores)
    noise = draw_pareto(keys)
    kept, shift = select_texts(values, keys, share)
    assert kept.sum() == max(round(share * len(scores)), 1)
    chances = [1 / (1 + np.exp(-values - shift - nudge)) for nudge in (1e-6, -1e-6)]  # the published rule, shifted
    assert (kept <= (noise > 1 - chances[0])).all() and (kept >= (noise > 1 - chances[1]))[noise < 1].all()
    published, zero = select_texts(values, keys, None)
    assert zero == 0 and (published == (noise > 1 - 1 / (1 + np.exp(-values)))).all()
    order = np.random.default_rng(seed).permutation(len(scores))  # no text depends on another's place
    assert (select_texts(values[order], keys[order], share)[0] == kept[order]).all()
