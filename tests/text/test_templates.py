"""Layouts around texts, what is cut and what is lost."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pretune.core.config import from_dict, to_dict
from pretune.core.errors import DataError, UsageError
from pretune.text.styles import STYLES
from pretune.text.templates import STRATEGIES, SpecialPart, Strategy, TextPart, TokenTemplate, pad_left, truncate
from tests.text.tokenizers import trained

MARKS = {
    mark.text: 1000 + i for i, mark in enumerate(mark for style in STYLES.values() for mark in style.special_tokens)
}


def template(style: str) -> TokenTemplate:
    return TokenTemplate.from_layouts(STYLES[style].single, STYLES[style].pair, MARKS)


class TestApply:
    @pytest.mark.parametrize(
        ("style", "single", "pair", "segments"),
        [
            ("cls-sep", "[CLS] a [SEP]", "[CLS] a [SEP] b [SEP]", [0, 0, 0, 1, 1]),
            ("cls-sep-pieces", "[CLS] a [SEP]", "[CLS] a [SEP] b [SEP]", [0, 0, 0, 1, 1]),
            ("s-mask", "<s> a </s>", "<s> a </s> </s> b </s>", [0] * 6),
            ("endoftext", "a", "a b", [0, 0]),
            ("sentinels", "a </s>", "a </s> b </s>", [0] * 4),
            ("cls-last", "a <sep> <cls>", "a <sep> b <sep> <cls>", [0, 0, 1, 1, 2]),
            ("plain", "a", "a b", [0, 0]),
        ],
    )
    def test_layouts_are_those_of_the_papers(self, style: str, single: str, pair: str, segments: list[int]) -> None:
        ids = {**MARKS, "a": 7, "b": 8}
        made = template(style)
        assert made.apply([7]).ids.tolist() == [ids[word] for word in single.split()]
        laid = made.apply([7], [8])
        assert laid.ids.tolist() == [ids[word] for word in pair.split()]
        assert laid.segments.tolist() == segments
        assert laid.is_special.tolist() == [word not in "ab" for word in pair.split()]

    def test_every_style_is_tested(self) -> None:
        assert len(STYLES) == 7

    @given(st.lists(st.integers(0, 9), max_size=5), st.none() | st.lists(st.integers(10, 19), max_size=5))
    def test_texts_stay_whole_and_in_order(self, a: list[int], b: list[int] | None) -> None:
        for style in STYLES:
            laid = template(style).apply(a, b)
            assert laid.ids[~laid.is_special].tolist() == a + (b or [])
            assert laid.is_special.sum() == template(style).count_special_tokens(b is not None)
            assert len(laid.ids) == len(laid.segments) == len(laid.is_special)

    def test_a_template_is_plain_data(self) -> None:
        made = template("cls-last")
        assert from_dict(TokenTemplate, to_dict(made)) == made
        assert dataclasses.asdict(made)["single"][0] == {"text": "a", "segment": 0}

    @pytest.mark.parametrize(
        "pair", [(), (TextPart(text="a"),), (TextPart(text="b"), TextPart(text="a")), (TextPart(text="a"),) * 2]
    )
    def test_texts_must_be_there_once(self, pair: tuple[SpecialPart | TextPart, ...]) -> None:
        with pytest.raises(UsageError, match="'pair'"):
            TokenTemplate(pair=pair)


@pytest.fixture(scope="module")
def library() -> Tokenizer:
    """The library's own truncation, under the layout of [CLS] and [SEP]."""
    raw = Tokenizer(models.WordLevel({str(i): i for i in range(100)}, unk_token="0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(
        single="98 $A 99", pair="98 $A 99 $B:1 99:1", special_tokens=[("98", 98), ("99", 99)]
    )
    return raw


class TestTruncate:
    SEP = TokenTemplate.from_layouts("98 $A 99", "98 $A 99 $B:1 99:1", {"98": 98, "99": 99})

    @given(data=st.data(), a=st.integers(0, 12), b=st.none() | st.integers(0, 12), room=st.integers(1, 20))
    def test_it_is_the_librarys(
        self, library: Tokenizer, data: st.DataObject, a: int, b: int | None, room: int
    ) -> None:
        assume(b is None or room >= 2)  # with a window of no tokens the library gives sequences that are too long
        strategy: Strategy = data.draw(st.sampled_from(STRATEGIES))
        side = data.draw(st.sampled_from(["right", "left"]))
        stride = data.draw(st.integers(0, 3))
        assume(stride < room)  # the library refuses any other before it has seen a text
        one, two = list(range(a)), None if b is None else list(range(50, 50 + b))
        length = room + self.SEP.count_special_tokens(b is not None)
        texts = [" ".join(map(str, ids)) for ids in ([one] if two is None else [one, two])]
        try:
            library.enable_truncation(length, stride=stride, strategy=strategy, direction=side)
            first = library.encode(*texts)
            theirs = [(e.ids, e.type_ids, e.special_tokens_mask) for e in [first, *first.overflowing]]
        except BaseException as error:  # it panics where a stride is as long as a window
            assert isinstance(error, Exception) or type(error).__name__ == "PanicException"
            theirs = None
        try:
            fitted = self.SEP.fit(one, two, length=length, strategy=strategy, stride=stride, windows=True, side=side)
        except (DataError, UsageError):
            assert theirs is None
            return
        assert theirs is not None
        ours = [
            (laid.ids.tolist(), laid.segments.tolist(), laid.is_special.astype(int).tolist())
            for laid in fitted.sequences
        ]
        assert ours[0] == theirs[0]
        assert sorted(ours) == sorted(theirs)

    @given(st.integers(0, 30), st.none() | st.integers(0, 30), st.integers(0, 40), st.sampled_from(STRATEGIES))
    def test_nothing_is_lost_uncounted(self, a: int, b: int | None, room: int, strategy: Strategy) -> None:
        try:
            cut = truncate(a, b, room, strategy=strategy)
        except (DataError, UsageError):
            return
        ((one, two),) = cut.windows
        assert one[1] - one[0] + two[1] - two[0] <= room
        assert (one[1] - one[0] + cut.dropped_tokens[0], two[1] - two[0] + cut.dropped_tokens[1]) == (a, b or 0)
        if a + (b or 0) > room:
            assert one[1] - one[0] + two[1] - two[0] == room
        windows = truncate(a, b, room, strategy=strategy, windows=True)
        for side, size in enumerate((a, b or 0)):
            seen = {i for window in windows.windows for i in range(*window[side])}
            assert len(seen) + windows.dropped_tokens[side] == size

    def test_windows_overlap_by_the_stride(self) -> None:
        fitted = self.SEP.fit([1, 2], range(10, 20), length=9, strategy="only_second", stride=2, windows=True)
        texts = [laid.ids[~laid.is_special].tolist() for laid in fitted.sequences]
        assert texts == [[1, 2, *range(i, i + 4)] for i in (10, 12, 14, 16)]
        assert fitted.dropped_tokens == (0, 0)

    def test_what_cannot_be_is_said(self) -> None:
        with pytest.raises(UsageError, match=r"\b2\b.*\b3\b"):
            self.SEP.fit([1], [2], length=2)
        with pytest.raises(DataError, match=r"'only_first'.*\b9\b.*\b5\b"):
            truncate(3, 9, 5, strategy="only_first")
        with pytest.raises(UsageError, match="'only_second'"):
            truncate(9, None, 5, strategy="only_second")
        with pytest.raises(UsageError, match=r"stride.*\b4\b.*\b4\b"):
            truncate(9, None, 4, stride=4, windows=True)
        with pytest.raises(UsageError, match=r"'longest'.*'longest_first'"):
            truncate(9, None, 4, strategy="longest")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="-1"):
            truncate(9, None, -1)


