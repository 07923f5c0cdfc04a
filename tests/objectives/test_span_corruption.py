"""Span corruption: the paper's example, its numbers, exact lengths, and nothing lost."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.core.seed import mix_array
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Sequences
from pretune.objectives.segment_sampling import find_ordinary_tokens
from pretune.objectives.seq2seq import NoiseSpans
from pretune.objectives.span_corruption import SpanCorruption, count_gaps, split_randomly
from tests.contracts.restoring import restore_spans, sides
from tests.objectives.seq2seq_cases import (
    BOS,
    EOS,
    PAD,
    SENTINELS,
    VOCABULARY,
    WORDS,
    framed,
    lists,
    made,
    rng,
    uniform,
)
from tests.selection import scale_examples

PAIR = SpanCorruption().bind(VOCABULARY, "encoder-decoder")
X, Y, Z = SENTINELS[:3]
WORDS_OF = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]


def read(tokens: list[int]) -> str:
    names = {X: "<X>", Y: "<Y>", Z: "<Z>", EOS: "</s>", PAD: "<pad>", IGNORE_INDEX: "-"}
    return " ".join(names.get(token) or WORDS_OF[token - WORDS] for token in tokens)


@pytest.mark.parametrize(("closing", "target"), [(True, " <Z>"), (False, "")])
def test_example_of_the_paper(closing: bool, target: str) -> None:
    """Figure 2: "for inviting" and "last" hidden."""
    text = made([[*range(WORDS, WORDS + len(WORDS_OF)), EOS]])
    spans = NoiseSpans(start=np.array([2, 8]), length=np.array([2, 1]), counts=np.array([2]))
    lesson = SpanCorruption(closing=closing).bind(VOCABULARY, "encoder-decoder")
    source, labels = lesson.replace_spans(text, find_ordinary_tokens(text)[0], spans)
    assert read(source.tokens.tolist()) == "Thank you <X> me to your party <Y> week . </s>"
    assert read(labels.tokens.tolist()) == f"<X> for inviting <Y> last{target} </s>"
    after = lesson.layout.combine(source, labels)
    assert read(after.tokens.tolist()) == f"<pad> <X> for inviting <Y> last{target}"
    alone = SpanCorruption(closing=closing, prefix=True).bind(VOCABULARY, "decoder").layout.combine(source, labels)
    assert read(alone.tokens.tolist()) == f"{read(source.tokens.tolist())} {read(labels.tokens.tolist())}"
    shown = " ".join(["-"] * 10)
    assert read(alone.targets.tolist()) == f"{shown} {read(labels.tokens.tolist())} -"
    assert alone.prefix.tolist() == [11]


def test_rate_and_mean_span() -> None:
    """15 % in spans of 3 tokens: exact in every sequence of 100, and on average over all lengths."""
    text = uniform(50, 100)
    for shown, labels in sides(PAIR.corrupt(text, rng(text))):
        assert len(labels) == 15 + 5 + 2 and len(shown) == 101 - 15 + 5
    sizes = np.arange(40, 700)
    noise, spans = PAIR.count_noise(sizes)
    assert abs(noise.sum() / sizes.sum() - 0.15) < 3 * np.sqrt(len(sizes) / 12) / sizes.sum()
    assert abs(noise.sum() / spans.sum() - 3) < 0.02


def test_spans_are_cut_fairly() -> None:
    """Five items in three parts: each of the six ways equally often."""
    count = 12_000
    totals, parts = np.full(count, 5), np.full(count, 3)
    found = split_randomly(mix_array((4,), np.arange(int(count_gaps(totals).sum()))), totals, parts).reshape(-1, 3)
    assert (found.sum(1) == 5).all() and found.min() == 1
    _, counts = np.unique(found @ [25, 5, 1], return_counts=True)
    assert len(counts) == 6 and np.abs(counts - count / 6).max() < 3 * np.sqrt(count * 5 / 36)


def test_it_begins_with_text_and_ends_with_a_span() -> None:
    text = uniform(40, 60)
    for shown, labels in sides(PAIR.corrupt(text, rng(text))):
        assert shown[0] == WORDS and shown[-1] == EOS and shown[-2] in SENTINELS
        assert [token for token in labels if token in SENTINELS] == list(SENTINELS[:4]), (
            "in order, the closing one last"
        )


@given(text=framed(), seed=st.integers(0, 99), closing=st.booleans(), rate=st.sampled_from((0.15, 0.5, 0.9)))
@settings(max_examples=scale_examples(60))
def test_input_and_target_restore_the_text(text: Sequences, seed: int, closing: bool, rate: float) -> None:
    spec = SpanCorruption(closing=closing, rate=rate)
    lesson = spec.bind(VOCABULARY, "encoder-decoder")
    after = lesson.corrupt(text, rng(text, seed))
    assert (restore_spans(text, after) == text.tokens).all()
    alone = spec.bind(VOCABULARY, "decoder").corrupt(text, rng(text, seed))
    assert sides(alone) == sides(after) and alone.prefix is None
    _, target = lesson.lengths(text.lengths)
    assert (after.lengths <= target).all()


@given(text=framed(inner=True), seed=st.integers(0, 99))
@settings(max_examples=scale_examples(40))
def test_special_tokens_inside_stay_in_the_source(text: Sequences, seed: int) -> None:
    after = PAIR.corrupt(text, rng(text, seed))
    for before, (shown, labels) in zip(lists(text), sides(after), strict=True):
        assert [t for t in shown if t in (BOS, EOS)] == [t for t in before if t in (BOS, EOS)]
        hidden = {s: labels[labels.index(s) + 1 :] for s in shown if s in SENTINELS}
        spans = {s: _until(rest) for s, rest in hidden.items()}
        restored = [t for token in shown for t in spans.get(token, [token])]
        assert [t for t in restored if t >= WORDS] == [t for t in before if t >= WORDS]


def _until(rest: list[int]) -> list[int]:
    """What comes before the next special token."""
    end = next((i for i, token in enumerate(rest) if token in VOCABULARY.special), len(rest))
    return rest[:end]


@pytest.mark.parametrize("rate", [0.15, 0.5])
@pytest.mark.parametrize("closing", [True, False])
def test_lengths_are_exact(rate: float, closing: bool) -> None:
    """With the number of special tokens known, the plan is what comes out, for every length."""
    sizes = list(range(1, 400, 3))
    text = made([[*([WORDS] * n), EOS] for n in sizes])
    spec = SpanCorruption(rate=rate, closing=closing, specials=1)
    after = spec.bind(VOCABULARY, "encoder-decoder").corrupt(text, rng(text))
    source, target = spec.bind(VOCABULARY, "encoder-decoder").lengths(text.lengths)
    assert ((source - after.source.lengths >= 0) & (source - after.source.lengths <= 1)).all()
    assert ((target - after.lengths >= 0) & (target - after.lengths <= 2)).all()
    assert (target == after.lengths).mean() > 0.7 and (source == after.source.lengths).mean() > 0.7
    alone = spec.bind(VOCABULARY, "decoder")
    most = alone.lengths(text.lengths)[0] - alone.corrupt(text, rng(text)).lengths
    assert most.min() >= 0 and most.max() <= 2


def test_more_special_tokens_than_planned_for_are_refused() -> None:
    text = made([[BOS, 101, 102, EOS]])
    with pytest.raises(UsageError, match=r"\b2\b.*\b1\b"):
        SpanCorruption(specials=1).bind(VOCABULARY, "decoder").corrupt(text, rng(text))


@pytest.mark.parametrize("closing", [True, False])
def test_few_sentinels_make_few_spans(closing: bool) -> None:
    few = replace(VOCABULARY, sentinels=SENTINELS[:3])
    text = uniform(20, 200)
    after = SpanCorruption(closing=closing).bind(few, "encoder-decoder").corrupt(text, rng(text))
    for shown, labels in sides(after):
        assert [t for t in shown if t in SENTINELS] == list(SENTINELS[: 3 - closing])
        assert len([t for t in labels if t in SENTINELS]) == 3
        assert len([t for t in labels if t >= WORDS and t not in SENTINELS]) == 30, "the rate is kept"


def test_segments_go_with_the_source() -> None:
    text = replace(uniform(3, 30), segments=np.tile(np.arange(31) // 16, 3))
    source = PAIR.corrupt(text, rng(text)).source
    for start, end in pairwise(source.offsets.tolist()):
        assert (np.diff(source.segments[start:end]) >= 0).all() and source.segments[end - 1] == 1


@pytest.mark.parametrize("settings", [{"rate": 0.0}, {"rate": 1.0}, {"mean": 0.5}, {"specials": -1}])
def test_numbers_that_mean_nothing(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        SpanCorruption(**settings)


def test_evaluation_is_as_hard_as_ever() -> None:
    spec = SpanCorruption(rate=0.5, mean=8, closing=False, prefix=True, specials=2)
    assert spec.to_evaluation() == SpanCorruption(closing=False, prefix=True, specials=2)


def test_a_vocabulary_without_sentinels_is_refused() -> None:
    with pytest.raises(UsageError, match="sentinels"):
        SpanCorruption().bind(replace(VOCABULARY, sentinels=()), "decoder")
