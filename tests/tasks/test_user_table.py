"""The user's own files: round trips of what was written, and every fault of target R11 in one line."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.tasks.table import open_table
from pretune.tasks.task import load_task
from pretune.tasks.user_table import build_user_task
from tests.selection import scale_examples

CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1, max_size=20).filter(
    lambda text: text.strip()
)
ROWS = st.lists(st.tuples(CELLS, st.sampled_from(["good", "bad"])), min_size=2, max_size=12)


def texts(path: Path, **columns: str) -> list[tuple[str, str]]:
    table = open_table(path, ["text", "label"])
    return [(row.get("text"), row.get("label")) for row in table.read_rows()]


@settings(max_examples=scale_examples(60))
@given(rows=ROWS, delimiter=st.sampled_from(",;|\t"), ending=st.sampled_from([".csv", ".tsv", ".data"]))
def test_delimited_round_trip(rows: list[tuple[str, str]], delimiter: str, ending: str, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    # Every field in quotes: then newlines, delimiters and quotes inside them come back as they were.
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("text", "label"), *rows])
    path = tmp_path_factory.mktemp("table") / f"rows{ending}"
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
    assert texts(path) == rows


@settings(max_examples=scale_examples(40))
@given(rows=st.lists(st.tuples(CELLS.filter(lambda t: not set(t) & set("\t\n")), st.sampled_from("ab")), min_size=2))
def test_plain_tsv_round_trip(rows: list[tuple[str, str]], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("table") / "rows.tsv"
    path.write_text(
        "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8", newline=""
    )
    if not any(text.startswith('"') and text.endswith('"') for text, _ in rows):
        assert texts(path) == rows


@settings(max_examples=scale_examples(40))
@given(rows=ROWS)
def test_jsonl_round_trip(rows: list[tuple[str, str]], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("table") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    assert texts(path) == rows


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(name: str, text: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


def test_kinds_are_found_and_shown(write) -> None:  # type: ignore[no-untyped-def]
    path = write("a.csv", 'review,stars\n"good, really\nvery",5\nbad,1\nso so,3\n')
    table = open_table(path)
    assert (table.has_header, table.delimiter, table.has_quotes, table.columns) == (
        True,
        ",",
        True,
        ("review", "stars"),
    )
    assert str(path) in str(table) and "review, stars" in str(table)
    task = build_user_task({"train": path})
    assert (task.kind, task.labels, task.metrics[0]) == ("classification", ("1", "3", "5"), "accuracy")
    examples = list(task.read("train"))
    assert examples[0].text == "good, really\nvery" and [example.label for example in examples] == [2, 0, 1]
    assert [example.id for example in examples] == ["2", "4", "5"]  # the lines they begin on
    score = build_user_task({"train": write("b.csv", "text,score\na,1.5\nb,2\n")})
    assert (score.kind, [example.label for example in score.read("train")]) == ("regression", [1.5, 2.0])
    classes = build_user_task({"train": write("d.csv", "text,label\na,1.0\nb,0.0\n")})
    assert (classes.kind, classes.labels) == ("classification", ("0.0", "1.0"))
    rows = '{"a": "x", "b": "y", "label": true}\n{"a": "z", "b": "w", "label": false}'
    two = build_user_task({"train": write("c.jsonl", rows)}, text="a", pair="b")
    assert (two.kind, two.labels) == ("pair", ("False", "True"))


def test_a_table_without_a_header(write) -> None:  # type: ignore[no-untyped-def]
    path = write("a.tsv", "1\tgood\n0\tbad\n")
    assert not open_table(path).has_header
    examples = list(build_user_task({"train": path}, text="2", label="1").read("train"))
    assert [(example.text, example.label) for example in examples] == [("good", 1), ("bad", 0)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_encodings_and_marks(write, encoding: str) -> None:  # type: ignore[no-untyped-def]
    path = write("a.csv", "text,label\r\ngrün,a\r\nblau,b\r\n", encoding)
    assert [example.text for example in build_user_task({"train": path}).read("train")] == ["grün", "blau"]


def test_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\nx,a\ny,b\n"))
    assert len(list(build_user_task({"train": path}).read("train"))) == 2


def test_a_huge_field(write) -> None:  # type: ignore[no-untyped-def]
    huge = "word " * 100_000  # 500 kB, more than Python's csv allows by itself
    path = write("a.csv", f'text,label\n"{huge}",a\nshort,b\n')
    assert [len(example.text) for example in build_user_task({"train": path}).read("train")] == [500_000, 5]


def test_conll(write) -> None:  # type: ignore[no-untyped-def]
    path = write("a.conll", "EU NNP I-ORG\nrejects VBZ O\n\nPeter NNP I-PER\n")
    task = build_user_task({"train": path})
    assert (task.kind, task.labels, task.metrics[0]) == ("tagging", ("O", "B-ORG", "B-PER"), "entity_f1")
    assert [example.tags for example in task.read("train")] == [("B-ORG", "O"), ("B-PER",)]
    assert build_user_task({"train": path}, label="2").labels == ("NNP", "VBZ")
    with pytest.raises(DataError, match=r"b\.conll:1: .*O, B-ORG, B-PER.*'B-LOC'"):
        build_user_task({"train": path, "dev": write("b.conll", "Rome NNP I-LOC\n")})


@pytest.mark.parametrize(
    ("text", "columns", "values"),
    [
        ("text,label\na,x\nb\nc,y\n", {}, r"a\.csv:3: .*\b2\b.*\b1\b"),
        (
            "text,label\na,x\nb,y\n",
            {"text": "txt"},
            r"a\.csv: .*'txt'.*'text'.*text, label",
        ),
        ("text,label\na,x\nb,y\n", {"pair": "pear"}, r"a\.csv: .*'pear'"),
        ("text,label\na,x\nb,\n", {"strict": True}, r"a\.csv:3: .*'label'"),
        ("text,label\na,x\nb,x\n", {}, r"a\.csv: .*'x'"),
        ("text,text,label\na,b,x\n", {}, r"a\.csv:1: .*'text'"),
        ("text,label\n,x\nb,y\n", {"strict": True}, r"a\.csv:2: .*'text'"),
        ("text,label\n,x\nb,\n", {}, r"a\.csv: .*2 rows.*a\.csv:2, 'text'"),
        ("text,label\n", {}, r"a\.csv: "),
        ("", {}, r"a\.csv: "),
        ("only one column\nand no label\n", {}, r"a\.csv: "),
        ("a,b\nx,y\nz,w\n", {}, r"a\.csv: .*--text .*a, b"),
        ("text,label\na,1.5\nb,nan\nc,2.5\nd,x\n", {}, r"a\.csv:3: .*'nan'"),
        ('text,label\n"a,x\nb,y\n', {}, r"a\.csv:2: "),
    ],
)
def test_faults(write, text: str, columns: dict[str, Any], values: str) -> None:  # type: ignore[no-untyped-def]
    path = write("a.csv", text)
    with pytest.raises(DataError, match=values) as fault:
        build_user_task({"train": path}, **columns)
    assert "\n" not in str(fault.value)


def test_usual_columns_are_known_whatever_their_letters(write) -> None:  # type: ignore[no-untyped-def]
    task = build_user_task({"train": write("a.csv", "No, Text,LABEL \n1,x,good\n2,y,bad\n")})
    assert task.labels == ("bad", "good") and [example.text for example in task.read("train")] == ["x", "y"]


def test_a_table_without_a_header_is_named_by_numbers(write) -> None:  # type: ignore[no-untyped-def]
    path = write("a.csv", "so fine,good\nso odd,bad\n")
    with pytest.raises(DataError, match=r"so fine, good.*--text 1\b"):
        build_user_task({"train": path})
    assert [example.text for example in build_user_task({"train": path}, text="1", label="2").read("train")] == [
        "so fine",
        "so odd",
    ]


def test_a_column_alone(write) -> None:  # type: ignore[no-untyped-def]
    """Texts to be judged have no label beside them: no comma, nor a newline within quotes, makes a second column."""
    table = open_table(write("a.csv", 'text\nso, so\n"odd, and\n""new"""\n'), allow_single_column=True)
    assert table.columns == ("text",) and str(table.path) in str(table)
    assert [row.values["text"] for row in table.read_rows()] == ["so, so", 'odd, and\n"new"']
    assert open_table(write("b.csv", "text;id\nso, so;1\n"), allow_single_column=True).columns == ("text", "id")


