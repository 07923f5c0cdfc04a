"""Pairs of segments: contiguous where the label says so, from another document where it does not, nothing lost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.pairs import BROKEN_LABEL, INTACT_LABEL, SegmentPairs
from pretune.data.shards import Shards
from tests.data.corpora import CLS, FRAMES, SEP, every, opened, random_documents, split

FRAME = FRAMES["around"]


def segments(cut: Any) -> list[tuple[list[int], list[int]]]:
    """The two texts of every sequence."""
    found = []
    parts = zip(split(cut), split(cut, "segments"), split(cut, "special"), strict=True)
    for tokens, sides, special in parts:
        both: tuple[list[int], list[int]] = ([], [])
        for token, side, marked in zip(tokens, sides, special, strict=True):
            if not marked:
                both[side].append(token)
        found.append(both)
    return found


def document_of(shards: Shards, token: int) -> int:
    return int(np.searchsorted(shards.documents, token, side="right") - 1)


corpus = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=8), min_size=2, max_size=12)


@given(corpus, st.integers(6, 30), st.integers(0, 2**32), st.integers(0, 3), st.sampled_from(["other", "swapped"]))
def test_pairs(given: list[list[int]], limit: int, seed: int, round: int, broken: Any) -> None:
    with opened(given) as shards:
        try:
            samples = SegmentPairs(limit=limit, broken=broken).open(shards, FRAME)
        except DataError:  # all pairs are of one document
            assert broken == "other"
            return
        draws = every(samples, seed, round)
        cut = samples.cut(draws)
        assert cut.labels is not None and (cut.lengths <= limit).all()
        found = segments(cut)
        assert sorted(token for both in found for side in both for token in side) == list(range(len(shards)))
        for (first, second), label in zip(found, cut.labels.tolist(), strict=True):
            for side in filter(None, (first, second)):
                assert side == list(range(side[0], side[-1] + 1)), "a segment is one stretch"
            if label == IGNORE_INDEX:
                assert not second
                continue
            start = first[0] if label == BROKEN_LABEL and broken == "swapped" else second[0]
            assert start in shards.sentences, "the later segment starts at a sentence"
            if label == INTACT_LABEL:
                assert second[0] == first[-1] + 1
            elif broken == "swapped":
                assert first[0] == second[-1] + 1
            else:
                assert document_of(shards, first[0]) != document_of(shards, second[0])


def test_the_frame_of_a_pair_and_of_one_that_is_alone() -> None:
    with opened([[3, 2], [4]]) as shards:
        samples = SegmentPairs(limit=12, share=0).open(shards, FRAME)
        cut = samples.cut(every(samples).take(np.argsort(every(samples).samples)))
        assert split(cut) == [[CLS, 0, 1, 2, SEP, 3, 4, SEP], [CLS, 5, 6, 7, 8, SEP]]
        assert split(cut, "segments") == [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 6]
        assert cut.labels is not None and cut.labels.tolist() == [INTACT_LABEL, IGNORE_INDEX]


def test_segments_are_about_half_the_limit() -> None:
    with opened(random_documents(0, 60, sentences=60)) as shards:
        samples = SegmentPairs(limit=128).open(shards, FRAME)
        cut = samples.cut(every(samples))
        full = [(len(a), len(b)) for a, b in segments(cut) if len(a) + len(b) == 125]
        assert len(full) > 200
        assert np.mean([abs(a - b) for a, b in full]) < 2 * 12  # a sentence has 12 tokens


@pytest.mark.parametrize("broken", ["other", "swapped"])
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_as_many_are_broken_as_asked(broken: Any, share: float) -> None:
    with opened(random_documents(1, 400, sentences=20)) as shards:
        samples = SegmentPairs(limit=48, broken=broken, share=share).open(shards, FRAME)
        for epoch in range(3):
            labels = every(samples, seed=5, round=epoch).labels
            assert labels is not None
            labels = labels[labels != IGNORE_INDEX]
            sigma = (share * (1 - share) / len(labels)) ** 0.5
            assert len(labels) > 2000 and abs(labels.mean() - share) < 3 * sigma


def test_every_epoch_breaks_others() -> None:
    with opened(random_documents(1, 100, sentences=20)) as shards:
        samples = SegmentPairs(limit=48).open(shards, FRAME)
        one, two, other = every(samples, 0, 0), every(samples, 0, 1), every(samples, 1, 0)
        again = every(samples, 0, 0)

        def partners(draws: Any) -> list[int]:
            return [int(n) for n in draws.partners[np.argsort(draws.samples)]]

        assert partners(one) == partners(again)
        agree = np.mean(np.array(partners(one)) == np.array(partners(two)))
        assert 0.15 < agree < 0.35  # both whole: a quarter
        assert partners(one) != partners(other)


def test_lengths_do_not_depend_on_the_partner() -> None:
    """So the plan of an epoch needs no partners, and a broken pair never outgrows its limit."""
    with opened(random_documents(2, 100, sentences=20)) as shards:
        samples = SegmentPairs(limit=48).open(shards, FRAME)
        draws = every(samples, 3, 0)
        assert draws.labels is not None and (draws.labels == BROKEN_LABEL).any()
        assert samples.cut(draws).lengths.tolist() == samples.lengths()[draws.samples].tolist()


def test_a_document_with_most_of_the_pairs_keeps_some() -> None:
    with opened([[4] * 300, [4] * 20, [4] * 20]) as shards:
        samples = SegmentPairs(limit=11, share=1.0).open(shards, FRAME)
        draws = every(samples)
        assert draws.labels is not None
        assert (
            draws.labels == BROKEN_LABEL
        ).sum() == 40  # as many of the large one as there are of the others: 20 and 20
        assert (draws.labels == INTACT_LABEL).sum() == 130


def test_one_document_has_no_other() -> None:
    with opened([[3] * 9, [4]]) as shards:  # the second is a single sentence, so it has no pair
        with pytest.raises(DataError, match="--objective masked") as caught:
            SegmentPairs(limit=12).open(shards, FRAME)
        assert str(shards.directory) in str(caught.value)
        assert len(SegmentPairs(limit=12, broken="swapped").open(shards, FRAME)) == 4


def test_what_is_no_share() -> None:
    with pytest.raises(UsageError, match=r"1\.5"):
        SegmentPairs(share=1.5)


def test_partners_come_first() -> None:
    with opened([[3, 2], [4, 2]]) as shards:
        samples = SegmentPairs(limit=12).open(shards, FRAME)
        with pytest.raises(UsageError):
            samples.cut(replace(every(samples), partners=None))
