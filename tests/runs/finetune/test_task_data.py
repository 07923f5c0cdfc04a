"""What a result is measured on, what of a task is counted, and what cannot be learnt from."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.metrics import GLUE, SUPERGLUE
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.task_data import (
    TaskData,
    combine_task_data,
    compute_scores,
    open_task,
)
from pretune.tasks import TASKS
from pretune.tasks.example import Example, Prediction
from pretune.tasks.task import Task, TaskSplits
from pretune.tasks.types import get_type, has_answers

KNOWN = {
    "classification": Example(text="x", label=1),
    "regression": Example(text="x", label=0.0),
    "tagging": Example(text="", words=("x",), tags=("O",)),
    "span": Example(text="q", pair="x", answers=("x",), spans=((0, 1),)),
    "choice": Example(text="x", choices=("a", "b"), label=0),
    "generation": Example(text="x", target=""),
}
UNKNOWN = {
    "classification": Example(text="x"),
    "regression": Example(text="x"),
    "tagging": Example(text="", words=("x",)),
    "span": Example(text="q", pair="x"),
    "choice": Example(text="x", choices=("a", "b")),
    "generation": Example(text="x"),
}


def task(kind: str) -> Task:
    labels = {"classification": ("a", "b"), "tagging": ("O",)}.get(kind, ())
    return Task(name="own", kind=kind, metrics=("accuracy",), splits={}, labels=labels)


@pytest.mark.parametrize("kind", KNOWN)
def test_test_is_the_headline_where_it_has_answers(kind: str) -> None:
    known, unknown = KNOWN[kind], UNKNOWN[kind]
    for test, headline in (([known], "test"), ([unknown], "dev"), ([], "dev")):
        opened = TaskData(task=task(kind), parts=TaskSplits(train=[known], dev=[known, known], test=test))
        assert opened.headline_split == headline and opened.eval_examples == getattr(opened.parts, headline)
        assert not has_answers(task(kind), [unknown]) and not has_answers(task(kind), [])


def test_where_dev_is_the_headline_that_is_said(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text("text,label\none,a\ntwo,b\nthree,a\n")
    opened = open_task(TaskConfig(train=str(tmp_path / "train.csv"), dev=str(tmp_path / "dev.csv")))
    assert opened.headline_split == "dev" and "dev" in opened.parts.notes[-1]
    folder = tmp_path / "qnli"
    folder.mkdir()
    rows = "".join(f"{at}\tq\ts\t{label}\n" for at, label in enumerate(["entailment", "not_entailment"] * 5))
    (folder / "dev.tsv").write_text("index\tquestion\tsentence\tlabel\n" + rows)
    opened = open_task(TaskConfig(name="qnli", data=str(tmp_path), max_eval_examples=1))
    assert opened.headline_split == "test" and len(opened.parts.dev) == len(opened.parts.test) == 1
    assert "'test'" in opened.parts.notes[-1]


def test_labels_are_counted_as_the_kind_has_them() -> None:
    some = [KNOWN["classification"]] * 3
    assert get_type(task("classification")).scoring.count_labels(task("classification"), some) == {
        "a": 0,
        "b": 3,
    }  # one that never occurs is told too
    scores = [Example(text="x", label=value) for value in (1.0, 2.0, 6.0)]
    assert get_type(task("regression")).scoring.count_labels(task("regression"), scores) == {
        "lowest": 1.0,
        "mean": 3.0,
        "highest": 6.0,
    }
    tags = [Example(text="", words=("a", "b", "c"), tags=("O", "B-X", "O"))]
    assert get_type(task("tagging")).scoring.count_labels(task("tagging"), tags) == {"O": 2, "B-X": 1}
    spans = [KNOWN["span"], UNKNOWN["span"], UNKNOWN["span"]]
    assert get_type(task("span")).scoring.count_labels(task("span"), spans) == {"with an answer": 1, "without": 2}


def test_a_train_split_without_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretune.runs.finetune.task_data.load_task", lambda *given: TaskSplits(
        train=[UNKNOWN["classification"]], dev=[KNOWN["classification"]], test=[]))  # fmt: skip
    with pytest.raises(DataError, match="'sst2'"):
        open_task(TaskConfig(name="sst2", data=str(tmp_path)))


def test_what_was_trained_on_is_said_of_dev_and_test(tmp_path: Path) -> None:
    rows = {"train": ["a fine film", "a dull film"], "dev": ["A  fine film", "new words"], "test": ["more", "other"]}
    for split, texts in rows.items():
        lines = [f"{text},{label}" for text, label in zip(texts, ("good", "bad"), strict=True)]
        (tmp_path / f"{split}.csv").write_text("\n".join(("text,label", *lines, "")))
    files = {split: str(tmp_path / f"{split}.csv") for split in rows}
    notes = open_task(TaskConfig(**files, text="text", label="label")).parts.notes
    assert sum("'dev': 1 of 2" in note for note in notes) == 1
    assert not any("'test': " in note for note in notes)


@pytest.mark.parametrize("name", ["glue", "superglue"])
def test_all_of_a_benchmark_has_its_published_average(name: str) -> None:
    """Two scores of a task count as one, by their mean, which is not always the headline."""
    names = GLUE if name == "glue" else ["superglue_rte" if task == "rte" else task for task in SUPERGLUE]
    members, said = [], []
    for task in map(TASKS.get, names):
        if task.kind == "regression":
            some, told = (
                [Example(text="a", label=float(at)) for at in range(3)],
                [Prediction(value=v) for v in (0, 1, 2)],
            )
        elif task.kind == "choice":
            some = [Example(text="x _", choices=("a", "b c"), label=0, answers=("a",))] * 2
            told = [Prediction(label=0, scores=(1.0, 0.0)), Prediction(label=1, scores=(0.0, 1.0))]
        else:
            some = [Example(text="x", label=at % 2, group=str(at)) for at in range(4)]
            told = [Prediction(label=label) for label in (0, 1, 0, 0)]
        members.append(
            TaskData(task=task, parts=TaskSplits(train=[], dev=[Example(**_fields(one)) for one in some], test=[]))
        )
        said += told
    whole = combine_task_data(members)
    found = compute_scores(whole, whole.parts.dev, said)
    every = {task: found[task] for task in names}
    assert found["average"] == pytest.approx(sum(every.values()) / len(every))
    assert found[name] == pytest.approx(found["average"])  # as the headline of each task is its one number
    part = combine_task_data(members[:-1])
    assert name not in compute_scores(part, part.parts.dev, said[: len(part.parts.dev)])


def _fields(example: Example) -> dict[str, Any]:
    """A new example each: those of several tasks are told apart by which they are."""
    return {field.name: getattr(example, field.name) for field in fields(example)}


def test_a_metric_whose_extra_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "multi30k"
    place.mkdir()
    for name in ("train", "val"):
        (place / f"{name}.en").write_text("a man\n" * 4)
        (place / f"{name}.de").write_text("ein Mann\n" * 4)
    pytest.importorskip("sacrebleu")
    assert open_task(TaskConfig(name="multi30k", data=str(tmp_path))).task.kind == "generation"
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UsageError, match="'bleu'"):
        open_task(TaskConfig(name="multi30k", data=str(tmp_path)))
