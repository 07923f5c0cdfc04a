"""Samples: every token in exactly one, none over the limit, special tokens where the frame says."""

import pickle
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.data.pairs import SegmentPairs
from pretune.data.samples import Blocks, Documents, Samples, Sentences, check_enough_tokens
from pretune.data.sequences import Sequences
from pretune.data.shards import Shards
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate
from tests.data.corpora import CLS, FRAMES, SEP, bits, documents, every, opened, split, texts

KINDS: dict[str, Any] = {
    "documents": lambda limit: Documents(limit=limit),
    "sentences": lambda limit: Sentences(limit=limit),
    "blocks": lambda limit: Blocks(length=limit),
    "swapped": lambda limit: SegmentPairs(limit=limit, broken="swapped"),
    "whole pairs": lambda limit: SegmentPairs(limit=limit, broken="other", share=0.0),
}
kinds = st.sampled_from(sorted(KINDS))
frames = st.sampled_from(sorted(FRAMES))
limits = st.integers(6, 24)


@given(documents, kinds, frames, limits, st.integers(1, 30))
def test_every_token_is_in_exactly_one_sample(
    given: list[list[int]], kind: str, frame: str, limit: int, full: int
) -> None:
    with opened(given, full=full) as shards:
        samples = KINDS[kind](limit).open(shards, FRAMES[frame])
        draws = every(samples)
        cut = samples.cut(draws, words=True, sentences=True)
        assert sorted(draws.samples.tolist()) == list(range(len(samples)))
        assert sorted(token for text in texts(cut) for token in text) == list(range(len(shards)))
        check(cut, samples, draws, limit, shards)


def check(cut: Sequences, samples: Samples, draws: Any, limit: int, shards: Shards) -> None:
    """What is true of the sequences of any kind."""
    assert cut.lengths.tolist() == samples.lengths(draws).tolist()
    assert samples.lengths(draws).tolist() == samples.lengths()[draws.samples].tolist()
    assert (cut.lengths >= 1).all() and (cut.lengths <= limit).all()
    special = cut.special
    assert special is not None and cut.words is not None and cut.sentences is not None and cut.sources is not None
    assert (cut.tokens[special] >= CLS).all() and (cut.tokens[~special] < CLS).all()
    assert cut.words[special].all() and cut.sentences[special].all()
    starts = np.isin(cut.tokens, shards.sentences) & ~special
    words = bits(cut.tokens) & ~special
    assert cut.words[words].all() and cut.sentences[starts].all()
    assert cut.words[first(cut)].all() and cut.sentences[first(cut)].all()
    # Beyond those of the shards, only what a cut begins with: here the second segment of a pair always is a sentence.
    assert not (cut.words & ~words & ~special & ~first(cut) & ~starts).any()
    assert not (cut.sentences & ~starts & ~special & ~first(cut)).any()
    origin = shards.sources[np.searchsorted(shards.documents, cut.tokens[~special], side="right") - 1]
    if not isinstance(samples.kind, Blocks):  # type: ignore[attr-defined]
        assert cut.sources[cut.find_owners()[~special]].tolist() == origin.tolist()
    assert cut.samples is not None and cut.samples.tolist() == draws.samples.tolist()


def first(cut: Sequences) -> Any:
    """Tokens that a cut begins with: at a sequence's start, after a special token, or after a jump."""
    assert cut.special is not None
    found = np.diff(cut.tokens, prepend=-5) != 1
    found[cut.offsets[:-1]] = True
    found[1:] |= cut.special[:-1]
    return found


@given(documents, frames, limits)
def test_documents(given: list[list[int]], frame: str, limit: int) -> None:
    """Longer ones in windows that follow each other, tails kept."""
    chosen = FRAMES[frame]
    room, expected, position = limit - chosen.special_count, [], 0
    for size in map(sum, given):
        whole = list(range(position, position + size))
        expected += [whole[start : start + room] for start in range(0, size, room)]
        position += size
    with opened(given) as shards:
        samples = Documents(limit=limit).open(shards, chosen)
        assert texts(cut_all(samples)) == expected


