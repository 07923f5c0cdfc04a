import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError
from pretune.text.corpora import open_corpus, tables
from pretune.text.corpora.tables import iter_delimited_rows, read_jsonl

Write = Callable[[str, str], Path]
cells = st.text(st.sampled_from('ab,;\t"\n é'), max_size=8)


def texts(path: Path, field: str | None = None, errors: str = "strict") -> list[tuple[str, str]]:
    corpus = open_corpus([str(path)], field=field, errors=errors)  # type: ignore[arg-type]
    return [(document.text, document.location.rpartition("/")[2]) for document in corpus.read_documents()]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8", newline="")
        return path

    return write


def test_rows_know_where_they_are(write: Write) -> None:
    path = write("a.csv", 'text,n\r\none,1\r\n"two\r\nlines",2\r\n\r\nthree,3\r\n')
    assert texts(path) == [("one", "a.csv:2"), ("two\nlines", "a.csv:3"), ("three", "a.csv:6")]
    path = write("a.jsonl", '\n{"text": "one"}\n\n{"text": "two\\nlines"}\n')
    assert texts(path) == [("one", "a.jsonl:2"), ("two\nlines", "a.jsonl:4")]


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6))
def test_what_csv_writes_is_read(rows: list[tuple[str, str]]) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([("a", "b"), *rows])
    found = [tuple(row) for _, row in iter_delimited_rows([buffer.getvalue()], ",", True, "name")]
    assert found == [("a", "b"), *rows]


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("a.csv", "text,n\na,1\n" * 200 + "b\n", ("a.csv:401: ", "1 ", "2")),
        ("a.csv", "text,n\n" + "a,1\n" * 200 + '"b"c,1\n', ("a.csv:202: ", "',' expected after '\"'")),
        ("a.csv", "text,n\n" + "a,1\n" * 200 + '"b,1\nc,2\n', ("a.csv:202: ",)),
        ("a.jsonl", '{"text": "a"}\n' * 200 + '{"text": "b"', ("a.jsonl:201: ",)),
        ("a.jsonl", '{"text": "a"}\n' * 200 + '{"txt": "b"}', ("a.jsonl:201: ", "'text'", "'txt'")),
        ("a.jsonl", '{"text": "a"}\n' * 200 + '{"text": 5}', ("a.jsonl:201: ", "'text'", "number")),
        ("a.jsonl", '{"text": "a"}\n' * 200 + '{"text": ["b"]}', ("a.jsonl:201: ", "'text'", "array")),
        ("a.jsonl", '{"text": "a"}\n' * 200 + '"text"', ("a.jsonl:201: ", "string")),
        ("a.jsonl", '{"text": "a"}\n{"text": "\\ud800"}\n', ("a.jsonl:2: ", " 0 ")),
        ("a.jsonl", '{"text": "a"}\n' * 200 + "[" * 100_000, ("a.jsonl:201: ",)),
        ("a.jsonl", '{"text": "a"}\n' * 200 + '{"n": ' + "9" * 5000 + "}", ("a.jsonl:201: ",)),
    ],
)
def test_a_bad_row_is_told_with_its_number(write: Write, name: str, content: str, values: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        texts(write(name, content))
    assert [value for value in values if value not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_empty_texts_are_counted_and_null_is_one(write: Write) -> None:
    path = write("a.jsonl", '{"text": null}\n{"text": ""}\n{"text": " \\n"}\n{"text": "one"}\n')
    corpus = open_corpus([str(path)])
    assert [document.text for document in corpus.read_documents()] == ["one"]
    assert corpus.counts == {"empty_documents": 3}
    assert [document.text for document in corpus.read_documents()] == ["one"]
    assert corpus.counts == {"empty_documents": 3}, "a second pass counts anew"


def test_newlines_inside_fields_are_newlines(write: Write) -> None:
    path = write("a.jsonl", json.dumps({"text": "\r\none\r\ntwo\rthree\n"}))
    assert texts(path) == [("one\ntwo\nthree", "a.jsonl:1")]


def test_half_characters_can_be_replaced(write: Write) -> None:
    path = write("a.jsonl", json.dumps({"text": "a\ud800b\ufffd"}) + "\n")
    corpus = open_corpus([str(path)], errors="replace")
    assert [document.text for document in corpus.read_documents()] == ["a\ufffdb\ufffd"]
    assert corpus.counts == {"replaced_characters": 1}


def test_pairs_of_escapes_are_one_character() -> None:
    found = read_jsonl(['{"text": "\\ud83d\\ude00"}'], "text", "name", 1, "strict", Counter())
    assert list(found) == [("😀", 1)]


def test_a_field_larger_than_the_limit_of_python(write: Write) -> None:
    long = "word " * 100_000
    assert texts(write("a.csv", f'text,n\n"{long}",1\n')) == [(long, "a.csv:2")]


def test_a_row_that_would_fill_the_memory_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROW_CHARACTERS", 2**18)
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*\b262144\b"):
        texts(write("a.jsonl", '{"text": "a"}\n{"text": "' + "b" * 2**19 + '"}\n'))


def test_a_single_unclosed_quote_does_not_swallow_the_file(write: Write) -> None:
    content = "text\tn\n" + "a\t1\n" * 200 + '"b\t2\n' + "c\t3\n" * 200
    assert len(texts(write("a.tsv", content))) == 401, "TSV knows no quotes"
    with pytest.raises(DataError, match=r"a\.csv:202: "):
        texts(write("a.csv", content.replace("\t", ",")))
