"""Denoising: each of the five noises by example and by its numbers; the target is the whole text."""

from dataclasses import replace
from itertools import pairwise, permutations
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences
from pretune.objectives.denoising import (
    Denoising,
    DocumentRotation,
    Noise,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
    infill_spans,
    poisson_cdf,
)
from pretune.objectives.seq2seq import NoiseSpans
from tests.contracts.restoring import sides
from tests.objectives.seq2seq_cases import (
    BOS,
    EOS,
    MASK,
    RELEASED,
    SENTINELS,
    VOCABULARY,
    WORDS,
    framed,
    lists,
    made,
    uniform,
)
from tests.objectives.seq2seq_cases import rng as counters

NOISES: dict[str, Noise] = {
    "token_masking": TokenMasking(),
    "token_deletion": TokenDeletion(),
    "text_infilling": TextInfilling(),
    "sentence_permutation": SentencePermutation(),
    "document_rotation": DocumentRotation(),
}
LETTERS = "ABC.DE."
"""Two sentences."""
TEXT = made(
    [[BOS, *(WORDS + i for i in range(7)), EOS]],
    sentences=[[1, 1, 0, 0, 0, 1, 0, 0, 1]],
)


def read(sequences: Sequences) -> str:
    """What stands between the special tokens, which are where they were."""
    (tokens,) = lists(sequences)
    assert tokens[0] == BOS and tokens[-1] == EOS
    return "".join("_" if token == MASK else LETTERS[token - WORDS] for token in tokens[1:-1])


def every(noise: Noise, seeds: int = 300) -> set[str]:
    """All that may become of the example."""
    return {read(noise.apply(TEXT, MASK, counters(TEXT, seed))) for seed in range(seeds)}


# By example: figure 2 of the paper


def test_token_masking() -> None:
    """Of 7 tokens 15 % are one, and now and then two."""
    found = every(TokenMasking())
    assert "A_C.DE." in found and {text.count("_") for text in found} == {1, 2}
    assert all(a in (b, "_") for text in found for a, b in zip(text, LETTERS, strict=True))


def test_token_deletion() -> None:
    found = every(TokenDeletion())
    assert "AC.DE." in found and {len(text) for text in found} == {5, 6}
    assert found == {_without(i) for i in [(i,) for i in range(7)] + [*permutations(range(7), 2)]} & found


def _without(gone: tuple[int, ...]) -> str:
    return "".join(letter for i, letter in enumerate(LETTERS) if i not in gone)


def test_text_infilling() -> None:
    """A span of three becomes one mask, and a span of none another."""
    spans = NoiseSpans(start=np.array([1, 5]), length=np.array([3, 0]), counts=np.array([2]))
    assert read(infill_spans(TEXT, spans, MASK)) == "A_D_E."
    ends = NoiseSpans(start=np.array([0, 7]), length=np.array([0, 0]), counts=np.array([2]))
    assert read(infill_spans(TEXT, ends, MASK)) == "_ABC.DE._"
    spans = NoiseSpans(start=np.array([0, 0, 2, 7]), length=np.array([0, 2, 5, 0]), counts=np.array([4]))
    assert read(infill_spans(TEXT, spans, MASK)) == "____"
    assert "A_DE." in every(TextInfilling(), 600)


def test_sentence_permutation() -> None:
    assert every(SentencePermutation()) == {"ABC.DE.", "DE.ABC."}


def test_document_rotation() -> None:
    assert every(DocumentRotation()) == {LETTERS[i:] + LETTERS[:i] for i in range(7)}


def test_infilling_keeps_what_is_known_of_the_text() -> None:
    """A mask is an ordinary token, in the segment it stands in, and starts a sentence where what it hides did."""
    text = replace(TEXT, segments=np.array([0, 0, 0, 0, 0, 1, 1, 1, 1]))
    spans = NoiseSpans(start=np.array([3, 4, 7]), length=np.array([0, 2, 0]), counts=np.array([3]))
    after = infill_spans(text, spans, MASK)  # A B C _ . _ . _
    assert after.sentences.astype(int).tolist() == [1, 1, 0, 0, 0, 0, 1, 0, 0, 1]
    assert after.special.astype(int).tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert after.segments.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


