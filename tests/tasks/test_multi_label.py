"""Multi-label classification: labels of tables, thresholds, and rows of predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from pretune.core.errors import DataError
from pretune.evaluation.baselines import BASELINES, run_baselines
from pretune.runs.finetune.task_data import find_missing_labels
from pretune.tasks.example import Example, Prediction
from pretune.tasks.task import Task
from pretune.tasks.types import build_row, get_type, has_answers, score
from pretune.tasks.user_table import build_user_task

TASK = Task(name="topics", kind="multi-label", metrics=("multilabel_f1",), splits={}, labels=("film", "music", "place"))


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("text;labels\n" + "".join(f"{text};{labels}\n" for text, labels in rows))
    return path


def test_labels_are_lists_or_separated(tmp_path: Path) -> None:
    table = write(tmp_path / "own.csv", [("a", "film | music"), ("b", ""), ("c", "music"), ("d", "place")])
    lines = tmp_path / "own.jsonl"
    rows = [{"text": "a", "labels": ["film", "music"]}, {"text": "b", "labels": []}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file, expected in ((table, TASK.labels), (lines, ("film", "music"))):
        task = build_user_task({"train": file})  # the type is inferred
        assert (task.kind, task.labels, task.metrics) == ("multi-label", expected, ("multilabel_f1",))
        assert [example.tags for example in task.read("train")][:2] == [("film", "music"), ()]
    quoted = tmp_path / "quoted.csv"
    quoted.write_text('text,labels\na,"[""film"", 3]"\nb,film\n')
    assert build_user_task({"train": quoted}, type="multi-label").labels == ("3", "film")


@pytest.mark.parametrize(
    ("rows", "line"), [([("a", "film|place"), ("b", '["film"')], 3), ([("a", "film"), ("b", "film")], 0)]
)
def test_tables_without_several_labels_are_refused(rows: list[tuple[str, str]], line: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"own.csv:{line or ''}"):
        build_user_task({"train": write(tmp_path / "own.csv", rows)}, type="multi-label")


def test_a_label_that_only_dev_has_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", [("a", "film|place"), ("b", "film")])
    dev = write(tmp_path / "dev.csv", [("a", "film|plaice")])
    with pytest.raises(DataError, match=r"dev\.csv:2: .*'plaice'.*'place'"):
        build_user_task({"train": train, "dev": dev})


def test_the_threshold_is_that_of_the_best_micro_f1() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        gold = rng.random((6, 3)) < 0.4
        gold[0, 0] = True
        shares = np.round(0.1 + 0.9 * rng.random((6, 3)), 1)  # with ties
        examples = [Example(text="", tags=tuple(np.array(TASK.labels)[row])) for row in gold]
        predictions = [Prediction(probabilities=tuple(row.tolist())) for row in shares]
        best = max(
            score(TASK, examples, get_type(TASK).outputs.apply_threshold(TASK, predictions, cut))["f1_micro"]
            for cut in [-0.1, *np.arange(0, 1.01, 0.05)]
        )
        threshold = get_type(TASK).outputs.find_threshold(TASK, examples, predictions)
        assert threshold is not None
        final = get_type(TASK).outputs.apply_threshold(TASK, predictions, threshold)
        assert score(TASK, examples, final)["f1_micro"] == pytest.approx(best)


def test_rows_and_counts() -> None:
    example = Example(text="a", tags=("film", "place"))
    (prediction,) = get_type(TASK).outputs.apply_threshold(TASK, [Prediction(probabilities=(0.9, 0.2, 0.4))], 0.3)
    assert build_row(TASK, "dev", "7", example, prediction) == {
        "split": "dev", "id": "7", "labels": ["film", "place"],
        "probabilities": {"film": 0.9, "music": 0.2, "place": 0.4}, "gold": ["film", "place"], "input": "a",
    }  # fmt: skip
    assert get_type(TASK).scoring.count_labels(TASK, [example]) == {"film": 1, "music": 0, "place": 1}
    assert find_missing_labels(TASK, [example]) == ["music"]
    assert has_answers(TASK, [Example(text="b"), example]) and not has_answers(TASK, [Example(text="b")])


def test_baselines() -> None:
    rng = np.random.default_rng(0)
    labels = [tuple(name for name in TASK.labels if rng.random() < 0.5) for _ in range(80)]
    examples = [Example(text=" ".join(["the", *tags, rng.choice(["a", "b"])]), tags=tags) for tags in labels]
    rows, skipped = run_baselines(TASK, examples[:60], examples[60:], ("majority", "svm", "vectors"))
    scores = {row.name: score(TASK, examples[60:], row.predictions)["f1_micro"] for row in rows}
    assert scores["one_vs_rest"] > 0.95 > scores["frequent_labels"] and "vectors" in skipped
    for name in get_type(TASK).scoring.baselines.values():  # nothing to learn from
        assert BASELINES.get(name)().predict([Example(text="a")], [Example(text="b")]) == [Prediction()]
