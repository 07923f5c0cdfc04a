"""Flat tokens: the fast way gives what the library gives, words and characters are counted right."""

import re
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, normalizers, pre_tokenizers

from pretune.text.styles import KINDS
from pretune.text.tokenizer import Tokenizer, cache
from pretune.text.tokenizer.cache import (
    UnitCache,
    encode_directly,
    is_separable,
    split_pieces,
    split_simple_units,
    split_units,
)
from tests.selection import keep_quick
from tests.text.tokenizers import NASTY, corpus, trained

AWKWARD = st.text(
    st.sampled_from(" \n\t\r\0\x07\x0b\x1c\x85\xa0\xad\u2028\u200b\u200d\u3000\ufeff\ufffd▁aB9é\u0301.,'`#中👩ß"),
    max_size=12,
)
TEXTS = st.lists(st.text(max_size=20) | AWKWARD, max_size=6)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class TestUnits:
    @given(st.text() | AWKWARD)
    def test_they_are_the_text(self, text: str) -> None:
        assert "".join(split_units(text)) == text
        assert all(split_units(text))

    @given(st.text() | AWKWARD | st.text(st.sampled_from("ab \n"), max_size=9))
    def test_the_simple_way_is_the_same(self, text: str) -> None:
        simple = split_simple_units(text)
        if simple is not None:
            units = simple[:1] + [part if part[0] == "\n" else " " + part for part in simple[1:]]
            assert units == split_units(text)

    @given(st.text() | AWKWARD, st.integers(1, 8))
    def test_pieces_are_whole_units(self, text: str, size: int) -> None:
        found = split_pieces(text, size)
        assert "".join(found) == text
        assert [unit for piece in found for unit in split_units(piece)] == split_units(text)


class TestCache:
    @pytest.mark.slow
    @pytest.mark.parametrize("lowercase", keep_quick([False, True], True))
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_may_be_encoded_by_units(self, kind: str, lowercase: bool) -> None:
        assert is_separable(trained(kind, lowercase=lowercase).raw)

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_gives_what_the_library_gives(self, kind: str) -> None:
        raw = trained(kind).raw
        table = UnitCache(raw)
        special = [token.content for token in raw.get_added_tokens_decoder().values()]

        @given(TEXTS)
        def law(texts: list[str]) -> None:
            if not any(token in text for token in special for text in texts):
                assert same(table.encode(texts), encode_directly(raw, texts))

        law()
        texts = [text for text in (*NASTY, *corpus()[:6]) if not any(token in text for token in special)]
        for _ in range(2):  # new, and known
            assert same(table.encode(texts), encode_directly(raw, texts))

    def test_a_full_table_starts_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "MAX_UNITS", 50)
        raw = trained("bpe").raw
        table = UnitCache(raw)
        for text in corpus()[:5]:
            assert same(table.encode([text]), encode_directly(raw, [text]))
        assert table.encode(["a b"]).counts.tolist() == [2]
        assert len(table.units) == 2

    def test_text_that_never_repeats_goes_the_librarys_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "TRIAL_CHARACTERS", 20)
        raw = trained("wordpiece").raw
        table = UnitCache(raw)
        numbers = [" ".join(str(i * 7919 + j) for j in range(30)) for i in range(3)]
        assert same(table.encode(numbers), encode_directly(raw, numbers))
        assert table.rest_batches == cache.REST_BATCHES
        assert same(table.encode(numbers), encode_directly(raw, numbers))
        assert table.rest_batches == cache.REST_BATCHES - 1

    def test_an_interrupt_leaves_no_half_known_unit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = trained("bpe").raw
        table = UnitCache(raw)

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(cache, "encode_units", interrupt)
            with pytest.raises(KeyboardInterrupt):
                table.encode(["new words"])
        assert same(table.encode(["new words"]), encode_directly(raw, ["new words"]))

    def test_what_is_not_separable_is_noticed(self) -> None:
        def made(normalizer: Any, pre_tokenizer: Any, dropout: float | None = None) -> Raw:
            vocabulary = {token: i for i, token in enumerate(["<unk>", "a", "b", " ", "▁", "a ", "▁a", "▁▁", "of the"])}
            merges = [("a", " "), ("▁", "a"), ("▁", "▁")]
            raw = Raw(models.BPE(vocabulary, merges, dropout=dropout, unk_token="<unk>"))
            raw.normalizer, raw.pre_tokenizer = normalizer, pre_tokenizer
            return raw

        words = pre_tokenizers.WhitespaceSplit()
        assert is_separable(made(None, words))
        assert not is_separable(made(None, words, dropout=0.1))
        assert not is_separable(made(None, None))
        # A space before every text: units would get one too.
        opening = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        assert not is_separable(made(opening, None))
        assert not is_separable(made(opening, pre_tokenizers.Split("▁", "merged_with_next")))
        assert not is_separable(made(None, pre_tokenizers.Punctuation()))  # no words at all
        assert not is_separable(made(normalizers.Strip(), pre_tokenizers.CharDelimiterSplit(",")))