# By numbers


def test_poisson_lengths() -> None:
    """Mean 3, and one in twenty is empty (e^-3)."""
    rng = Counters.from_sequences(0, uniform(40, 1))
    length, counts = TextInfilling().draw_spans(np.full(40, 6000), rng)
    spans = int(counts.sum())
    assert length.sum() == 40 * 6000, "the budget, exactly"
    assert abs(length.mean() - 3) < 3 * np.sqrt(3 / spans)
    empty = exp(-3)
    assert abs((length == 0).mean() - empty) < 3 * np.sqrt(empty * (1 - empty) / spans)
    for k in range(9):
        share = exp(-3) * 3**k / factorial(k)
        assert abs((length == k).mean() - share) < 3.5 * np.sqrt(share * (1 - share) / spans)
    assert np.allclose(np.diff(poisson_cdf(3.0), prepend=0)[:9], [exp(-3) * 3**k / factorial(k) for k in range(9)])


def test_infilling_hides_what_it_should_anywhere() -> None:
    """30 % of the tokens, each place as often as any other but for the ends, over which no span reaches."""
    text = uniform(4000, 20)
    after = TextInfilling().apply(text, MASK, counters(text))
    gone = np.zeros(20)
    for tokens in lists(after):
        there = [token - WORDS for token in tokens if token >= WORDS]
        assert len(there) == 14 and there == sorted(there)
        gone[[i for i in range(20) if i not in there]] += 1
    inner = gone[4:16]
    assert np.abs(inner - inner.mean()).max() < 3 * np.sqrt(4000 * 0.3 * 0.7)
    assert np.abs(gone - gone[::-1]).max() < 3 * np.sqrt(2 * 4000 * 0.3 * 0.7), "as much at the end as at the start"


@pytest.mark.parametrize(("noise", "rate"), [(TokenMasking(), 0.15), (TokenDeletion(rate=0.4), 0.4)])
def test_rates(noise: Noise, rate: float) -> None:
    text = uniform(3000, 21)
    after = noise.apply(text, MASK, counters(text))
    kept = ((after.tokens != MASK) & (after.tokens != EOS)).sum()
    part = rate * 21 % 1
    assert abs(3000 * 21 - kept - rate * 3000 * 21) < 3 * np.sqrt(3000 * part * (1 - part))


def test_rotations_are_equally_likely() -> None:
    text = uniform(9000, 9)
    after = DocumentRotation().apply(text, MASK, counters(text))
    counts = np.bincount(after.tokens[after.offsets[:-1]] - WORDS, minlength=9)
    assert np.abs(counts - 1000).max() < 3 * np.sqrt(1000 * 8 / 9)


def test_orders_of_sentences_are_equally_likely() -> None:
    text = made([[101, 102, 103, 104, 105, EOS]] * 6000, sentences=[[1, 0, 1, 1, 0, 1]] * 6000)
    after = SentencePermutation().apply(text, MASK, counters(text))
    found, counts = np.unique(after.tokens.reshape(-1, 6), axis=0, return_counts=True)
    parts = [[101, 102], [103], [104, 105]]
    assert {*map(tuple, found.tolist())} == {(*a, *b, *c, EOS) for a, b, c in permutations(parts)}
    assert np.abs(counts - 1000).max() < 3 * np.sqrt(1000 * 5 / 6)


# Laws


