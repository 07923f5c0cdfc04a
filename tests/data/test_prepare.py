"""Text to shards: nothing lost, nothing twice, the same bytes for any number of processes and slices."""

import dataclasses
import json
import multiprocessing
import os
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.core.errors import DataError, UsageError
from pretune.data.plan import BatchShape
from pretune.data.prepare import card, dedup_split, run
from pretune.data.prepare.run import merge
from pretune.data.prepare.settings import PrepareConfig, parse_share, state_licences
from pretune.data.prepared_data import PreparedData
from pretune.data.samples import Documents
from pretune.data.stream import BatchStream
from pretune.runs.prepare import prepare
from pretune.text.corpora import is_held_out, open_corpus
from pretune.text.sentences import split_sentences
from pretune.text.tokenizer import Tokenizer
from tests.data.texts import MANY, blocks, byte_tokenizer, stories, story, texts_of, tree


def by_source(data: PreparedData, split_: str) -> list[tuple[str, str]]:
    names = data.index.sources
    return list(zip((names[one] for one in data.open_shards(split_).sources), texts_of(data, split_), strict=True))


class TestContent:
    def test_every_document_is_there_once(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        data = pt.prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data", holdout="10%")
        every = [*(story(1000 + number) for number in range(5)), *MANY]
        assert texts_of(data) == [text for text in every if not is_held_out(text, 0.1)]
        assert texts_of(data, "valid") == [text for text in every if is_held_out(text, 0.1)]
        assert data.card["dropped"]["exact_duplicates"] == 3
        assert data.card["documents_read"] == 308

    def test_what_is_known_about_a_split_is_so(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        data = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data", holdout="20%")
        for name, split_ in data.index.splits.items():
            texts = texts_of(data, name)
            assert split_.documents == len(texts)
            assert split_.bytes == split_.tokens == sum(map(len, map(str.encode, texts)))
            assert split_.sentences == sum(len(split_sentences(text)) for text in texts)
            assert data.card["splits"][name]["words"] == data.open_shards(name).read_word_starts(0, split_.tokens).sum()

    def test_sentences_and_words(self, tokenizer: Path, tmp_path: Path) -> None:
        text = "Dr. Wu said so.  It's 3.5 (ünïcode) now.\n我去。你呢？ Last one"
        given = blocks(tmp_path / "a.txt", [text, "Second text. With two."])
        shards = prepare([given], tokenizer=tokenizer, out=tmp_path / "data", holdout=0).open_shards()
        flat = (text + "Second text. With two.").encode()
        cuts = [*shards.sentences.tolist(), len(flat)]
        found = [flat[a:b].decode() for a, b in pairwise(cuts)]
        assert found == [
            "Dr. Wu said so.",
            "  It's 3.5 (ünïcode) now.",
            "\n我去。",
            "你呢？",
            " Last one",
            "Second text.",
            " With two.",
        ]
        starts = np.flatnonzero(shards.read_word_starts(0, len(shards)))
        words = [flat[a:b].decode() for a, b in pairwise([*starts.tolist(), len(flat)])]
        assert words[:6] == ["Dr", ".", " Wu", " said", " so", "."]

    def test_special_tokens_in_a_text_are_text(self, tokenizer: Path, tmp_path: Path) -> None:
        data = prepare([blocks(tmp_path / "a.txt", ["An [UNK] here."])], tokenizer=tokenizer, out=tmp_path / "data")
        assert texts_of(data) == ["An [UNK] here."]
        assert len(data.open_shards()) == len("An [UNK] here.")

    def test_sources(self, tokenizer: Path, tmp_path: Path) -> None:
        first, second = blocks(tmp_path / "1.txt", stories(40)), blocks(tmp_path / "2.txt", stories(40, 40))
        data = prepare([first, second], tokenizer=tokenizer, out=tmp_path / "data", holdout="10%")
        assert data.index.sources == (first, second)
        every = [*by_source(data, "train"), *by_source(data, "valid")]
        expected = [(first, text) for text in stories(40)] + [(second, text) for text in stories(40, 40)]
        assert Counter(every) == Counter(expected)
        for number, name in enumerate((first, second)):
            for split_ in ("train", "valid"):
                known = data.card["sources"][number][split_]["documents"]
                assert known == sum(source == name for source, _ in by_source(data, split_))

    @pytest.mark.parametrize(("extra", "dtype"), [(65_536 - 257, "uint16"), (65_536 - 256, "uint32")])
    def test_the_type_of_tokens_follows_the_vocabulary(self, tmp_path: Path, extra: int, dtype: str) -> None:
        given = byte_tokenizer(tmp_path / "tok", extra)
        data = prepare([blocks(tmp_path / "a.txt", MANY[:20])], tokenizer=given, out=tmp_path / "data")
        assert (data.vocab, data.index.dtype) == (257 + extra, dtype)
        assert data.open_shards().read_tokens(0, 5).dtype == dtype
        assert {*texts_of(data), *texts_of(data, "valid")} == {*MANY[:20]}

    def test_a_tokenizer_that_is_there(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        loaded = Tokenizer.load(tokenizer)
        one = prepare([corpus], tokenizer=loaded, out=tmp_path / "one")
        two = prepare([Path(corpus)], tokenizer=tokenizer / "tokenizer.json", out=str(tmp_path / "two"))
        assert tree(one.path) == tree(two.path)
        assert Tokenizer.load(one.tokenizer).sha256 == loaded.sha256 == one.index.tokenizer_sha256


class TestSplits:
    def test_named_validation_text(self, tokenizer: Path, tmp_path: Path) -> None:
        train = blocks(tmp_path / "train.txt", [*MANY[:50], MANY[7].replace(" ", "  "), MANY[100]])
        valid = blocks(tmp_path / "valid.txt", [*MANY[5:8], *MANY[100:103], MANY[5]])
        data = prepare([train], tokenizer=tokenizer, out=tmp_path / "data", valid=[valid])
        assert texts_of(data) == [*MANY[:5], *MANY[8:50]]
        assert texts_of(data, "valid") == [*MANY[5:8], *MANY[100:103]]
        assert data.card["dropped"]["also_in_validation"] == 5
        assert data.card["dropped"]["exact_duplicates"] == 1
        assert data.index.sources == (train, valid)
        assert {source for source, _ in by_source(data, "valid")} == {valid}
        assert data.card["settings"]["holdout"] == 0 and "holdout | 0.0 |" in (data.path / "card.md").read_text()

    def test_at_most_so_many_tokens(self, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dedup_split, "MAX_VALID_TOKENS", 2000)
        given = [blocks(tmp_path / f"{n}.txt", MANY[n * 100 : n * 100 + 100]) for n in range(3)]
        data = prepare(given, tokenizer=tokenizer, out=tmp_path / "data", holdout="30%")
        valid = texts_of(data, "valid")
        assert 1500 < sum(map(len, valid)) <= 2000
        assert all(is_held_out(text, 0.3) for text in valid)
        assert texts_of(data) == [text for text in MANY if text not in valid]  # the others stay where they were
        assert len({source for source, _ in by_source(data, "valid")}) > 1  # and are not those that came first

    @pytest.mark.parametrize("chance", [True, False])
    def test_a_usable_split_by_default(
        self, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], chance: bool
    ) -> None:
        texts = [text for text in stories(400, 5000) if chance or not is_held_out(text, 0.01)][:200]
        data = prepare([blocks(tmp_path / "a.txt", texts)], tokenizer=tokenizer, out=tmp_path / "data")
        valid = texts_of(data, "valid")
        assert len(valid) >= 2 and 2048 <= sum(map(len, valid)) <= 0.1 * sum(map(len, texts))
        assert {*valid} >= {text for text in texts if is_held_out(text, 0.01)}
        assert sorted([*texts_of(data), *valid]) == sorted(texts)
        assert data.card["lacking"] is None and capsys.readouterr().err == ""
        other = prepare([blocks(tmp_path / "b.txt", texts[::-1])], tokenizer=tokenizer, out=tmp_path / "other")
        assert {*texts_of(other, "valid")} == {*valid}  # by content, not by order

    def test_a_split_that_cannot_be_usable(
        self, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        texts = [text for text in stories(60, 5000) if not is_held_out(text, 0.01)][:30]
        data = prepare([blocks(tmp_path / "a.txt", texts)], tokenizer=tokenizer, out=tmp_path / "data")
        valid = texts_of(data, "valid")
        assert len(valid) >= 2 and sum(map(len, valid)) <= 0.1 * sum(map(len, texts))
        why = data.card["lacking"]
        assert "2,048" in why and str(len(valid)) in why and "30" in why
        assert why in capsys.readouterr().err and why[1:] in (data.path / "card.md").read_text()

    def test_too_few_documents(self, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for holdout, warned in (("1%", True), ("0", False)):
            given = blocks(tmp_path / "a.txt", MANY[1:4])
            out = tmp_path / f"data{holdout}"
            data = prepare([given], tokenizer=tokenizer, out=out, holdout=holdout)
            assert list(data.index.splits) == ["train"]
            assert (data.card["lacking"] is not None) == warned
            assert ("--holdout" in capsys.readouterr().err) == warned

    @pytest.mark.parametrize(("given", "number"), [("1%", 0.01), ("0.5%", 0.005), (0.25, 0.25), ("0", 0), ("100%", 1)])
    def test_a_share(self, given: Any, number: float) -> None:
        assert parse_share(given) == pytest.approx(number)

    @pytest.mark.parametrize("given", ["", "x", "-1%", "101%", "1.5", "nan", "1%%", None])
    def test_no_share(self, given: Any) -> None:
        with pytest.raises(UsageError, match=f"holdout.*'{given}'"):
            parse_share(given)


class TestDuplicates:
    def test_white_space_and_unicode_form_do_not_matter(self, tokenizer: Path, tmp_path: Path) -> None:
        texts = ["Café au lait, please.", "Cafe\u0301 au\nlait,  please. ", "Café au lait, please!"]
        data = prepare([blocks(tmp_path / "a.txt", texts)], tokenizer=tokenizer, out=tmp_path / "data", holdout=0)
        assert texts_of(data) == [texts[0], texts[2]]

    def test_near_duplicates_on_request(self, tokenizer: Path, tmp_path: Path) -> None:
        long = story(1, 40)
        texts = [long, long + " And one more sentence.", story(2, 40), "Before. " + long]
        given = blocks(tmp_path / "a.txt", texts)
        assert len(texts_of(prepare([given], tokenizer=tokenizer, out=tmp_path / "all", holdout=0))) == 4
        data = prepare([given], tokenizer=tokenizer, out=tmp_path / "near", holdout=0, near=0.8)
        assert texts_of(data) == [texts[0], texts[2]]
        assert data.card["dropped"] == {
            "without_tokens": 0,
            "exact_duplicates": 0,
            "also_in_validation": 0,
            "near_duplicates": 2,
        }

    def test_filters_are_counted(self, tokenizer: Path, tmp_path: Path) -> None:
        texts = ["Too short.", "A {brace} here, dear reader.", *MANY[:5], "Wide   space here."]
        given = blocks(tmp_path / "a.txt", texts)
        clean = ["spaces", "short_pages=3", "curly_braces"]
        data = prepare([given], tokenizer=tokenizer, out=tmp_path / "data", holdout=0, clean=clean)
        assert texts_of(data) == [*MANY[:5], "Wide space here."]
        assert data.card["filters"] == {
            "curly_braces": {"kept": 6, "changed": 0, "dropped": 1},
            "short_pages=3": {"kept": 7, "changed": 0, "dropped": 1},
            "spaces": {"kept": 8, "changed": 1, "dropped": 0},
        }

    def test_documents_without_tokens(self, tmp_path: Path) -> None:
        import tokenizers

        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
        made.normalizer = tokenizers.normalizers.Replace("x", "")
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.add_special_tokens(["[UNK]"])
        made.save(str(tmp_path / "tokenizer.json"))
        given = blocks(tmp_path / "a.txt", ["a a b", "xxx", "a xx", "x"])
        data = prepare([given], tokenizer=tmp_path / "tokenizer.json", out=tmp_path / "data", holdout=0)
        assert data.open_shards().documents.tolist() == [0, 3, 4]
        assert data.card["dropped"]["without_tokens"] == 2
        assert data.card["splits"]["train"]["unknown_share"] == 0.25


class TestCard:
    def test_what_it_says(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "picture.bin").write_bytes(b"\0\1\2")
        german = "Der Hund und die Katze sind nicht im Haus, aber sie werden es noch finden. " * 20
        (tmp_path / "more" / "a|b_*.txt").write_text(german)
        data = prepare([corpus, str(tmp_path / "more")], tokenizer=tokenizer, out=tmp_path / "data", clean=["nfc"])
        made = data.card
        assert made["skipped"] == {"binary_files": 1}
        assert [one["kind"] for one in made["sources"]] == ["folder", "folder"]
        assert list(made["languages"]) == ["en", "de"] and sum(made["languages"].values()) == pytest.approx(1, abs=1e-3)
        assert made["splits"]["train"]["tokens"] == data.tokens
        assert list(made["splits"]["train"]["lengths"]) == ["0%", "5%", "25%", "50%", "75%", "95%", "100%"]
        assert made["splits"]["train"]["lengths"]["100%"] == max(map(len, map(str.encode, texts_of(data))))
        assert len(made["samples"]) == 3 and made["samples"][0]["text"].startswith("Story 1000 begins.")
        assert made["fingerprint"] == data.fingerprint
        page = (tmp_path / "data" / "card.md").read_text()
        assert page.startswith("# ") and page.count("\n## ") == 5
        assert f"{data.tokens:,}" in page
        assert "| binary files |  |  | 1 |" in page and " nfc |" in page

    def test_the_command_makes_it_again(self, tokenizer: Path, tmp_path: Path) -> None:
        given, valid = blocks(tmp_path / "a b.txt", MANY[:9]), blocks(tmp_path / "v.txt", MANY[9:12])
        options = {"valid": [valid], "clean": ["nfc", "spaces"], "near": 0.9}
        data = prepare([given], tokenizer=tokenizer, out=tmp_path / "d", **options)
        assert data.card["command"] == (
            f"pretune prepare '{given}' --tokenizer DATA/tokenizer --out DATA "
            f"--valid {valid} --clean nfc,spaces --near 0.9"
        )

    def test_texts_cannot_leave_their_place(self) -> None:
        assert card._escape_cell("a|b\n# <b> `x`") == "a\\|b \\# \\<b\\> \\`x\\`"


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "values"),
        [
            ({"clean": ["spaes"]}, ("'spaes'", "'spaces'")),
            ({"clean": ["short_pages=x"]}, ("short_pages", "'x'")),
            ({"near": 1.5}, ("1.5",)),
            ({"sentences": "rule"}, ("'rule'", "'rules'")),
            ({"lang": "../x"}, ("lang", "../x")),
            ({"holdout": "2%", "valid": ["x"]}, ("holdout", "valid")),
            ({"workers": -1}, ("workers", "-1")),
            ({"by": "word"}, ("by", "word")),
            ({"errors": "ignore"}, ("errors", "ignore")),
        ],
    )
    def test_what_cannot_be(
        self, corpus: str, tokenizer: Path, tmp_path: Path, options: Any, values: tuple[str, ...]
    ) -> None:
        with pytest.raises(UsageError) as caught:
            prepare([corpus], tokenizer=tokenizer, out=tmp_path / "out", **options)
        assert all(value in str(caught.value) for value in values)
        assert not (tmp_path / "out").exists()

    def test_too_many_inputs(self, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "MAX_SOURCES", 2)
        given = [blocks(tmp_path / f"{number}.txt", MANY[number : number + 1]) for number in range(3)]
        with pytest.raises(UsageError, match=r"\b2\b"):
            prepare(given, tokenizer=tokenizer, out=tmp_path / "out")
        assert prepare(given[:2], tokenizer=tokenizer, out=tmp_path / "out", valid=[]).is_new

    def test_inputs_are_a_list(self, corpus: str, tokenizer: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="inputs"):
            prepare(corpus, tokenizer=tokenizer, out=tmp_path / "out")

    def test_every_setting_is_in_the_command(self, tokenizer: Path) -> None:
        names = {field.name for field in dataclasses.fields(PrepareConfig)}
        assert names == {"by", "field", "errors", "clean", "near", "holdout", "lang", "sentences", "licence", "keep"}


def test_a_handle_is_a_path(corpus: str, tokenizer: Path, tmp_path: Path) -> None:
    data = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data")
    assert os.fspath(data) == str(data) == str(tmp_path / "data")
    assert PreparedData.open(data) == data and PreparedData.open(data).slice is None
    assert json.loads(json.dumps(data.to_dict()))["splits"]["train"]["tokens"] == data.tokens


def test_progress_goes_from_nothing_to_all(corpus: str, tokenizer: Path, tmp_path: Path, small: None) -> None:
    told: list[tuple[float, int, int]] = []
    data = prepare([corpus], tokenizer=tokenizer, out=tmp_path / "d", progress=lambda *now: told.append(now))
    assert told == sorted(told) and len(told) > 10
    assert told[-1][0] == pytest.approx(1.0)
    assert told[-1][2] >= data.tokens


def test_nobody_is_left_behind(corpus: str, tokenizer: Path, tmp_path: Path, small: None) -> None:
    prepare([corpus], tokenizer=tokenizer, out=tmp_path / "data", workers=2)
    assert multiprocessing.active_children() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@settings(max_examples=15)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=90),
        min_size=2,
        max_size=20,
    ),
    st.integers(8, 40),
    st.integers(0, 2**32),
)
def test_no_token_is_lost_between_text_and_batches(tokenizer: Path, texts: list[str], length: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.jsonl"
        path.write_text("".join(json.dumps({"text": f"Text {n}: {text}"}) + "\n" for n, text in enumerate(texts)))
        data = prepare([str(path)], tokenizer=tokenizer, out=Path(name) / "data", holdout=0)
        samples = Documents(limit=length).open(data.open_shards())
        stream = BatchStream(samples, BatchShape(rows=2, length=length), seed=seed)
        pieces: Counter[tuple[int, ...]] = Counter()
        for step in stream.get_steps(0):
            made = stream[step]
            pieces.update(tuple(one.tolist()) for one in made.split(made.tokens))
        shards = data.open_shards()
        expected: Counter[tuple[int, ...]] = Counter()
        for start, stop in pairwise(shards.documents.tolist()):
            whole = shards.read_tokens(start, stop).tolist()
            expected.update(tuple(whole[at : at + length]) for at in range(0, len(whole), length))
        assert pieces == expected
        read = [document.text.encode() for document in open_corpus([str(path)]).read_documents()]
        assert len(read) == len(texts) == len(shards.documents) - 1
        assert sum(len(one) * count for one, count in pieces.items()) == sum(map(len, read))


@settings(max_examples=12)
@given(st.lists(st.text('aZ3é中。？！👍🏽\u0301क्.?!" \n', min_size=1, max_size=40), min_size=1, max_size=12))
def test_boundaries_never_cut_a_character(tokenizer: Path, texts: list[str]) -> None:
    """Documents, sentences and words begin where they begin in the text, though a token is a byte."""
    given_ = [f"{n} {text}".strip() for n, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in given_))
        data = prepare([str(path)], tokenizer=tokenizer, out=Path(name) / "data", holdout=0, lang="en")
        assert texts_of(data) == given_
        shards = data.open_shards()
        flat = "".join(given_).encode()
        assert shards.documents.tolist() == [0, *np.cumsum([len(text.encode()) for text in given_]).tolist()]
        begun = zip(given_, shards.documents.tolist(), strict=False)
        expected = [  # a sentence takes the white space before it along
            start + len(text[:at].rstrip().encode()) for text, start in begun for at in split_sentences(text, "en")
        ]
        assert shards.sentences.tolist() == expected
        words = np.flatnonzero(shards.read_word_starts(0, len(shards))).tolist()
        for a, b in pairwise([*words, len(flat)]):
            flat[a:b].decode()