@pytest.fixture(params=[True, False], ids=["fast", "library"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of encoding, on tokenizers that have not yet decided for one."""
    monkeypatch.setattr("pretune.text.tokenizer.tokenizer.TRIAL_CHARACTERS", -1 if request.param else 10**9)


def fresh(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(tokenizer.raw, tokenizer._config)


@pytest.mark.usefixtures("way")
class TestEncodeBatch:
    @pytest.mark.parametrize("literal", keep_quick([False, True], True))
    @pytest.mark.parametrize("kind", KINDS)
    def test_texts_are_encoded_one_by_one(self, kind: str, literal: bool) -> None:
        tokenizer = fresh(trained(kind))
        found = tokenizer.encode_batch(NASTY, literal=literal)
        for i, text in enumerate(NASTY):
            assert found[i].tolist() == tokenizer.encode(text, literal=literal, add_special_tokens=False)
        assert found.ids.dtype == np.uint32 and found.offsets.dtype == np.int64
        assert found.word_start.dtype == np.bool_ and found.starts.dtype == np.int32
        assert found.offsets[-1] == len(found.ids) == len(found.word_start) == len(found.starts)

    def test_nothing_gives_nothing(self) -> None:
        tokenizer = fresh(trained("bpe"))
        for texts in ([], [""], ["", ""]):
            found = tokenizer.encode_batch(texts)
            assert found.offsets.tolist() == [0] * (len(texts) + 1)
            assert len(found.ids) == 0
        with pytest.raises(IndexError):
            found[2]

    @pytest.mark.parametrize("kind", keep_quick(KINDS, "wordpiece", "bpe"))
    def test_long_texts_are_cut_where_no_token_is(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        texts = [*NASTY, "\n\n".join(corpus()[:4]), "", "no end " * 40]
        whole = fresh(trained(kind)).encode_batch(texts)
        monkeypatch.setattr("pretune.text.tokenizer.tokenizer.PIECE_CHARACTERS", 100)
        monkeypatch.setattr("pretune.text.tokenizer.tokenizer.BATCH_CHARACTERS", 1000)
        cut = fresh(trained(kind)).encode_batch(texts)
        for name in ("ids", "offsets", "word_start", "starts"):
            assert np.array_equal(getattr(whole, name), getattr(cut, name))

    @pytest.mark.parametrize("kind", KINDS)
    def test_starts_are_characters_of_the_text(self, kind: str) -> None:
        tokenizer = fresh(trained(kind))
        text = "The  first word,\nthe é second 中文 👩 word.\n\n Third"
        found = tokenizer.encode_batch([text])
        assert (np.diff(found.starts) >= 0).all()
        words = [match.span(1) for match in re.finditer(r"(\s*)\S+", text)]  # the white space before every word
        assert {end for _, end in words} <= {*found.starts.tolist()}  # a token starts with it, the space left out
        assert found.word_start[found.find_tokens(0, [start for start, _ in words])].all()
        assert found.find_tokens(0, [len(text)]).tolist() == [len(found.ids)]

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            ("wordpiece", ["Don", "'", "t", "stop", ",", "friends", "."]),
            ("bpe", ["Don", "'t", "stop", ",", "friends", "."]),
            ("unigram", ["Don't", "stop,", "friends."]),
            ("characters", ["Don't", "stop,", "friends."]),
            ("words", ["Don", "'", "t", "stop", ",", "friends", "."]),
        ],
    )
    def test_words_are_those_of_the_pre_tokenizer(self, kind: str, words: list[str]) -> None:
        text = "Don't stop, friends."
        found = fresh(trained(kind)).encode_batch([text, text])
        for i in range(2):
            here = slice(found.offsets[i], found.offsets[i + 1])
            starts = [*found.starts[here][found.word_start[here]].tolist(), len(text)]
            assert [text[a:b].strip() for a, b in pairwise(starts)] == words

    def test_a_special_token_in_a_text(self) -> None:
        tokenizer = fresh(trained("wordpiece"))
        mask = tokenizer.special["mask"]
        found = tokenizer.encode_batch(["a [MASK] b", "a b", "[MASK][MASK]"])
        assert found[0].tolist()[1] == mask and found[2].tolist() == [mask, mask]
        assert found.word_start.all()
        literal = tokenizer.encode_batch(["a [MASK] b"], literal=True)
        assert not {*literal.ids.tolist()} & (tokenizer.special_ids - {tokenizer.special["unk"]})

    @pytest.mark.parametrize("kind", KINDS)
    def test_lone_surrogates_are_replaced(self, kind: str) -> None:
        tokenizer = fresh(trained(kind))
        texts = ["a\ud800b c\udfff", "\udc80", "fine"]
        clean = ["a\ufffdb c\ufffd", "\ufffd", "fine"]
        one, other = tokenizer.encode_batch(texts), tokenizer.encode_batch(clean)
        assert one.ids.tolist() == other.ids.tolist() and one.starts.tolist() == other.starts.tolist()
        assert tokenizer.encode(texts[0]) == tokenizer.encode(clean[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_word_of_a_million_characters(kind: str) -> None:
    word = "ab" * 500_000
    found = fresh(trained(kind)).encode_batch([word, "x"])
    assert len(found[0]) >= 1 and len(found[1]) >= 1
    assert found.starts[: found.offsets[1]].max() < len(word)


def test_without_a_pre_tokenizer_words_start_with_white_space() -> None:
    raw = Raw(models.BPE({"▁": 0, "a": 1, "b": 2, "▁a": 3, "?": 4}, [("▁", "a")], unk_token="?"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Metaspace()
    found = Tokenizer(raw).encode_batch(["ab ab b", "b"])
    assert found.ids.tolist() == [3, 2, 3, 2, 0, 2, 0, 2]
    assert found.word_start.tolist() == [True, False, True, False, True, False, True, False]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_text() -> None:
    tokenizer = fresh(trained("wordpiece"))
    tokenizer.encode_batch(["warm up " * 20_000])  # the table is made
    text = "a few words again and again " * 100_000  # 2.8 million characters
    tracemalloc.start()
    found = tokenizer.encode_batch([text])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.ids) >= 6 * 100_000
    assert peak < 30 * len(found.ids) + 40e6  # the arrays themselves, joined, and one batch
