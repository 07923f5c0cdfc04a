"""Random numbers that belong to their sample: not to the batch, the worker, or what was drawn before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.core.seed import mix
from pretune.data.sampling import Counters, Purpose, derive_keys, shuffle_by_key
from pretune.data.sequences import Sequences

sizes = st.lists(st.integers(0, 9), max_size=8)


def sequences(lengths: list[int], epoch: int = 0) -> Sequences:
    count = len(lengths)
    return Sequences(
        tokens=np.arange(sum(lengths)),
        offsets=np.cumsum([0, *lengths]),
        samples=np.arange(100, 100 + count),
        epochs=np.full(count, epoch),
    )


@given(sizes, st.integers(0, 2**64 - 1), st.integers(0, 5), st.integers(0, 9))
def test_a_number_is_a_function_of_its_place(lengths: list[int], seed: int, epoch: int, use: int) -> None:
    found = Counters.from_sequences(seed, sequences(lengths, epoch))
    starts = [(seed, Purpose.CORRUPT, epoch, 100 + number, use) for number in range(len(lengths))]
    assert found.bits(use).tolist() == [mix(*start) for start in starts]
    places = [(*start, place) for start, length in zip(starts, lengths, strict=True) for place in range(length)]
    assert found.bits(use, np.array(lengths, dtype=np.int64)).tolist() == [mix(*place) for place in places]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_company_does_not_matter(lengths: list[int], data: st.DataObject) -> None:
    all_of_them = sequences(lengths)
    some = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1)))
    part = all_of_them.take(some)
    numbers = np.split(
        Counters.from_sequences(5, all_of_them).uniform(1, all_of_them.lengths), all_of_them.offsets[1:-1]
    )
    expected = np.concatenate([numbers[number] for number in some])
    assert Counters.from_sequences(5, part).uniform(1, part.lengths).tolist() == expected.tolist()


def test_the_numbers_are_uniform_and_independent() -> None:
    given = sequences([100] * 1000)
    rng = Counters.from_sequences(0, given)
    one, two = rng.uniform(0, given.lengths), rng.uniform(1, given.lengths)
    assert one.min() >= 0 and one.max() < 1
    for values in (one, two, rng.uniform(0)):
        sigma = (1 / 12 / len(values)) ** 0.5
        assert abs(values.mean() - 0.5) < 4 * sigma
    for shift in (1, 100):
        assert abs(np.corrcoef(one[shift:], one[:-shift])[0, 1]) < 4 / len(one) ** 0.5
    assert abs(np.corrcoef(one, two)[0, 1]) < 4 / len(one) ** 0.5
    assert abs(np.corrcoef(rng.uniform(0), one[::100])[0, 1]) < 4 / 1000**0.5


def test_copies_repeat() -> None:
    """Static masking: the same corruption every k epochs (BERT has 10 copies)."""
    epochs = [Counters.from_sequences(0, sequences([5], epoch), copies=3).uniform(0).tolist() for epoch in range(6)]
    assert epochs[:3] == epochs[3:] and len({*map(tuple, epochs)}) == 3
    dynamic = [Counters.from_sequences(0, sequences([5], epoch)).uniform(0).tolist() for epoch in range(6)]
    assert len({*map(tuple, dynamic)}) == 6


def test_the_order_of_an_epoch_says_nothing_of_its_corruption() -> None:
    """Samples are sorted by one hash; another one decides what happens to them."""
    order = shuffle_by_key(0, Purpose.ORDER, 0, np.arange(5000))
    keys = derive_keys(0, Purpose.CORRUPT, np.zeros(5000, dtype=np.int64), order)
    assert abs(np.corrcoef(np.arange(5000), keys.astype(np.float64))[0, 1]) < 4 / 5000**0.5


def test_a_permutation() -> None:
    numbers = np.arange(3, 1003)
    found = shuffle_by_key(1, Purpose.ORDER, 2, numbers)
    assert sorted(found.tolist()) == numbers.tolist() and found.tolist() != numbers.tolist()
    assert shuffle_by_key(1, Purpose.ORDER, 3, numbers).tolist() != found.tolist()


def test_nobody_knows_whose_they_are() -> None:
    nameless = Sequences(tokens=np.arange(3), offsets=np.array([0, 3]))
    with pytest.raises(UsageError):
        Counters.from_sequences(0, nameless)