def test_a_file_to_judge_a_model_by_has_the_labels_of_the_model(write) -> None:  # type: ignore[no-untyped-def]
    """One file, not to train on: it may lack a class, or be all of one."""
    classes = write("a.csv", "text,label\nx,b\ny,b\n")
    task = build_user_task({"test": classes}, labels=("a", "b", "c"))
    assert [*task.splits] == ["test"] and task.labels == ("a", "b", "c")
    assert [example.label for example in task.read("test")] == [1, 1]
    with pytest.raises(DataError, match=r"a\.csv:2: .*'b'.*a, c"):
        build_user_task({"test": classes}, labels=("a", "c"))
    scores = build_user_task({"test": write("b.csv", "text,label\nx,1\ny,3\n")}, labels=())
    assert scores.kind == "regression" and [example.label for example in scores.read("test")] == [1.0, 3.0]
    tags = build_user_task({"test": write("c.conll", "Paris B-LOC\n")}, labels=("O", "B-LOC", "B-PER"))
    assert tags.kind == "tagging" and tags.labels == ("O", "B-LOC", "B-PER")
    assert [example.tags for example in tags.read("test")] == [("B-LOC",)]


def test_a_label_that_only_dev_has(write) -> None:  # type: ignore[no-untyped-def]
    train, dev = write("a.csv", "text,label\na,x\nb,y\n"), write("d.csv", "text,label\na,x\nb,z\n")
    with pytest.raises(DataError, match=r"d\.csv:3: .*'z'.*x, y"):
        build_user_task({"train": train, "dev": dev})
    with pytest.raises(UsageError, match=r"train.*dev"):
        build_user_task({"dev": dev})


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\ngr\xfcn,a\n")
    with pytest.raises(DataError, match=r"a\.csv: .*\b13\b.*\bfc\b.*UTF-8"):
        build_user_task({"train": path})
    path.write_bytes(b"\0\1\2\3" * 10)
    with pytest.raises(DataError, match=r"a\.csv: "):
        build_user_task({"train": path})


