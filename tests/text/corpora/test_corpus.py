import gzip
import json
import pickle
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import Corpus, CorpusPart, Document, is_held_out, open_corpus, streams

pieces = st.lists(
    st.sampled_from(["a", "é", "漢字", "😀", " ", "\n", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "\n\n\n"])
)


def documents(parts: list[CorpusPart], counts: Counter[str]) -> list[Document]:
    """What the parts give, each sent through a pickle as to another process."""
    return [document for part in parts for document in pickle.loads(pickle.dumps(part)).read_documents(counts)]


def check_parts(corpus: Corpus, n_bytes: int) -> None:
    counts: Counter[str] = Counter()
    expected = list(corpus.read_documents())
    assert documents(corpus.plan_parts(n_bytes), counts) == expected
    assert {reason: count for reason, count in counts.items() if count} == corpus.counts


class TestParts:
    @pytest.mark.parametrize("by", ["auto", "block", "line", "file"])
    @given(content=pieces, n_bytes=st.integers(1, 40), chunk=st.integers(1, 30), mark=st.booleans())
    def test_together_they_are_all_documents(
        self, by: Any, content: list[str], n_bytes: int, chunk: int, mark: bool
    ) -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            path = Path(folder) / "a.txt"
            path.write_bytes(b"\xef\xbb\xbf" * mark + "".join([*content, "x"]).encode())
            corpus = open_corpus([str(path)], by=by)
            patch.setattr(streams, "CHUNK_BYTES", chunk)
            check_parts(corpus, n_bytes)

    @given(
        texts=st.lists(st.text(st.sampled_from("aé漢\n\r \u2028"), max_size=5), min_size=1),
        n_bytes=st.integers(1, 60),
        chunk=st.integers(1, 30),
        newline=st.sampled_from(["\n", "\r\n", "\n\n"]),
    )
    def test_of_jsonl(self, texts: list[str], n_bytes: int, chunk: int, newline: str) -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            path = Path(folder) / "a.jsonl"
            rows = [json.dumps({"text": text}, ensure_ascii=False) for text in [*texts, "x"]]
            path.write_bytes(newline.join(rows).encode())
            corpus = open_corpus([str(path)])
            patch.setattr(streams, "CHUNK_BYTES", chunk)
            check_parts(corpus, n_bytes)

    def test_a_file_is_really_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("".join(f"line {number}\n\n" for number in range(1000)))
        corpus = open_corpus([str(path)])
        size = path.stat().st_size
        for n_bytes in (100, 1000, 5000):
            parts = corpus.plan_parts(n_bytes)
            assert size / n_bytes / 1.3 < len(parts) <= size / n_bytes + 1
        assert len(corpus.plan_parts(size)) == 1

    @pytest.mark.parametrize("name", ["a.csv", "a.txt.gz", "utf16.txt"])
    def test_what_cannot_be_cut_is_one(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        content = "text,n\n" + "".join(f'"line {number}\n",1\n' for number in range(100))
        forms = {"a.txt.gz": gzip.compress(content.encode()), "utf16.txt": content.encode("utf-16")}
        path.write_bytes(forms.get(name, content.encode()))
        corpus = open_corpus([str(path)])
        assert len(corpus.plan_parts(10)) == 1
        check_parts(corpus, 10)

    def test_of_several_sources(self, tmp_path: Path) -> None:
        for name in ("a.txt", "b.txt", "c/d.md"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("one\n\n \n\ntwo\n\nthree\n")
        corpus = open_corpus([str(tmp_path / "b.txt"), str(tmp_path / "c"), str(tmp_path / "a.txt")])
        check_parts(corpus, 3)
        assert [part.source for part in corpus.plan_parts(100)] == [0, 1, 2]
        assert [document.source for document in corpus.read_documents()] == [0, 0, 0, 1, 2, 2, 2]
        with pytest.raises(UsageError, match=r"\b0\b"):
            corpus.plan_parts(0)


class TestFingerprint:
    def test_it_follows_the_content(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("one\n\ntwo")
        before = open_corpus([str(path)]).compute_fingerprint()
        assert open_corpus([str(path)]).compute_fingerprint() == before
        assert len(before) == 64
        path.write_text("one\n\ntwO")
        assert open_corpus([str(path)]).compute_fingerprint() != before
        path.write_text("one\n\ntwo")
        assert open_corpus([str(path)]).compute_fingerprint() == before
        assert open_corpus([str(path)], by="line").compute_fingerprint() != before
        assert open_corpus([str(path)], errors="replace").compute_fingerprint() != before

    def test_order_and_names_matter(self, tmp_path: Path) -> None:
        one, two = tmp_path / "1", tmp_path / "2"
        one.write_text("text")
        two.write_text("text")
        orders = ([one], [two], [one, two], [two, one])
        assert len({open_corpus([*map(str, names)]).compute_fingerprint() for names in orders}) == 4

    def test_a_file_that_went_away(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("text")
        corpus = open_corpus([str(path)])
        path.unlink()
        with pytest.raises(DataError, match=r"a\.txt: .*No such file"):
            corpus.compute_fingerprint()
        with pytest.raises(DataError, match=r"a\.txt: .*No such file"):
            list(corpus.read_documents())


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"by": "lines"}, ("'lines'", "'line'", "'auto', 'file', 'block', 'line', 'field'")),
        ({"errors": "ignore"}, ("'ignore'", "'strict', 'replace'")),
        ({"by": "line", "field": "text"}, ("'text'", "'line'")),
    ],
)
def test_what_is_asked_is_checked_first(options: dict[str, Any], values: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        open_corpus(["a"], **options)
    assert [value for value in values if value not in str(caught.value)] == []


def test_inputs_are_a_list() -> None:
    with pytest.raises(UsageError, match="'books/'"):
        open_corpus("books/")
    with pytest.raises(DataError):
        open_corpus([])


SHARED = [  # what the README of the corpora says of them
    ("wikipedia-en/valid.txt.xz", 107),
    ("wikinews-en/valid.txt.xz", 380),
    ("books-en/valid.txt.xz", 90),
    ("tinystories/valid.txt.xz", 231),
    ("tinyshakespeare", 7222),
    ("multilingual/*.novels.txt.xz", 664),
    ("multilingual/zho.wikipedia.txt.xz", 1198),
    ("udhr", 20),
    ("wikitext", 2),
    ("ptb", 3),
    ("multi30k/val.*.xz", 4),
]


@pytest.mark.parametrize(("name", "count"), SHARED)
def test_the_shared_corpora_are_as_their_readme_says(shared_data: Path, name: str, count: int) -> None:
    corpus = open_corpus([str(shared_data / "corpora" / name)])
    found = list(corpus.read_documents())
    assert len(found) == count
    assert not corpus.counts
    assert not any(document.is_continued for document in found)


def test_paragraphs_and_lines_of_the_shared_corpora(shared_data: Path) -> None:
    first = next(open_corpus([str(shared_data / "corpora/wikipedia-en/valid.txt.xz")]).read_documents())
    assert first.text.startswith("Demographics of Estonia\nThe demographics of Estonia in the twenty-first century")
    (whole,) = open_corpus([str(shared_data / "corpora/ptb/ptb.valid.txt.xz")]).read_documents()
    assert whole.text.count("\n") == 3369
    lines = open_corpus([str(shared_data / "corpora/multi30k/val.de.xz")], by="line")
    assert sum(1 for _ in lines.read_documents()) == 1014


def test_a_folder_with_a_table_of_titles(shared_data: Path) -> None:
    corpus = open_corpus([str(shared_data / "corpora/books-en")])
    assert corpus.counts == {"tables_without_text_field": 1}
    names = [Path(item.name).name for item in corpus.sources[0].items]
    assert names == [*(f"train-0{number}.txt.xz" for number in range(3)), "valid.txt.xz"]


def test_a_carriage_return_inside_a_line_shifts_no_pair(tmp_path: Path) -> None:
    for name, text in (("en", "one\ntwo a\rb\nthree\r\n"), ("de", "eins\nzwei\ndrei a\rb\n")):
        (tmp_path / f"a.{name}").write_bytes(text.encode())
    documents = [*open_corpus([f"pair:{tmp_path}/a.en,{tmp_path}/a.de"]).read_documents()]
    assert [document.sides for document in documents] == [("one", "eins"), ("two a b", "zwei"), ("three", "drei a b")]


TEXTS = [f"text number {number}" for number in range(20_000)]


def test_the_cut_is_pinned() -> None:
    """A model is judged on what it has not seen: another cut would let old runs be judged on their training data."""
    found = [number for number, text in enumerate(TEXTS[:300]) if is_held_out(text, 0.02)]
    assert found == [24, 42, 45, 81, 212, 219, 228, 298]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 1.0])
def test_the_share_is_right(share: float) -> None:
    found = np.mean([is_held_out(text, share) for text in TEXTS])
    assert abs(found - share) <= 4 * np.sqrt(share * (1 - share) / len(TEXTS))


@given(st.text(st.characters()), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_what_a_smaller_one_held(text: str, one: float, other: float) -> None:
    if is_held_out(text, min(one, other)):
        assert is_held_out(text, max(one, other))


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_what_is_no_share(share: float) -> None:
    with pytest.raises(UsageError, match=str(share)):
        is_held_out("text", share)