def test_the_story_of_the_readme(tmp_path: Path) -> None:
    given = blocks(tmp_path / "books" / "a.txt", MANY)
    tok = pt.train_tokenizer("wordpiece", [given], vocab=120)
    data = pt.prepare([given], tokenizer=tok, out=tmp_path / "data")
    assert data.vocab == tok.vocab <= 120
    assert texts_of(data)[0] == tok.decode(tok.encode(MANY[0], add_special_tokens=False))
    tokens = data.open_shards().read_tokens(0, data.tokens)
    assert (tokens == tok.special["unk"]).sum() == data.card["splits"]["train"]["unknown"]


SOURCES: list[dict[str, Any]] = [
    {"name": "books/a", "licence": None},
    {"name": "news", "licence": None},
    {"name": "builtin:docs", "licence": "PSF"},
]


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([], [None, None, "PSF"]),
        (["MIT"], ["MIT", "MIT", "PSF"]),
        (["*=MIT"], ["MIT", "MIT", "MIT"]),
        (["books/*=own", "MIT"], ["own", "MIT", "PSF"]),
        (["builtin:docs=other", "n*=a=b"], [None, "a=b", "other"]),
    ],
)
def test_statements(statements: list[str], expected: list[str | None]) -> None:
    assert [source["licence"] for source in state_licences(SOURCES, statements)] == expected