@pytest.mark.parametrize("name", NOISES)
@given(text=framed(inner=True), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_noises_leave_special_tokens_alone(name: str, text: Sequences, seed: int) -> None:
    """They keep their order, the first and the last their place; no sequence becomes longer, or nothing."""
    assert text.special is not None
    text = replace(text, sentences=text.special | (text.tokens % 3 == 0))
    after = NOISES[name].apply(text, MASK, counters(text, seed))
    assert len(after) == len(text) and (after.lengths <= text.lengths).all() and (after.lengths > 0).all()
    for before, now in zip(lists(text), lists(after), strict=True):
        assert [t for t in now if t in (BOS, EOS)] == [t for t in before if t in (BOS, EOS)]
        assert {*now} <= {*before, MASK}
        if name in ("sentence_permutation", "document_rotation"):
            assert sorted(now) == sorted(before)
            assert [t in (BOS, EOS) for t in now] == [t in (BOS, EOS) for t in before]
        for end in (0, -1):
            assert before[end] not in (BOS, EOS) or now[end] == before[end]


@given(text=framed(), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_the_whole_text_is_asked_for(text: Sequences, seed: int) -> None:
    text = replace(text, sentences=np.ones(len(text.tokens), dtype=np.bool_))
    for shape in ("encoder-decoder", "decoder"):
        lesson = Denoising().bind(VOCABULARY, shape)
        after = lesson.corrupt(text, counters(text, seed))
        assert [labels for _, labels in sides(after)] == lists(text)


def test_noises_are_used_in_order_and_draw_for_themselves() -> None:
    text = replace(uniform(20, 40), sentences=np.ones(20 * 41, dtype=np.bool_))
    twice = Denoising(noises=(TokenMasking(), TokenMasking())).bind(VOCABULARY, "encoder-decoder")
    masked = (twice.corrupt(text, counters(text)).source.tokens == MASK).sum()
    assert masked > 20 * 40 * 0.15 * 1.5, "not the same tokens again"
    first = Denoising(noises=(TokenMasking(), DocumentRotation())).bind(VOCABULARY, "encoder-decoder")
    other = Denoising(noises=(DocumentRotation(), TokenMasking())).bind(VOCABULARY, "encoder-decoder")
    one, two = (lesson.corrupt(text, counters(text)).source.tokens for lesson in (first, other))
    assert (one != two).any()


def test_default_is_that_of_the_paper() -> None:
    spec = Denoising()
    assert spec.noises == (SentencePermutation(), TextInfilling(rate=0.3, mean=3.0)) and spec.sentences
    assert not Denoising(noises=(TokenMasking(),)).sentences


def test_evaluation_is_as_hard_as_ever() -> None:
    spec = Denoising(noises=(TokenDeletion(rate=0.5), TextInfilling(rate=0.6, mean=10)), prefix=True)
    assert spec.to_evaluation() == Denoising(noises=(TokenDeletion(), TextInfilling()), prefix=True)


def test_what_it_needs() -> None:
    bare = replace(RELEASED, sentinels=())
    with pytest.raises(UsageError, match="mask"):
        Denoising().bind(bare, "decoder")
    Denoising(noises=(TokenDeletion(), DocumentRotation())).bind(bare, "decoder")
    assert Denoising().bind(RELEASED, "decoder").mask == SENTINELS[0]
    with pytest.raises(UsageError, match="sentences=True"):
        SentencePermutation().apply(uniform(1, 3), MASK, counters(uniform(1, 3)))
    for wrong in (lambda: Denoising(noises=()), lambda: TextInfilling(mean=0.2), lambda: TokenDeletion(rate=1.0)):
        with pytest.raises(UsageError):
            wrong()


def test_a_decoder_reads_both_parts() -> None:
    text = uniform(3, 20)
    for prefix in (True, False):
        spec = Denoising(noises=(TokenDeletion(),), prefix=prefix)
        after = spec.bind(VOCABULARY, "decoder").corrupt(text, counters(text))
        assert (after.prefix is not None) == prefix
        for number, (start, end) in enumerate(pairwise(after.offsets.tolist())):
            assert after.tokens[end - 21 : end].tolist() == lists(text)[number]
            assert not prefix or after.prefix[number] == end - start - 21
