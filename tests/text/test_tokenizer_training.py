"""Training: the same corpus gives the same bytes, memory is bounded, and what cannot be is said first."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import models, pre_tokenizers, trainers

import pretune as pt
from pretune.core.errors import DataError, UsageError
from pretune.text.styles import KINDS, STYLES
from pretune.text.tokenizer import sample, unigram
from pretune.text.tokenizer.sample import BLOCK_CHARACTERS, MAX_WORD_LENGTH, TextSample
from pretune.text.tokenizer.training import TokenizerConfig, train
from tests.conftest import ROOT
from tests.selection import keep_quick, scale_examples
from tests.text.tokenizers import COMBINATIONS, TYPICAL, corpus, trained

TWICE = """
import sys
from tests.text.tokenizers import trained
print([trained(kind, lowercase=low).sha256 for kind in sys.argv[1:] for low in (False, True)])
"""


@pytest.mark.slow
def test_the_same_corpus_gives_the_same_bytes_in_another_process() -> None:
    # The library's hash tables are seeded anew in every process, as is Python's own.
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", TWICE, *KINDS], capture_output=True, text=True, env=environment, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    ours = [trained(kind, lowercase=low).sha256 for kind in KINDS for low in (False, True)]
    assert done.stdout.strip() == str(ours)


@pytest.mark.parametrize(("kind", "style"), keep_quick(COMBINATIONS, *TYPICAL))
def test_a_vocabulary_is_as_large_as_it_should_be(kind: str, style: str) -> None:
    tokenizer = trained(kind, style)
    marks = {*STYLES[style].special_tokens}
    assert tokenizer.vocab <= 700
    assert tokenizer.vocab == 700 or kind == "characters"  # there is no more to learn from 100 kB
    vocabulary = tokenizer.raw.get_vocab()
    assert sorted(vocabulary.values()) == list(range(tokenizer.vocab))
    assert marks <= {*vocabulary}
    assert {tokenizer.get_token(i) for i in tokenizer.special_ids} - marks == {
        f"<extra_id_{i}>" for i in range(STYLES[style].sentinels)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_is_of_use(kind: str) -> None:
    tokenizer = trained(kind)
    text = corpus()[3]
    rate = len(text.encode()) / len(tokenizer.encode(text, add_special_tokens=False))
    assert rate > {"characters": 0.9, "words": 3}.get(kind, 1.8)
    ids = tokenizer.encode("the value of the object", add_special_tokens=False)
    assert tokenizer.decode(ids) == "the value of the object"


class TestKinds:
    def test_lowercase_takes_accents_along_where_a_kind_normalises(self) -> None:
        for kind, made in KINDS.items():
            normaliser = trained(kind, lowercase=True).raw.normalizer
            assert normaliser.normalize_str("ÀÉ") == ("ae" if made.normalise else "àé")
        keep = train("wordpiece", corpus()[:2], vocab=300, lowercase=True, strip_accents=False)
        assert keep.raw.normalizer.normalize_str("ÀÉ") == "àé"
        strip = train("wordpiece", corpus()[:2], vocab=300, strip_accents=True)
        assert strip.raw.normalizer.normalize_str("ÀÉ नि") == "AE नि"  # a vowel sign is no accent

    def test_quotes_are_of_the_style(self) -> None:
        assert trained("unigram", "cls-last").raw.normalizer.normalize_str("``a''") == '"a"'
        assert trained("unigram", "sentinels").raw.normalizer.normalize_str("``a''") == "``a''"
        assert trained("bpe", "cls-last").raw.normalizer is None

    def test_characters_seen_have_tokens_and_others_bytes(self) -> None:
        tokenizer = train("characters", ["aab é é 中", "aa"], vocab=400)
        tokens = [tokenizer.get_token(i) for i in tokenizer.encode("aé中", add_special_tokens=False)]
        assert tokens == ["a", "é", "<0xE4>", "<0xB8>", "<0xAD>"]
        assert tokenizer.get_token(tokenizer.encode(" ", add_special_tokens=False)[0]) == " "
        few = train("characters", ["aab é é 中", "aa"], vocab=400, alphabet=1, min_frequency=1)
        assert few.vocab == 4 + 256 + 1

    def test_words_are_the_most_frequent(self) -> None:
        text = "b b b a a c c, d"
        tokenizer = train("words", [text], vocab=7)
        assert [tokenizer.get_token(i) for i in range(4, tokenizer.vocab)] == ["b", "a", "c"]
        assert tokenizer.decode(tokenizer.encode("a d b", add_special_tokens=False)) == "a <unk> b"

    def test_the_alphabet_covers_nearly_all_text(self) -> None:
        counts = {"a" * 99_980 + "b" * 18 + "c": 1, "d": 1}
        assert sample.choose_alphabet(counts, 100, None) == ["a", "b"]
        assert sample.choose_alphabet(counts, 1, None) == ["a"]
        assert sample.choose_alphabet(counts, 100, 3) == ["a", "b", "c"]
        assert sample.choose_alphabet(counts, 3, 3, {"a": 2, "b": 2}) == ["a"]

    def test_a_word_piece_vocabulary_never_outgrows_its_size(self) -> None:
        text = "".join(map(chr, range(0x4E00, 0x4E00 + 500))) + " some words "
        tokenizer = train("wordpiece", [text * 2], vocab=60)
        assert tokenizer.vocab <= 60

    @pytest.mark.parametrize("alphabet", [None, 1, 400])
    @pytest.mark.parametrize("vocab", [387, 400, 500])
    def test_nor_does_a_unigram_one(self, vocab: int, alphabet: int | None) -> None:
        tokenizer = train("unigram", [*corpus()[:2], "中文字符" * 3], vocab=vocab, alphabet=alphabet)
        assert tokenizer.vocab == vocab or (alphabet == 1 and tokenizer.vocab < vocab)  # few letters, few pieces
        ids = tokenizer.encode("</s> <0x41> 中é", literal=True, add_special_tokens=False)
        assert tokenizer.decode(ids) == "</s> <0x41> 中é"

    def test_rare_words_are_forgotten_when_there_are_too_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sample, "MAX_WORDS", 4)
        raw = trained("words").raw
        assert sample.count_words(["a a b c d e f", "a g g"], raw) == {"a": 3, "g": 2}


class TestSample:
    @given(st.lists(st.text(st.characters(codec="utf-8"), max_size=50), max_size=8), st.integers(0, 3))
    def test_all_of_it_when_it_fits(self, texts: list[str], seed: int) -> None:
        sample = TextSample(texts, 10**6, seed)
        kept = [text for text in texts if text and not text.isspace()]
        assert [*sample] == kept
        assert sample.sample_bytes == sample.total_bytes == sum(len(text.encode()) for text in kept)

    def test_a_part_of_it_when_it_does_not(self) -> None:
        texts = [f"{i} " * 100 for i in range(1000)]
        told: list[int] = []
        sample = TextSample(texts, 50_000, seed=1, progress=told.append)
        kept = [*sample]
        assert 49_000 < sample.sample_bytes <= 50_000
        assert sample.total_bytes == told[-1] == sum(map(len, texts))
        assert kept == [*TextSample(iter(texts), 50_000, seed=1)]
        assert kept != [*TextSample(texts, 50_000, seed=2)]
        places = [texts.index(text) for text in kept]
        assert places == sorted(places)  # in the order of the corpus, and from all of it
        assert min(places) < 100 and max(places) > 900

    def test_one_long_text_is_no_problem(self) -> None:
        sample = TextSample(["word " * 100_000], 20_000)
        blocks = [*sample]
        assert 10_000 < sample.sample_bytes <= 20_000
        assert all(len(block) <= BLOCK_CHARACTERS + 10 for block in blocks)

    def test_long_words_are_cut(self) -> None:
        blocks = [*TextSample(["a" * 100_000, "x\ud800y"], 10**6)]
        assert max(len(word) for block in blocks for word in block.split()) == MAX_WORD_LENGTH
        assert sum(block.count("a") for block in blocks) == 100_000
        assert blocks[-1] == "x\ufffdy"
        assert trained("bpe").vocab == train("bpe", [*corpus(), "ab" * 200_000], vocab=700).vocab  # and not for hours

    def test_it_never_holds_more_than_the_limit(self) -> None:
        def texts() -> Iterator[str]:
            for i in range(3000):
                yield f"{i} " * 1000

        sample = TextSample(texts(), 100_000)
        assert sample.total_bytes > 10**7
        assert sum(map(len, sample)) <= 100_000


class TestPlan:
    @pytest.mark.parametrize(
        ("options", "values"),
        [
            ({"kind": "wordpeice"}, r"'wordpeice'.*'wordpiece'"),
            ({"style": "cls"}, "'cls'"),
            ({"style": "endoftext"}, r"'endoftext'.*'wordpiece'"),
            ({"vocab": 6}, r"vocab.*\b7\b.*\b5\b.*\b16777216\b.*\b6\b"),
            ({"kind": "bpe", "vocab": 256}, r"vocab.*\b257\b.*\b1\b.*\b256\b"),
            ({"kind": "unigram", "vocab": 300}, r"vocab.*\b387\b.*\b103\b.*\b256\b.*\b28\b"),
            ({"vocab": 2**25}, "33554432"),
            ({"min_frequency": 0}, r"min_frequency.*\b0\b"),
            ({"alphabet": 0}, r"alphabet.*\b0\b"),
            ({"sample_bytes": 0}, r"sample_bytes.*\b0\b"),
        ],
    )
    def test_what_cannot_be_is_said_first(self, options: dict[str, Any], values: str) -> None:
        def never() -> Iterator[str]:
            raise AssertionError("the corpus was read")
            yield ""

        given_ = {"kind": "wordpiece", "vocab": 1000, **options}
        with pytest.raises(UsageError, match=values):
            TokenizerConfig(**given_)
        with pytest.raises(UsageError, match=values):
            train(given_.pop("kind"), never(), **given_)

    @pytest.mark.parametrize("texts", [[], [""], [" ", "\n\n"]])
    def test_no_text(self, texts: list[str]) -> None:
        with pytest.raises(DataError):
            train("bpe", texts, vocab=300)

    @pytest.mark.parametrize("kind", KINDS)
    def test_hardly_any_text(self, kind: str) -> None:
        tokenizer = train(kind, ["a"], vocab=1000, min_frequency=1)
        assert tokenizer.decode(tokenizer.encode("a", add_special_tokens=False)) == "a"
        assert tokenizer.vocab < 1000


class TestLattice:
    """The vectorised lattice against all segmentations one by one."""

    WORDS = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=6), min_size=1, max_size=5, unique=True)

    @staticmethod
    def segmentations(word: str, pieces: set[str]) -> list[list[str]]:
        if not word:
            return [[]]
        heads = [word[:i] for i in range(1, len(word) + 1) if word[:i] in pieces]
        return [[head, *rest] for head in heads for rest in TestLattice.segmentations(word[len(head) :], pieces)]

    @settings(max_examples=scale_examples(40))
    @given(WORDS, st.integers(0, 10**6))
    def test_it_counts_all_segmentations(self, words: list[str], seed: int) -> None:
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 9, len(words)).astype(np.float64)
        pieces, _, example, made = unigram.find_seed_pieces(words, counts, list("abc"), 100, 1)
        sizes = np.array([len(piece) for piece in pieces])
        probability = rng.random(len(pieces))
        score, number = np.log(probability), {piece: i for i, piece in enumerate(pieces)}
        expected, best = np.zeros(len(pieces)), []
        for word, count in zip(words, counts, strict=True):
            ways = self.segmentations(word, {*pieces})
            weights = [math.prod(probability[number[piece]] for piece in way) for way in ways]
            best.append(math.log(max(weights)))
            for way, weight in zip(ways, weights, strict=True):
                for piece in way:
                    expected[number[piece]] += count * weight / sum(weights)
        assert made.compute_expected_counts(probability, counts) == pytest.approx(expected)
        scores, by = made.find_best(score)
        assert scores == pytest.approx(best)
        walked = np.zeros(len(words))
        spelled = [""] * len(words)
        for word, piece in made.walk(by, sizes):
            walked[word] += score[piece]
            for w, p in zip(word.tolist(), piece.tolist(), strict=True):
                spelled[w] = pieces[p] + spelled[w]
        assert walked == pytest.approx(best) and spelled == words
        # How a piece would be spelled without itself.
        long = np.flatnonzero(sizes > 1)
        if len(long):
            inner, _ = made.build_sublattice(example[long], sizes[long]).find_best(score)
            for piece, found in zip(long.tolist(), inner.tolist(), strict=True):
                ways = self.segmentations(pieces[piece], {*pieces} - {pieces[piece]})
                options = [sum(score[number[part]] for part in way) for way in ways]
                assert found == pytest.approx(max(options))

    def test_pieces_are_the_substrings_that_say_something(self) -> None:
        counts = np.array([5.0, 3.0])
        pieces, seen, _, _ = unigram.find_seed_pieces(["abcd", "abx"], counts, list("abcdx"), 100, 2)
        found = dict(zip(pieces[5:], seen[5:].tolist(), strict=True))
        # Not "abc" and "bc", which are always followed by "d".
        assert found == {"ab": 8, "abcd": 5, "bcd": 5, "cd": 5, "abx": 3, "bx": 3}

    def test_dead_pieces_take_their_arcs_along(self) -> None:
        pieces, _, _, made = unigram.find_seed_pieces(["abab"], np.array([2.0]), ["a", "b"], 10, 1)
        alive = np.array([len(piece) == 1 for piece in pieces])
        expected_counts = made.keep(alive).compute_expected_counts(np.ones(len(pieces)), np.array([2.0]))
        assert expected_counts[:2].tolist() == [4.0, 4.0]

    def test_stretches(self) -> None:
        assert unigram.expand_ranges(np.array([3]), np.array([0])).tolist() == []


class TestUnigram:
    def test_digamma(self) -> None:
        x = np.array([0.5, 1.0, 2.5, 10.0, 1e6])
        known = [-1.9635100260214235, -0.5772156649015329, 0.7031566406452432, 2.251752589066721, 13.815510057964191]
        assert unigram._digamma(x) == pytest.approx(known, rel=1e-9)

    def test_the_alphabet_stays_and_the_rest_earns_its_place(self) -> None:
        words = {"▁the": 500, "▁then": 100, "▁theory": 50, "▁zq": 1, "▁other": 80}
        found = dict(unigram.train_unigram(words, 24, sorted({*"".join(words)})))
        assert {*"".join(words)} <= {*found}
        assert "▁the" in found and max(found, key=lambda piece: found[piece]) == "▁the"
        assert len(found) <= 24
        assert unigram.train_unigram({}, 10, ["a"]) == []

    def test_words_are_cut_at_strange_characters_and_where_they_are_long(self) -> None:
        found = unigram.select_words({"ab☃cd": 2, "cd": 1, "a" * 70: 1}, {*"abcd"})
        assert dict(found) == {"cd": 3, "ab": 2, "a" * 32: 2, "a" * 6: 1}

    @pytest.mark.parametrize(
        ("word", "runs"),
        [
            ("▁nation.", ["▁nation", "."]),
            ("▁don't", ["▁don", "'", "t"]),
            ("▁COVID-19,", ["▁COVID", "-19,"]),
            ("▁3.14", ["▁3.14"]),
            ("▁10km", ["▁10", "km"]),
            ("Москва-Berlin", ["Москва", "-", "Berlin"]),
            ("▁日本のカメラ。", ["▁日本のカメラ", "。"]),  # Han, Hiragana and Katakana mix in one word
            ("e\u0301te\u0301.", ["e\u0301te\u0301", "."]),  # a mark goes with its letter
            ("▁العَرَبِيَّة،", ["▁العَرَبِيَّة", "،"]),
            ("\u0301", ["\u0301"]),
            ("▁", ["▁"]),
            ("", [""]),
        ],
    )
    def test_words_are_cut_where_the_script_changes(self, word: str, runs: list[str]) -> None:
        assert unigram.split_scripts(word) == runs

    def test_no_piece_joins_letters_and_others(self) -> None:
        text = "In 1918 the nation. The nation, 10km, nation-wide; nation's 2nd nation. "
        tokenizer = train("unigram", [text * 50, *corpus()[:6]], vocab=700, style="plain")
        special = tokenizer.special_ids
        pieces = [tokenizer.get_token(i).removeprefix("▁") for i in range(tokenizer.vocab) if i not in special]
        pieces = [piece for piece in pieces if not re.fullmatch("<0x..>", piece)]
        assert [piece for piece in pieces if any(map(str.isalpha, piece)) and not piece.isalpha()] == []
        assert [piece for piece in pieces if len(piece) > 3]  # there are longer ones
        ids = tokenizer.encode("The nation. 10km", add_special_tokens=False)
        assert [tokenizer.get_token(i) for i in ids[-2:]] == ["▁10", "km"]

    @pytest.mark.slow
    def test_it_is_no_worse_than_the_librarys(self) -> None:
        tokenizer = trained("unigram", "plain")
        theirs = Raw(models.Unigram())
        theirs.normalizer, theirs.pre_tokenizer = tokenizer.raw.normalizer, tokenizer.raw.pre_tokenizer
        trainer = trainers.UnigramTrainer(vocab_size=700 - 260, unk_token="<unk>", show_progress=False)
        theirs.train_from_iterator(corpus(), trainer)
        ours = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in corpus())
        assert ours < 1.02 * sum(len(theirs.encode(text).ids) for text in corpus())


def test_a_corpus_by_its_name(tmp_path: Path) -> None:
    for i, text in enumerate(corpus()[:4]):
        (tmp_path / f"{i}.txt").write_text(text)
    told: list[tuple[float, int]] = []
    tokenizer = pt.train_tokenizer("bpe", tmp_path, vocab=400, progress=lambda *facts: told.append(facts))
    assert tokenizer.vocab == 400
    assert told[-1][0] == 1.0 and told[-1][1] > 0.9 * sum(len(text.encode()) for text in corpus()[:4])
    again = pt.train_tokenizer("bpe", [str(tmp_path)], vocab=400)
    assert again.sha256 == tokenizer.sha256
    assert json.loads(again.build_files()["tokenizer.json"])["model"]["type"] == "BPE"
    with pytest.raises(UsageError, match="'bqe'"):
        pt.train_tokenizer("bqe", ["absent"], vocab=400)
    with pytest.raises(DataError):
        pt.train_tokenizer("bpe", ["absent"], vocab=400)


def test_byte_pairs_are_the_librarys() -> None:
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=699, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(corpus(), trainer)
    tokenizer = trained("bpe")
    for text in corpus():
        assert tokenizer.encode(text, add_special_tokens=False) == raw.encode(text).ids
