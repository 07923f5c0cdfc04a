"""Tasks from users' own files: their type, columns and labels.

    task = build_user_task({"train": "train.csv", "dev": "dev.csv"}, text="review", label="stars")
    task.kind, task.labels          # 'classification', ('1', '2', '3', '4', '5')

`type` sets the type. Without it CoNLL files are tagging, and otherwise the labels of the training file decide
(`infer_type`). Rows with a blank cell that their example needs are skipped, with a note (`task.notes`). The labels are
those of the training data: a label that only dev or test has is an error, and so is a single class.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.core.errors import DataError, UsageError, suggest
from pretune.core.log import join_names
from pretune.tasks.table import is_number, open_table
from pretune.tasks.table_reader import (
    LABEL_SEPARATOR,
    MAX_NUMERIC_CLASSES,
    UserTables,
    check_numbers,
    count_values,
    find_chat_form,
    find_preference_form,
    is_finite,
    pick_text_columns,
)
from pretune.tasks.task import Task
from pretune.tasks.types import TASK_TYPES, TYPE_ALIASES, get_type, list_type_options

WORD_ANSWERS = ("tags", "tree", "clusters")
"""Answers about the words of a sentence or document, which CoNLL files have."""


def build_user_task(
    files: Mapping[str, str | os.PathLike[str]],
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    name: str = "own",
    labels: tuple[str, ...] | None = None,
    type: str | None = None,
    has_pair: bool | None = None,
    strict: bool = False,
    reward: str | None = None,
) -> Task:
    """Build a task from files by split, with at least one for train; every row is checked.

    With `labels`, those of a model to be evaluated (empty for scores), no training file is needed. `type` is one of
    `list_type_options`, except embedding; classification of two texts is a task of type pair. `has_pair`
    sets whether two texts are read; None: two if no text column is named and the columns are one of `PAIR_COLUMNS`.
    Rows with a blank cell are skipped, or with `strict` a DataError. With `reward`, a metric, answers are sampled.
    """
    kind = TYPE_ALIASES.get(type or "", "reward" if type is None and reward is not None else type)
    options = [option for option in list_type_options() if option != "embedding"]
    if kind is not None and kind not in options:
        raise UsageError(f"unknown type '{kind[:40]}'{suggest(kind, options)} (allowed: {', '.join(options)})")
    if "train" not in files and labels is None:
        raise UsageError(f"a training file is needed (train), got {', '.join(files) or 'none'}")
    open_file = open_table if kind is None else TASK_TYPES.get(kind).inputs.open_file
    column_names = [column for column in (text, label, pair) if column]
    tables = {split: replace(open_file(Path(path), column_names), strict=strict) for split, path in files.items()}
    user_tables = UserTables(
        files=tables, name=name, text=text, label=label, pair=pair, labels=labels, has_pair=has_pair, reward=reward
    )
    forms = {table.form == "conll" for table in tables.values()}
    if len(forms) > 1:
        raise DataError(
            f"{user_tables.train.path}: CoNLL files and tables cannot be mixed; use one format for all splits"
        )
    if reward is not None and kind is not None and not TASK_TYPES.get(kind).scoring.is_reward:
        raise UsageError(f"--reward {reward}: a task of type {kind} has no rewards; remove one of them")
    task_type = TASK_TYPES.get(kind or ("tagging" if forms == {True} else infer_type(user_tables)))
    if forms == {True} and task_type.scoring.gold not in WORD_ANSWERS:
        readers = join_names([name for name in TASK_TYPES if TASK_TYPES.get(name).scoring.gold in WORD_ANSWERS])
        raise UsageError(f"{user_tables.train.path}: a CoNLL file is for {readers}, got type '{type}'; use a table")
    if pair is not None and task_type.inputs.second_text == "none":
        raise UsageError(f"--pair '{pair}': a task of type {type} has one text; remove --pair")
    return task_type.inputs.build_user_task(user_tables)


def infer_type(tables: UserTables) -> str:
    """Return the type of a task of labelled texts, inferred from the labels of the training file.

    Lists, and labels with "|", are several labels. If most labels are not numbers, they are classes; if most are
    numbers, all must be: up to `MAX_NUMERIC_CLASSES` different integers are classes, other numbers are scores.
    """
    if find_preference_form(tables.train.columns) and tables.label is None:
        return "preference"
    if tables.text is None and tables.label is None and find_chat_form(tables.train.columns):
        return "instruction"
    if tables.labels is not None:
        return "classification" if tables.labels else "regression"
    text, column, pair = pick_text_columns(tables)
    if any(_has_several(row.values.get(column)) for row in tables.train.read_rows()):
        return "multi-label"
    counts, locations = count_values(tables.train, column, (text, pair))
    if 2 * sum(count for value, count in counts.items() if is_number(value)) < sum(counts.values()):
        return "classification"
    check_numbers(locations, "most labels are numbers; fix the row, or set the type with --type classification")
    is_classification = len(counts) <= MAX_NUMERIC_CLASSES and all(float(value).is_integer() for value in counts)
    return "classification" if is_classification else "regression"


def _has_several(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and LABEL_SEPARATOR in value)


def describe_alternative(task: Task) -> str:
    """Return a note on another type that the labels of a user's table allow."""
    match get_type(task).scoring.gold:
        case "labels":
            return " (inferred; use --type classification for one label per text)"
        case "score":
            return " (inferred; use --type classification for classes)"
        case "class" if all(map(is_finite, task.labels)):
            return " (inferred; use --type regression for scores)"
    return ""