class TestPadLeft:
    @given(st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=5), st.integers(0, 3))
    def test_rows_end_where_they_end(self, rows: list[list[int]], more: int) -> None:
        size = max(map(len, rows), default=0) + more
        padded = pad_left(rows, 0, length=size)
        assert padded.ids.shape == padded.mask.shape == (len(rows), size)
        for row, ids, mask in zip(rows, padded.ids, padded.mask, strict=True):
            assert ids[mask].tolist() == row
            assert not mask[: size - len(row)].any()
            assert (ids[~mask] == 0).all()

    def test_the_longest_must_fit(self) -> None:
        assert pad_left([], 0).ids.shape == (0, 0)
        assert pad_left([np.array([1, 2]), []], 9).ids.tolist() == [[1, 2], [9, 9]]
        with pytest.raises(UsageError, match=r"\b2\b.*\b3\b"):
            pad_left([[1, 2, 3]], 0, length=2)


@pytest.mark.parametrize("style", STYLES)
def test_a_tokenizer_has_the_template_of_its_style(style: str) -> None:
    tokenizer = trained("bpe", style)
    ids = {mark.text: tokenizer.raw.token_to_id(mark.text) for mark in STYLES[style].special_tokens}
    assert tokenizer.template == TokenTemplate.from_layouts(STYLES[style].single, STYLES[style].pair, ids)