PIECES = [b",", b"\t", b'"', b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"{", b"[]", b"nan", b"1e999", b"\\ud800"]
WHOLE = [
    b'text,label\na,x\n"b\nc",y\n',
    b"text\tlabel\na\t1\nb\t0\n",
    b'{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n',
    b"EU NNP I-ORG\nx VB O\n\nPeter NNP I-PER\n",
]


@settings(max_examples=scale_examples(150))
@given(
    whole=st.sampled_from(WHOLE),
    edits=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4), st.sampled_from(PIECES)), max_size=4),
    ending=st.sampled_from([".csv", ".tsv", ".jsonl", ".conll", ".conllu", ".txt"]),
)
def test_damage_gives_one_line_or_examples(whole: bytes, edits, ending: str, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    for position, length, piece in edits:
        whole = whole[:position] + piece + whole[position + length :]
    path = tmp_path_factory.mktemp("damaged") / f"rows{ending}"
    path.write_bytes(whole)
    try:
        task = build_user_task({"train": path})
    except DataError as fault:
        assert "\n" not in str(fault)
    else:
        examples = list(task.read("train"))
        assert examples and all(example.text.strip() for example in examples)


def test_half_a_character(write) -> None:  # type: ignore[no-untyped-def]
    path = write("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b\\ud800", "label": 0}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*'text'.*\b1\b"):
        build_user_task({"train": path})


def test_one_file_is_divided_and_that_is_said(write) -> None:  # type: ignore[no-untyped-def]
    path = write("a.csv", "text,label\n" + "".join(f"row {index},{'ab'[index % 2]}\n" for index in range(40)))
    parts = load_task(build_user_task({"train": path}), train_examples=10)
    assert (len(parts.train), len(parts.dev), parts.test) == (10, 4, [])
    split_note, subset_note = parts.notes
    assert all(value in split_note for value in ("'train'", "40", "90/10", "seed 0"))
    assert all(value in subset_note for value in ("10", "36", "seed 0"))
    with pytest.raises(DataError, match=r"'own'.*\b36\b.*\b50\b"):
        load_task(build_user_task({"train": path}), train_examples=50)


def rows(labels: list[object]) -> str:
    return "text,label\n" + "".join(f"text {index},{label}\n" for index, label in enumerate(labels))


def test_the_type_is_found_by_the_labels(write) -> None:  # type: ignore[no-untyped-def]
    def kind(labels: list[object], **options: str) -> str:
        return build_user_task({"train": write("a.csv", rows(labels))}, **options).kind

    assert kind([index % 20 for index in range(60)]) == "classification"
    assert kind([index % 21 for index in range(60)]) == "regression"
    assert kind([index % 21 for index in range(60)], type="classification") == "classification"
    assert kind([index % 5 for index in range(60)], type="regression") == "regression"
    assert kind(["x", "y", "z", "3"]) == "classification"  # most are no numbers


@pytest.mark.parametrize("bad", ["nan", "inf", "-Infinity", "x", "4+"])
@pytest.mark.parametrize("numbers", [[0.5 * at for at in range(40)], [at % 5 for at in range(40)]])
def test_one_bad_score_is_an_error_with_its_row(write, bad: str, numbers: list[float]) -> None:  # type: ignore[no-untyped-def]
    path = write("a.csv", rows([*numbers[:30], bad, *numbers[30:]]))
    for options in ({}, {"type": "regression"}):
        with pytest.raises(DataError) as fault:
            build_user_task({"train": path}, **options)
        assert f"{path}:32:" in str(fault.value) and bad in str(fault.value)
    if len({*numbers}) < 10:
        assert bad in build_user_task({"train": path}, type="classification").labels


def test_types_that_a_file_does_not_fit(write) -> None:  # type: ignore[no-untyped-def]
    conll = write("a.conll", "EU I-ORG\nrejects O\n\nPeter I-PER\n")
    assert build_user_task({"train": conll}, type="tagging").kind == "tagging"
    for path, task_type in ((conll, "classification"), (write("a.csv", rows([1, 2])), "embedding"), (conll, "sorting")):
        with pytest.raises(UsageError, match=task_type):
            build_user_task({"train": path}, type=task_type)
    with pytest.raises(UsageError, match="second"):
        build_user_task({"train": write("b.csv", "text,second,target\na,b,c\nd,e,f\n")}, type="text", pair="second")


GLUE = [
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence"), ("question1", "question2"),
    ("text_a", "text_b"), ("Sentence_A", "Sentence_B"), ("question", "passage"),
]  # fmt: skip


@pytest.mark.parametrize("columns", GLUE)
@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_known_columns_are_a_pair(write, columns: tuple[str, str], form: str) -> None:  # type: ignore[no-untyped-def]
    cells = [("one", "two", "a"), ("three", "four", "b")]
    names = (*columns, "label")
    if form == "jsonl":
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in cells)
    else:
        text = "".join(("," if form == "csv" else "\t").join(row) + "\n" for row in [names, *cells])
    path = write(f"a.{form}", text)
    task = build_user_task({"train": path})
    assert task.kind == "pair"
    assert [(example.text, example.pair) for example in task.read("train")] == [("one", "two"), ("three", "four")]
    assert (
        build_user_task({"train": path}, text=columns[0]).kind == "classification"
    )  # one column is named: one is read


