"""Tasks from users' own files: their type and columns.

    task = build_user_task({"train": "train.csv", "dev": "dev.csv"}, text="review", label="stars")
    task.kind, task.labels          # 'classification', ('1', '2', '3', '4', '5')

`type` sets the type. Without it CoNLL files are tagging, and otherwise the labels of the training file decide (see
`types.sequence.infer_kind`). The labels are those of the training data: a label that only dev or test has is an error,
and so is a single class.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pretune.core.errors import DataError, UsageError, suggest
from pretune.tasks.task import Task
from pretune.tasks.types import TASK_TYPES, TYPE_OPTIONS, get_option
from pretune.tasks.types.base import TaskType
from pretune.tasks.types.sequence import infer_kind
from pretune.tasks.user_table import UserTables


def build_user_task(
    files: Mapping[str, str | os.PathLike[str]],
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    name: str = "own",
    labels: tuple[str, ...] | None = None,
    type: str | None = None,
    has_pair: bool | None = None,
) -> Task:
    """Build a task from files by split, with at least one for train; every row is checked.

    With `labels`, those of a model to be evaluated (empty for scores), no training file is needed. `type` is one of
    `TYPE_OPTIONS`, except embedding. `has_pair` sets whether two texts are read; None: two if no text column is named
    and the columns are one of `PAIR_COLUMNS`.
    """
    options = [option for option in TYPE_OPTIONS if option != "embedding"]
    if type is not None and type not in options:
        raise UsageError(f"unknown type '{type[:40]}'{suggest(type, options)} (allowed: {', '.join(options)})")
    if "train" not in files and labels is None:
        raise UsageError(f"a training file is needed (train), got {', '.join(files) or 'none'}")
    kind = next((kind for kind in TASK_TYPES if type is not None and get_option(kind) == type), None)
    open_file = (TaskType if kind is None else TASK_TYPES.get(kind)).open_file
    column_names = [column for column in (text, label, pair) if column]
    tables = {split: open_file(Path(path), column_names) for split, path in files.items()}
    user_tables = UserTables(
        files=tables, name=name, text=text, label=label, pair=pair, labels=labels, has_pair=has_pair
    )
    forms = {table.form == "conll" for table in tables.values()}
    if len(forms) > 1:
        raise DataError(
            f"{user_tables.train.path}: CoNLL files and tables cannot be mixed; use one format for all splits"
        )
    if kind is None:
        kind = "tagging" if forms == {True} else infer_kind(user_tables)
    type_class = TASK_TYPES.get(kind)
    if forms == {True} and not type_class.reads_conll:
        raise UsageError(f"{user_tables.train.path}: a CoNLL file is for tagging, got type '{type}'; use a table")
    if pair is not None and not type_class.allows_pair:
        raise UsageError(f"--pair '{pair}': a task of type {type} has one text; remove --pair")
    return type_class.build_user_task(user_tables)