@pytest.mark.parametrize("statement", ["", " ", "news=", "nws=MIT"])
def test_what_says_nothing_is_refused(statement: str) -> None:
    with pytest.raises(UsageError, match=f"'{statement}'"):
        state_licences(SOURCES, [statement])


def test_in_the_card(tmp_path: Path, tokenizer: Path) -> None:
    given = [blocks(tmp_path / "a.txt", MANY[:50]), blocks(tmp_path / "b.txt", MANY[50:99])]
    options: dict[str, Any] = {"tokenizer": tokenizer, "workers": 0, "licence": ["CC0", "*b.txt=*own* text"]}
    data = prepare(given, out=tmp_path / "data", **options)
    assert [source["licence"] for source in data.card["sources"]] == ["CC0", "*own* text"]
    text = (data.path / "card.md").read_text()
    assert "| CC0, \\*b.txt=\\*own\\* text |" in text, "a setting is no Markdown either"
    assert "CC0" in text and "\\*own\\* text" in text and "--licence CC0 --licence '*b.txt=*own* text'" in text
    assert not prepare(given, out=tmp_path / "data", **options).is_new
    with pytest.raises(DataError, match=r"licence.*CC0"):
        prepare(given, out=tmp_path / "data", **{**options, "licence": "CC0"})
    slices = [prepare(given, out=tmp_path / f"{n}", shard=f"{n}/2", **options) for n in (1, 2)]
    assert tree(merge(slices, out=tmp_path / "merged").path) == tree(data.path)
