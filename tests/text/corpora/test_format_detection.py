import gzip
import json
import pickle
from pathlib import Path

import pytest

from pretune.core.errors import DataError
from pretune.text.corpora.document import DocumentBoundary, FileFormat, UnfitError, choose_field
from pretune.text.corpora.format_detection import detect_format

PROSE = "It was, as they say, a dark night; rain fell, and the wind, too, blew.\nHe came, saw, left.\n"
JSONL = '{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n'
CSV = 'id,text\n1,"one, and\nmore"\n2,two\n'


def look(
    tmp_path: Path, name: str, content: str | bytes, by: DocumentBoundary = "auto", field: str | None = None
) -> FileFormat:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return detect_format(str(path), name, by, field)


def kind(
    tmp_path: Path, name: str, content: str | bytes, by: DocumentBoundary = "auto", field: str | None = None
) -> tuple[str, str]:
    found = look(tmp_path, name, content, by, field)
    return found.kind, found.unit


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", PROSE, ("text", "block")),
        ("a", PROSE, ("text", "block")),
        ("a.json", PROSE, ("text", "block")),
        ("a.md", "# Title\n\nText.\n", ("text", "file")),
        ("A.MD", "# Title\n\nText.\n", ("text", "file")),
        ("a.txt", JSONL, ("jsonl", "field")),
        ("a", "\n\n  " + JSONL, ("jsonl", "field")),
        ("a.csv", CSV, ("csv", "field")),
        ("a.CSV", CSV, ("csv", "field")),
        ("a.txt", CSV, ("text", "block")),  # prose is not mistaken for a table, nor is a table taken for one unasked
        ("a.txt", "name, age\nAnn, 5\nBob, 6\n", ("text", "block")),
        ("a.txt", "[1, 2]\n[3]\n", ("text", "block")),
        ("a.txt", "{}\nis an empty object.\nIt is, as\nsome say, common.\n", ("text", "block")),
        ("a.txt", '{"half": \n1}\n', ("text", "block")),
    ],
)
def test_by_content(tmp_path: Path, name: str, content: str, expected: tuple[str, str]) -> None:
    assert kind(tmp_path, name, content) == expected
    assert kind(tmp_path, name + ".gz", gzip.compress(content.encode())) == expected
    assert look(tmp_path, name, content.encode("utf-16")).encoding == "utf-16-le"
    assert kind(tmp_path, name, content.encode("utf-16")) == expected


@pytest.mark.parametrize("by", ["file", "block", "line"])
@pytest.mark.parametrize("content", [PROSE, JSONL, CSV])
def test_text_is_what_one_says_it_is(tmp_path: Path, by: DocumentBoundary, content: str) -> None:
    assert kind(tmp_path, "a.csv", content, by) == ("text", by)


def test_a_field_makes_a_table_of_any_name(tmp_path: Path) -> None:
    found = look(tmp_path, "a.dat", CSV, field="text")
    assert (found.kind, found.field) == ("csv", "text")
    found = look(tmp_path, "a.dat", "id\tbody\n1\tone\n", field="body")
    assert found.delimited_format is not None
    assert found.delimited_format.delimiter == "\t"


@pytest.mark.parametrize("content", [PROSE, "text\n" + PROSE])
def test_a_field_of_plain_text_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(UnfitError, match=r"a\.txt: .*'body'"):
        look(tmp_path, "a.txt", content, field="body")
    with pytest.raises(UnfitError, match=r"a\.txt: "):
        look(tmp_path, "a.txt", content, by="field")


@pytest.mark.parametrize(
    ("content", "delimiter", "quoted", "header"),
    [
        ("text,n\nb,1\n", ",", True, ("text", "n")),
        ("text;n\nb, c, d;1\n", ";", True, ("text", "n")),
        ("text\tn\nb\t1\n", "\t", False, ("text", "n")),
        ("text\nb\nc, d\n", "|", True, ("text",)),
        ('text,n\n"b\nc",1\n', ",", True, ("text", "n")),
        ("text\nb\nc\n", ",", True, ("text",)),
        (",text\n0,b\n1,c\n", ",", True, ("", "text")),  # as pandas writes an index
    ],
)
def test_how_a_csv_is_written(
    tmp_path: Path, content: str, delimiter: str, quoted: bool, header: tuple[str, ...]
) -> None:
    found = look(tmp_path, "a.csv", content).delimited_format
    assert found is not None
    if len(header) > 1:
        assert (found.delimiter, found.has_quotes) == (delimiter, quoted)
    assert found.header == header


