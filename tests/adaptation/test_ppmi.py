"""Vectors by counting: the counts, the matrix, and its directions, each against the plainest way to get them."""

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from pretune.adaptation import cooccurrence as counting
from pretune.adaptation.cooccurrence import Ppmi, compute_ppmi, count_matrix
from pretune.adaptation.word2vec import WordCorpus
from pretune.core.errors import UsageError

TEXTS = [["a", "b", "c", "a"], ["c", "b"], ["d"], ["b", "a", "b"]]


def test_words_meet_within_a_window_and_a_text() -> None:
    words = WordCorpus.from_texts(TEXTS, min_count=1)
    met: Counter[tuple[str, str]] = Counter()
    for text in TEXTS:
        for i, word in enumerate(text):
            met.update((word, text[j]) for j in range(max(0, i - 2), min(len(text), i + 3)) if j != i)
    counts = count_matrix(words, 2)
    for i, word in enumerate(words.words):
        for j, context in enumerate(words.words):
            assert counts[i, j] == met[word, context], (word, context)


def test_the_matrix_is_that_of_the_paper() -> None:
    counts = np.array([[4, 2, 0], [2, 0, 1], [0, 1, 6]], dtype=np.float32)
    rows = counts.sum(1)
    smooth = rows**0.75 / (rows**0.75).sum()
    matrix = compute_ppmi(torch.from_numpy(counts.copy()), 0.75)
    for i in range(3):
        for j in range(3):
            share = counts[i, j] / (rows[i] * smooth[j])
            assert matrix[i, j] == pytest.approx(max(0.0, math.log(share)) if share else 0.0, abs=1e-5)


def texts(count: int = 300) -> list[list[str]]:
    """Two subjects, each with words of its own."""
    rng = random.Random(0)
    subjects = [[f"{name}{i}" for i in range(8)] for name in ("sea", "sky")]
    return [[rng.choice([*subjects[i % 2], "and", "the"]) for _ in range(12)] for i in range(count)]


def test_the_directions_are_those_of_a_whole_decomposition() -> None:
    words = WordCorpus.from_texts(texts(), min_count=1)
    vectors = torch.from_numpy(Ppmi(width=4, min_count=1).fit(words).matrix)
    u, s, _ = torch.linalg.svd(compute_ppmi(count_matrix(words, 5), 0.75))
    torch.testing.assert_close(vectors @ vectors.T, (u[:, :4] * s[:4]) @ u[:, :4].T, atol=2e-2, rtol=0)


def test_words_of_one_subject_are_near_each_other_and_the_same_seed_gives_the_same() -> None:
    vectors = Ppmi(width=4, min_count=1).train(texts())
    for name in ("sea", "sky"):
        assert {word[:3] for word, _ in vectors.find_nearest(f"{name}0", 7)} == {name}
    assert (Ppmi(width=4, min_count=1).train(texts()).matrix == vectors.matrix).all()


def test_more_columns_than_words_are_zeros() -> None:
    vectors = Ppmi(width=10, min_count=1).train(TEXTS)
    assert vectors.width == 10 and not vectors.matrix[:, len(vectors) :].any()


def test_too_many_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_WORDS", 2)
    with pytest.raises(UsageError, match=r"\b2\b.*\b4\b"):
        replace(Ppmi(), min_count=1, max_words=None).train(TEXTS)
