import random

import numpy as np
import pytest

from pretune.core.errors import UsageError
from pretune.text.neardup import NearDuplicates, _Buckets, choose_bands
from tests.selection import keep_quick

WORDS = [
    f"{a}{b}" for a in ("ba", "ko", "mi", "tu", "re", "sa", "lo", "ne") for b in ("n", "ra", "st", "ti", "x", "do")
]


def page(rng: random.Random, words: int = 300) -> list[str]:
    return [rng.choice(WORDS) for _ in range(words)]


def changed(rng: random.Random, words: list[str], rate: float) -> list[str]:
    return [f"changed{rng.randrange(10**9)}" if rng.random() < rate else word for word in words]


def similarity(one: list[str], other: list[str]) -> float:
    """Jaccard similarity of the runs of five words."""
    first, second = ({tuple(words[at : at + 5]) for at in range(len(words) - 4)} for words in (one, other))
    return len(first & second) / len(first | second)


@pytest.mark.parametrize("threshold", keep_quick([0.5, 0.8], 0.8))
def test_recall_and_precision(threshold: float) -> None:
    rng = random.Random(0)
    near = NearDuplicates(threshold)
    pages = [page(rng) for _ in range(150)]
    assert not any(near.add(near.compute_signature(" ".join(words))) for words in pages)
    above: list[bool] = []
    below: list[bool] = []
    for words in pages * 4:
        other = changed(rng, words, rng.choice([0.005, 0.01, 0.02, 0.05, 0.12, 0.2]))
        real = similarity(words, other)
        probe = NearDuplicates(threshold)
        probe.add(probe.compute_signature(" ".join(words)))
        found = probe.add(probe.compute_signature(" ".join(other)))
        if real >= threshold + 0.08:
            above.append(found)
        elif real <= threshold - 0.12:
            below.append(found)
    assert len(above) > 100 and len(below) > 100
    assert np.mean(above) >= 0.99
    assert np.mean(below) <= 0.01


def test_the_estimate_is_not_biased() -> None:
    rng = random.Random(1)
    near = NearDuplicates()
    errors = []
    for _ in range(200):
        words = page(rng, 200)
        other = changed(rng, words, 0.03)
        agree = (near.compute_signature(" ".join(words)) == near.compute_signature(" ".join(other))).mean()
        errors.append(agree - similarity(words, other))
    assert abs(np.mean(errors)) < 0.01  # sigma 0.003
    assert np.std(errors) < 0.05  # 0.037 expected of 128 independent hash functions


def test_signatures_are_pinned() -> None:
    """They are computed in one process and compared in another, perhaps on another day."""
    found = NearDuplicates().compute_signature("The quick brown fox jumps over the lazy dog")
    assert found.dtype == np.uint32
    assert found[:3].tolist() == [487526900, 610488074, 605736826]


def test_case_and_punctuation_do_not_matter_but_order_does() -> None:
    near = NearDuplicates()
    first = near.compute_signature("One, two; three (four) five-six. Seven!")
    assert (near.compute_signature("one two three four five six seven") == first).all()
    assert not (near.compute_signature("seven six five four three two one") == first).any()


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    near = NearDuplicates()
    text = "".join(chr(0x4E00 + 7 * number) for number in range(300))
    assert not near.add(near.compute_signature(text))
    assert near.add(near.compute_signature(text[:150] + "新" + text[150:]))


@pytest.mark.parametrize("text", ["", "one", "one two", "!!!", "😀"])
def test_short_texts_have_signatures(text: str) -> None:
    near = NearDuplicates()
    assert not near.add(near.compute_signature(text))
    assert near.add(near.compute_signature(text))


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_fit_and_miss_little(threshold: float) -> None:
    count, rows = choose_bands(threshold, 128)
    assert count * rows <= 128
    assert 1 - (1 - threshold**rows) ** count >= 0.98


@pytest.mark.slow
def test_memory_is_as_stated() -> None:
    rng = random.Random(2)
    near = NearDuplicates(0.8)
    for _ in range(5000):
        near.add(near.compute_signature(" ".join(page(rng, 20))))
    assert near.bytes / 5000 < 1200


def test_buckets_are_a_dictionary() -> None:
    rng = random.Random(3)
    buckets, expected = _Buckets(8), dict[int, int]()
    for value in range(3000):
        key = rng.choice([rng.getrandbits(64), rng.getrandbits(10), 2**64 - 1 - rng.getrandbits(4)])
        buckets.put(key, value)
        expected.setdefault(key, value)
    assert all(buckets.get(key) == value for key, value in expected.items())
    assert all(buckets.get(key) == -1 for key in range(2000, 3000) if key not in expected)


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.1, float("nan")])
def test_what_is_no_threshold(threshold: float) -> None:
    with pytest.raises(UsageError, match=str(threshold)):
        NearDuplicates(threshold)
