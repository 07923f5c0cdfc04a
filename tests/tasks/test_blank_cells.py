"""Blank cells of users' tables: their rows are skipped and counted, or refused where that is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError
from pretune.evaluation.minimal_pairs import read_bias_pairs, read_pairs
from pretune.evaluation.perplexity import read_blanks
from pretune.runs.finetune.saved_task import BlankInput, SavedTask
from pretune.tasks.example import Example
from pretune.tasks.table import open_table
from pretune.tasks.types import TASK_TYPES
from pretune.tasks.types.base import ANSWER_FIELDS
from pretune.tasks.types.embedding import read_dataset
from pretune.tasks.user_table import build_user_task

WORDS = ["a", "b"]
TAGS = ["B-PER", "O"]
Row = dict[str, Any]
ASK, ANN = {"text": "why?", "choice1": "a", "choice2": "b", "label": 0}, {"context": "Ann sang.", "answer": "Ann"}
CHOSEN = {"chosen": "a", "rejected": "b"}
KINDS: dict[str, tuple[list[Row], list[Row]]] = {  # usable rows, then rows that lack what their example needs
    "classification": (
        [{"text": "one", "label": "x"}, {"text": "two", "label": "y"}],
        [{"text": " ", "label": "x"}, {"text": "three", "label": ""}, {"text": None, "label": "z"}, {"text": "four"}],
    ),
    "pair": (
        [{"premise": "a", "hypothesis": "b", "label": "x"}, {"premise": "c", "hypothesis": "d", "label": "y"}],
        [{"premise": "a", "hypothesis": "\t", "label": "x"}, {"premise": None, "hypothesis": "b", "label": "y"}],
    ),
    "regression": (
        [{"text": "one", "score": 1.5}, {"text": "two", "score": 2.25}],
        [{"text": "three", "score": None}, {"text": "", "score": 7.75}],
    ),
    "multi-label": (
        [{"text": "one", "label": "x|y"}, {"text": "two", "label": ""}, {"text": "three", "label": None}],
        [{"text": " ", "label": "x"}, {"text": None, "label": "z"}],
    ),
    "tagging": (
        [{"words": WORDS, "tags": TAGS}, {"words": WORDS, "tags": TAGS}],
        [{"words": [], "tags": []}, {"words": WORDS, "tags": None}],
    ),
    "choice": (
        [ASK, {**ASK, "label": 1}],
        [{**ASK, "choice2": " "}, {**ASK, "text": ""}, {**ASK, "label": None}],
    ),
    "span": (
        [{"question": "who?", **ANN}, {"question": "w?", "context": "Ed.", "answer": None}],
        [{"question": "", **ANN}, {"question": "who?", **ANN, "context": None}],
    ),
    "text": (
        [{"text": "one", "target": "eins"}, {"text": "two", "target": "zwei"}],
        [{"text": "three", "target": " "}, {"text": None, "target": "vier"}],
    ),
    "preference": (
        [{**CHOSEN, "prompt": "one"}, {**CHOSEN, "prompt": "two"}],
        [{**CHOSEN, "prompt": ""}, {**CHOSEN, "prompt": "three", "rejected": " "}, {"prompt": "x", "chosen": "d"}],
    ),
}  # fmt: skip


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_a_blank_cell_are_skipped_and_counted(kind: str, tmp_path: Path) -> None:
    usable, blank = KINDS[kind]
    options = {} if kind in ("classification", "pair", "regression", "multi-label") else {"type": kind}
    clean = build_user_task({"train": write(tmp_path / "clean.jsonl", usable)}, **options)
    mixed = write(tmp_path / "mixed.jsonl", [usable[0], *blank, *usable[1:]])
    task = build_user_task({"train": mixed, "dev": tmp_path / "clean.jsonl"}, **options)
    assert (task.kind, task.labels, clean.notes) == (clean.kind, clean.labels, ())
    texts = [(example.text, example.pair, example.label) for example in task.read("train")]
    assert texts == [(example.text, example.pair, example.label) for example in clean.read("train")]
    lines = [1, *range(2 + len(blank), 1 + len(blank) + len(usable))]
    assert [example.id for example in task.read("train")] == [str(line) for line in lines]
    (note,) = task.notes
    assert f"{len(blank)} rows" in note and f"{mixed}:2," in note
    with pytest.raises(DataError, match=r"mixed\.jsonl:2: ") as fault:
        build_user_task({"train": mixed}, strict=True, **options)
    assert fault.value.exit_code == 3
    with pytest.raises(DataError, match=f"mixed.jsonl: .*{len(blank)} rows.*mixed.jsonl:1"):
        build_user_task({"train": tmp_path / "clean.jsonl", "dev": write(mixed, blank)}, **options)


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_blank_cells_of_delimited_tables(delimiter: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.csv" if delimiter == "," else "a.tsv")
    rows = [("text", "label"), ("one", "x"), ("", "rare"), ("two", " "), ("three", "y"), ("", "")]
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows))
    task = build_user_task({"train": path})
    assert task.labels == ("x", "y")  # none of a row without text
    assert [(example.id, example.text) for example in task.read("train")] == [("2", "one"), ("5", "three")]
    assert "3 rows" in task.notes[0] and f"{path}:3, 'text'" in task.notes[0]


def test_a_blank_answer_is_one_where_nothing_is_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", KINDS["multi-label"][0])
    assert [example.tags for example in build_user_task({"train": path}).read("train")] == [("x", "y"), (), ()]


def test_files_of_evaluations_and_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [{"sentence_good": "a", "sentence_bad": "b"}, {"sentence_good": " ", "sentence_bad": "b"}]
    assert len(read_pairs(write(tmp_path / "pairs.jsonl", pairs))) == 1
    bias = [{"sent_more": "a", "sent_less": None}, {"sent_more": "a", "sent_less": "b", "bias_type": None}]
    assert [pair.pair for pair in read_bias_pairs(write(tmp_path / "bias.jsonl", bias))] == ["b"]
    cloze = [{"text": "one ____", "answer": ""}, {"text": "two ____", "answer": "x"}]
    assert [example.target for example in read_blanks(write(tmp_path / "cloze.jsonl", cloze))] == ["x"]
    scored = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (1, None, 0)]
    path = write(tmp_path / "scored.jsonl", [*scored, {"sentence1": "a", "score": 1}])
    dataset = read_dataset(train=path)
    assert (dataset.gold, dataset.is_scored) == ([1.0, 0.0], True)
    told = capsys.readouterr().err
    assert all(f"{name}.jsonl:" in told for name in ("pairs", "bias", "cloze", "scored")) and "2 rows" in told
    with pytest.raises(DataError, match=r"scored\.jsonl:2: .*'score'"):
        read_dataset(train=path, strict=True)


@pytest.mark.parametrize(
    ("kind", "raw_input", "column"),
    [
        ("classification", " ", "text"),
        ("classification", {"id": 7, "text": None}, "text"),
        ("pair", ("a", ""), "pair"),
        ("regression", {"text": "\n"}, "text"),
        ("multi-label", "", "text"),
        ("tagging", {"words": []}, "text"),
        ("srl", {"words": [], "predicate": None}, "text"),
        ("dependency", "", "text"),
        ("coreference", {"sentences": []}, "text"),
        ("span", {"question": "who?", "context": None}, "context"),
        ("choice", {"text": "why?", "choices": ["a", ""]}, "choices"),
        ("generation", "\t", "text"),
    ],
)
def test_a_blank_input_keeps_its_place(kind: str, raw_input: Any, column: str) -> None:
    task = SavedTask(name="own", task_kind=kind, max_length=32, stride=8)
    value = task.build_input(raw_input, "input 0")
    assert isinstance(value, BlankInput) and f"'{column}'" in value.reason
    assert value.id == ("7" if isinstance(raw_input, dict) and "id" in raw_input else "")
    assert isinstance(task.build_input(Example(text="x"), ""), Example)


def test_a_table_of_one_column_keeps_its_blank_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text\none\n""\n \ntwo\n')
    table = open_table(path, allow_single_column=True)
    assert [row.values["text"] for row in table.read_rows()] == ["one", "", " ", "two"]


def test_every_type_names_the_field_of_its_answer() -> None:
    fields = {kind: ANSWER_FIELDS[TASK_TYPES.get(kind).scoring.gold] for kind in TASK_TYPES}
    assert fields["regression"] == "score" and fields["tagging"] == "tags" and fields["classification"] == "label"
