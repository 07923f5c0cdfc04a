"""Layouts around texts, what is cut and what is lost."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pretune.core.config import from_dict, to_dict
from pretune.core.errors import UsageError
from pretune.text.styles import STYLES
from pretune.text.template import TEXT_A, TEXT_B, Layout, TokenTemplate
from tests.text.tokenizers import template_of, trained

MARKS = {mark: 1000 + i for i, mark in enumerate(mark for style in STYLES.values() for mark in style.special_tokens)}


def template(style: str) -> TokenTemplate:
    return template_of(STYLES[style], MARKS)


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
            made = template(style)
            assert laid.is_special.sum() == (made.special_count if b is None else made.pair_special_count)
            assert len(laid.ids) == len(laid.segments) == len(laid.is_special)

    def test_a_template_is_plain_data(self) -> None:
        made = template("cls-last")
        assert from_dict(TokenTemplate, to_dict(made)) == made

    @pytest.mark.parametrize("pair", [(), ((TEXT_A, 0),), ((TEXT_B, 0), (TEXT_A, 0)), ((TEXT_A, 0), (TEXT_A, 0))])
    def test_texts_must_be_there_once(self, pair: Layout) -> None:
        with pytest.raises(UsageError, match="pair"):
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


class TestFit:
    SEP = TokenTemplate(
        single=((98, 0), (TEXT_A, 0), (99, 0)), pair=((98, 0), (TEXT_A, 0), (99, 0), (TEXT_B, 1), (99, 1))
    )

    @given(a=st.integers(0, 12), b=st.none() | st.integers(0, 12), room=st.integers(1, 20))
    def test_it_is_the_librarys(self, library: Tokenizer, a: int, b: int | None, room: int) -> None:
        assume(b is None or room >= 2)  # with a window of no tokens the library gives sequences that are too long
        one, two = list(range(a)), None if b is None else list(range(50, 50 + b))
        length = room + (self.SEP.special_count if two is None else self.SEP.pair_special_count)
        library.enable_truncation(length)
        theirs = library.encode(*(" ".join(map(str, ids)) for ids in ([one] if two is None else [one, two])))
        ours = self.SEP.fit(one, two, length=length)
        assert ours.ids.tolist() == theirs.ids
        assert ours.segments.tolist() == theirs.type_ids
        assert ours.is_special.astype(int).tolist() == theirs.special_tokens_mask

    def test_special_tokens_alone_may_be_too_long(self) -> None:
        with pytest.raises(UsageError, match=r"\b2\b.*\b3\b"):
            self.SEP.fit([1], [2], length=2)


@pytest.mark.parametrize("style", STYLES)
def test_a_tokenizer_has_the_template_of_its_style(style: str) -> None:
    tokenizer = trained("bpe", style)
    ids = {mark: tokenizer.raw.token_to_id(mark) for mark in STYLES[style].special_tokens}
    assert tokenizer.template == template_of(STYLES[style], ids)