@given(documents, frames, limits)
def test_sentences(given: list[list[int]], frame: str, limit: int) -> None:
    chosen = FRAMES[frame]
    room, expected, position = limit - chosen.special_count, [], 0
    for size in chain.from_iterable(given):
        whole = list(range(position, position + size))
        expected += [whole[start : start + room] for start in range(0, size, room)]
        position += size
    with opened(given) as shards:
        assert texts(cut_all(Sentences(limit=limit).open(shards, chosen))) == expected


@given(documents, frames, limits, st.integers(1, 30))
def test_blocks(given: list[list[int]], frame: str, limit: int, full: int) -> None:
    """The framed documents end to end, cut every `length` tokens."""
    stream, position = [], 0
    for size in filter(None, map(sum, given)):
        inside = list(range(position, position + size))
        stream += [token for piece, _ in FRAMES[frame].single for token in (inside if piece == TEXT_A else [piece])]
        position += size
    with opened(given, full=full) as shards:
        cut = cut_all(Blocks(length=limit).open(shards, FRAMES[frame]))
        assert split(cut) == [stream[at : at + limit] for at in range(0, len(stream), limit)]


def cut_all(samples: Samples) -> Sequences:
    """All samples as they stand in the data."""
    draws = every(samples)
    return samples.cut(draws.take(np.argsort(draws.samples)))


def test_the_frame_is_around_every_text() -> None:
    with opened([[3, 2], [4]]) as shards:
        cut = cut_all(Sentences(limit=9).open(shards, FRAMES["around"]))
        assert split(cut) == [[CLS, 0, 1, 2, SEP], [CLS, 3, 4, SEP], [CLS, 5, 6, 7, 8, SEP]]
        assert split(cut, "special")[1] == [True, False, False, True]
        assert cut.segments is None, "all of it is in segment 0"
        cut = cut_all(Sentences(limit=9).open(shards, FRAMES["behind"]))
        assert split(cut)[1] == [3, 4, SEP, CLS] and split(cut, "segments")[1] == [0, 0, 0, 2]


def test_what_is_not_asked_for_is_not_read() -> None:
    with opened([[3, 2], [4]]) as shards:
        cut = cut_all(Documents(limit=9).open(shards))
        assert cut.words is None and cut.sentences is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_without_room_for_text(kind: str) -> None:
    with opened([[3, 2], [4]]) as shards, pytest.raises(UsageError, match=r"\b2\b"):
        KINDS[kind](2).open(shards, FRAMES["around"])


@pytest.mark.parametrize("kind", KINDS)
def test_text_shorter_than_one_sequence(kind: str) -> None:
    with opened([[3, 2], [4, 4]]) as shards:
        samples = KINDS[kind](9).open(shards, FRAMES["around"])
        total = int(samples.lengths().sum())
        check_enough_tokens(samples, total)
        with pytest.raises(DataError) as caught:
            check_enough_tokens(samples, total + 1)
        values = (str(shards.directory), "'train'", str(total), str(total + 1), "data.max_length")
        assert all(value in str(caught.value) for value in values) and caught.value.exit_code == 3


@pytest.mark.parametrize("kind", KINDS)
def test_no_draws(kind: str) -> None:
    """The last part of an epoch's last batch may be empty."""
    with opened([[3, 2], [4]]) as shards:
        samples = KINDS[kind](9).open(shards, FRAMES["around"])
        cut = samples.cut(every(samples).take(np.empty(0, dtype=np.int64)), words=True, sentences=True)
        assert len(cut) == len(cut.tokens) == 0 and cut.offsets.tolist() == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_travel_without_their_tables(kind: str) -> None:
    with opened([[5] * 2000, [4]]) as shards:
        samples = KINDS[kind](9).open(shards, FRAMES["around"])
        assert len(samples) > 1000
        sent = pickle.dumps(samples)
        assert len(sent) < 1000
        assert split(cut_all(pickle.loads(sent))) == split(cut_all(samples))


@pytest.mark.parametrize(
    "frame", [{"single": ((1, 0),)}, {"single": ((TEXT_A, 0), (TEXT_A, 0))}, {"pair": ((TEXT_B, 0), (TEXT_A, 0))}]
)
def test_frames_without_their_text(frame: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(frame))):
        TokenTemplate(**frame)
