"""Users' tables of tags, spans, choices and texts: what is read, and the row of every fault."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.tasks.example import Prediction
from pretune.tasks.table_reader import get_columns
from pretune.tasks.task import Task
from pretune.tasks.types import score
from pretune.tasks.types.embedding import read_dataset
from pretune.tasks.user_table import build_user_task


def table(folder: Path, rows: list[dict[str, Any]], name: str = "own.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(folder: Path, rows: list[dict[str, Any]], type: str) -> Task:
    return build_user_task({"train": table(folder, rows)}, type=type)


def test_tags(tmp_path: Path) -> None:
    rows = [{"tokens": ["EU", "rejects"], "ner_tags": ["I-ORG", "O"]}, {"tokens": ["Anna"], "ner_tags": ["B-PER"]}]
    task = read(tmp_path, rows, "tagging")
    assert (task.kind, task.labels, task.metrics[0]) == ("tagging", ("O", "B-ORG", "B-PER"), "entity_f1")
    assert [example.tags for example in task.read("train")] == [("B-ORG", "O"), ("B-PER",)]


@pytest.mark.parametrize("name", ["a.conll", "a.jsonl"])
def test_bilou_tags_are_read_as_iobes(tmp_path: Path, name: str) -> None:
    sentences = [[("Anna", "U-PER"), ("left", "O")], [("New", "B-LOC"), ("York", "I-LOC"), ("City", "L-LOC")]]
    path = tmp_path / name
    if name == "a.conll":
        path.write_text("\n\n".join("\n".join(map(" ".join, sentence)) for sentence in sentences) + "\n")
    else:
        path = table(tmp_path, [{"words": [w for w, _ in row], "tags": [t for _, t in row]} for row in sentences])
    task = build_user_task({"train": path}, type="tagging")
    assert task.labels == ("O", "B-LOC", "E-LOC", "I-LOC", "S-PER") and task.metrics[0] == "entity_f1"
    examples = [*task.read("train")]
    assert [example.tags for example in examples] == [("S-PER", "O"), ("B-LOC", "I-LOC", "E-LOC")]
    assert score(task, examples, [Prediction(tags=example.tags) for example in examples])["f1"] == 1.0


def test_entity_tags_are_checked_before_training(tmp_path: Path) -> None:
    single = [{"words": ["Anna", "left"], "tags": ["S-PER", "O"]}]
    assert read(tmp_path, single, "tagging").metrics[0] == "entity_f1"
    for tag in ("X-PER", "LOC"):
        with pytest.raises(DataError, match=tag):
            read(tmp_path, [*single, {"words": ["Rome"], "tags": [tag]}], "tagging")
        with pytest.raises(DataError, match=tag):
            read(tmp_path, [{**single[0], "predicate": 1}, {"words": ["Rome"], "tags": [tag], "predicate": 0}], "srl")


@pytest.mark.parametrize("row", [{"score": math.nan}, {"score": "inf"}, {"label": ""}, {"label": None}])
def test_pairs_for_embeddings_need_a_label_or_a_score(tmp_path: Path, row: dict[str, Any]) -> None:
    (name,) = row
    pair = {"sentence1": "a", "sentence2": "b"}
    values = ["yes", "no"] if name == "label" else [0.5, 1]
    path = table(tmp_path, [pair | {name: value} for value in values])
    assert len(read_dataset(train=path).gold) == 2
    with pytest.raises(DataError, match=r":3: "):
        read_dataset(train=table(tmp_path, [*(pair | {name: value} for value in values), pair | row]), strict=True)


def test_spans(tmp_path: Path) -> None:
    context = "the red house by the red river"
    rows: list[dict[str, Any]] = [
        {"question": "which?", "context": context, "answer": "red river"},
        {"question": "which red?", "context": context, "answer": "red", "answer_start": 21},
        {"question": "which two?", "context": context, "answers": None, "answer": {"text": ["house"]}},
    ]
    task = read(tmp_path, rows, "span")
    assert (task.kind, task.metrics, get_columns(task)) == ("span", ("squad",), ("question", "context"))
    assert [example.spans for example in task.read("train")] == [((21, 30),), ((21, 24),), ((8, 13),)]
    task = read(tmp_path, [*rows, {"question": "who?", "context": context, "answer": ""}], "span")
    assert task.metrics == ("squad2",) and [*task.read("train")][-1].answers == ()


def test_squad_json(tmp_path: Path) -> None:
    path, (question, context) = tmp_path / "own.json", ("what?", "the red house")
    qa = {"id": "1", "question": question, "answers": [{"text": "red", "answer_start": 4}]}
    document = {"data": [{"title": "a", "paragraphs": [{"context": context, "qas": [qa]}]}]}
    path.write_text(json.dumps(document, indent=1))
    task = build_user_task({"train": path}, type="span")
    assert [(example.text, example.pair, example.spans) for example in task.read("train")] == [
        (question, context, ((4, 7),))
    ]
    with pytest.raises(UsageError, match="--text"):
        build_user_task({"train": path}, type="span", text="question")


def test_choices(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "a?", "choices": ["x", "y"], "label": 1},
        {"question": "b?", "choices": ["x", "y", "z"], "label": "C"},
        {"question": "c?", "choices": ["x", "yes it is"], "label": "yes it is"},
        {"question": "d?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "label": "1"},
    ]
    task = read(tmp_path, rows, "choice")
    assert task.kind == "choice" and [example.label for example in task.read("train")] == [1, 2, 1, 0]
    path = tmp_path / "own.csv"
    path.write_text("question,A,B,C,answer\na?,x,y,,B\nb?,x,y,z,C\n")
    choices = [
        (example.choices, example.label) for example in build_user_task({"train": path}, type="choice").read("train")
    ]
    assert choices == [(("x", "y"), 1), (("x", "y", "z"), 2)]
    path.write_text("ctx,ending0,ending1,label\na,x,y,0\nb,z,w,1\n")
    choices = [
        (example.choices, example.label) for example in build_user_task({"train": path}, type="choice").read("train")
    ]
    assert choices == [(("x", "y"), 0), (("z", "w"), 1)]


@pytest.mark.parametrize(
    ("choices", "label", "expected"),
    [
        (["4", "5", "6"], "5", 1),  # out of the range of numbers
        (["I", "me"], "I", 0),
        (["2", "1", "0"], "1", 1),  # the same by both
        (["1", "2", "3"], "2", None),
        (["B", "A"], "A", None),
    ],
)
def test_a_label_that_is_a_choice_and_a_number(
    tmp_path: Path, choices: list[str], label: str, expected: int | None
) -> None:
    rows = [{"question": "a?", "choices": choices, "label": label}]
    if expected is None:
        with pytest.raises(DataError, match="number or letter of another one"):
            [*read(tmp_path, rows, "choice").read("train")]
    else:
        assert [example.label for example in read(tmp_path, rows, "choice").read("train")] == [expected]


def test_texts(tmp_path: Path) -> None:
    rows = [{"document": "a long text", "summary": "short"}, {"document": "another", "summary": "one"}]
    task = read(tmp_path, rows, "text")
    assert (task.kind, task.metrics[0], get_columns(task)) == ("generation", "rouge", ("document", None))
    assert [example.target for example in task.read("train")] == ["short", "one"]


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        ("tagging", {"words": ["a", "b"], "tags": ["x", "y"]}, {"tags": ["x"]}),
        ("tagging", {"words": ["a", "b"], "tags": ["x", "y"]}, {"words": "a b"}),
        ("srl", {"words": ["a", "b"], "tags": ["B-A0", "O"], "predicate": 1}, {"predicate": 2}),
        ("srl", {"words": ["a", "b"], "tags": ["B-A0", "O"], "predicate": 1}, {"predicate": "b"}),
        ("dependency", {"words": ["a", "b"], "relations": ["x", "y"], "heads": [2, 0]}, {"heads": [2, 1]}),
        ("dependency", {"words": ["a", "b"], "relations": ["x", "y"], "heads": [2, 0]}, {"heads": [3, 0]}),
        ("span", {"question": "?", "context": "a house", "answer": "house"}, {"answer": "river"}),
        ("span", {"question": "?", "context": "a house", "answer": "house"}, {"answer_start": 1}),
        ("span", {"question": "?", "context": "a house", "answer": "house"}, {"answer": 3}),
        ("choice", {"text": "?", "choices": ["a", "b"], "label": 0}, {"label": 2}),
        ("choice", {"text": "?", "choices": ["a", "b"], "label": 0}, {"label": None}),
        ("choice", {"text": "?", "choices": ["a", "b"], "label": 0}, {"label": "neither"}),
        ("choice", {"text": "?", "choices": ["a", "b"], "label": 0}, {"choices": ["a"]}),
        ("choice", {"text": "?", "choices": ["a", "b"], "label": 0}, {"choices": "a, b"}),
        ("text", {"text": "a", "target": "b"}, {"target": ""}),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, type: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    assert read(tmp_path, [good, good], type).name == "own"
    with pytest.raises(DataError, match=r"own\.jsonl:3:"):
        path = table(tmp_path, [good, good, {**good, **bad}, good])
        build_user_task({"train": path}, type=type, strict=True)