@pytest.mark.parametrize(
    ("rows", "quoted"),
    [
        ('text\tn\n"He said\t1\nno "" end"\t2\n', False),  # a quote is a character
        ('text\tn\n"He said ""no"""\t1\n', True),  # as pandas writes it
        ("text\tn\nb\t1\n", False),
    ],
)
def test_quotes_of_tsv(tmp_path: Path, rows: str, quoted: bool) -> None:
    found = look(tmp_path, "a.tsv", rows).delimited_format
    assert found is not None
    assert found.has_quotes == quoted


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("a.csv", "text,n\nb,1\nc\n", ("a.csv:3: ", "1 ", "2")),
        ("a.csv", PROSE, ("a.csv:2: ", "3 ", "6")),
        ("a.csv", "1,2\n3,4\n", ("header",)),
        ("a.csv", "text,text\na,b\n", ("'text'",)),
        ("a.jsonl", PROSE, ("a.jsonl:1: ", "column 1")),
        ("a.jsonl", JSONL + "{\n", ("a.jsonl:3: ", "column 2")),
        ("a.jsonl", "[1]\n", ("a.jsonl:1: ", "array")),
        ("a.gz", gzip.compress(b"PAR1....", mtime=0), ("Parquet", "gzip")),
        ("a.parquet", b"PAR1....", ("Parquet",)),
    ],
)
def test_what_is_broken_is_told(tmp_path: Path, name: str, content: str | bytes, values: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        look(tmp_path, name, content)
    assert [value for value in (f"{name}:", *values) if value not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "\n \r\n\t", "\ufeff", "\ufeff \n", " " * 600_000])
@pytest.mark.parametrize("pack", [False, True])
def test_what_has_no_text(tmp_path: Path, content: str, pack: bool) -> None:
    data = gzip.compress(content.encode()) if pack else content.encode()
    with pytest.raises(UnfitError, match=r"^a\.txt: ") as caught:
        look(tmp_path, "a.txt", data)
    assert caught.value.reason == "empty_files"


def test_text_after_much_white_space_is_text(tmp_path: Path) -> None:
    assert kind(tmp_path, "a.txt", " " * 600_000 + "x") == ("text", "block")
    assert kind(tmp_path, "a.txt", " " * 600_000 + JSONL) == ("text", "block")


def test_a_first_row_longer_than_what_is_looked_at(tmp_path: Path) -> None:
    long = "long " * 100_000
    assert kind(tmp_path, "a.txt", json.dumps({"text": long}) + "\n" + JSONL) == ("jsonl", "field")
    assert kind(tmp_path, "a.csv", f'id,text\n1,"{long}\n{long}"\n2,two\n') == ("csv", "field")
    assert kind(tmp_path, "a.txt", "{ " + long) == ("text", "block")


@pytest.mark.parametrize(
    ("columns", "field", "chosen"),
    [
        ({"id": False, "text": True, "content": True}, None, "text"),
        ({"body": True, "Content": True}, None, "Content"),
        ({"id": False, "remark": True}, None, "remark"),
        ({"text": False, "remark": True}, None, "remark"),
        ({"text": True, "remark": True}, "remark", "remark"),
        ({"n": False}, "n", "n"),
    ],
)
def test_the_field(columns: dict[str, bool], field: str | None, chosen: str) -> None:
    assert choose_field(columns, field, "a") == chosen


def test_an_unclear_field_lists_what_there_is() -> None:
    with pytest.raises(UnfitError, match=r"^a: .*'x', 'y', 'z'"):
        choose_field({"x": True, "y": True, "z": False}, None, "a")
    with pytest.raises(UnfitError, match=r"^a: .*'x'"):
        choose_field({"x": False}, None, "a")
    with pytest.raises(DataError, match=r"'txt'.*'text'.*'id', 'text'"):
        choose_field({"id": False, "text": True}, "txt", "a")
    with pytest.raises(DataError) as caught:
        choose_field({f"column {number}": False for number in range(10_000)}, "x", "a")
    assert len(str(caught.value)) < 500


def test_an_error_comes_back_from_another_process() -> None:
    again = pickle.loads(pickle.dumps(UnfitError("empty_files", "a: the file is empty")))
    assert (type(again), again.reason, str(again)) == (UnfitError, "empty_files", "a: the file is empty")


@pytest.mark.parametrize("where", [1, 2, 5, 8])
@pytest.mark.parametrize("cell", ["text", "id"])
def test_a_quote_that_is_never_closed_is_refused(tmp_path: Path, where: int, cell: str) -> None:
    rows = ["id,text", *(f"{at},words {at}" for at in range(7))]
    first, second = rows[where - 1].split(",")
    rows[where - 1] = f'{first},"{second}' if cell == "text" else f'"{first},{second}'
    with pytest.raises(DataError, match=rf"^a\.csv:{where}:"):
        look(tmp_path, "a.csv", "\n".join(rows) + "\n")
    if where > 1:
        with pytest.raises(DataError, match=rf"^a\.txt:{where}:"):
            look(tmp_path, "a.txt", "\n".join(rows) + "\n", field="text")
    assert look(tmp_path, "a.tsv", "\n".join(rows).replace(",", "\t")).kind == "csv"  # a character there


def test_a_quote_in_a_text_between_semicolons(tmp_path: Path) -> None:
    found = look(tmp_path, "a.csv", 'id;text\n1;he said,"no\n2;and left\n').delimited_format
    assert found is not None and (found.delimiter, found.header) == (";", ("id", "text"))


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_a_header_longer_than_the_sample(tmp_path: Path, quote: str, ending: str) -> None:
    names = ["text", *(f"{'column' * 10}_{at}" for at in range(6000))]  # more than 2**18 characters
    delimiter = "\t" if ending == "tsv" else ","
    rows = [delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in (names, ["x"] * len(names))]
    content = ("\n".join(rows) + "\n").encode()
    found = look(tmp_path, f"a.{ending}", gzip.compress(content) if ending.endswith("gz") else content)
    assert found.delimited_format is not None and found.delimited_format.header == tuple(names)