def test_a_column_called_text_is_the_text(write) -> None:  # type: ignore[no-untyped-def]
    train_path = write("c.csv", "sentence1,sentence2,label\na,b,x\nc,d,y\n")
    assert build_user_task({"train": train_path}, has_pair=False).kind == "classification"
    path = write("a.csv", "text,premise,hypothesis,label\na,b,c,x\nd,e,f,y\n")
    assert [(example.text, example.pair) for example in build_user_task({"train": path}).read("train")] == [
        ("a", None),
        ("d", None),
    ]
    with pytest.raises(DataError, match=r"b\.csv"):
        build_user_task({"test": write("b.csv", "one,label\na,x\n")}, labels=("x", "y"), has_pair=True)


@pytest.mark.parametrize("where", [1, 3, 40])
@pytest.mark.parametrize("ending", ["csv", "txt"])
def test_a_quote_that_is_never_closed_is_refused(write, where: int, ending: str) -> None:  # type: ignore[no-untyped-def]
    lines = rows(["a", "b"] * 50).splitlines()
    lines[where - 1] = f'"{lines[where - 1]}'
    with pytest.raises(DataError, match=rf"a\.{ending}:{where}:"):
        build_user_task({"train": write(f"a.{ending}", "\n".join(lines) + "\n")})


def test_long_lists_of_labels_end_with_how_many_more(write) -> None:  # type: ignore[no-untyped-def]
    train = write("a.csv", rows([f"class {index % 200}" for index in range(400)]))
    with pytest.raises(DataError, match=r"\b180\b"):
        build_user_task({"train": train, "dev": write("b.csv", rows(["another"]))})
