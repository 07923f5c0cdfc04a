"""A task out of users' own files: its type and the columns it reads.

    task = own_task({"train": "train.csv", "dev": "dev.csv"}, text="review", label="stars")

`type` states the type. Without it CoNLL files are tagging, and the labels of the training file decide: where most of
them are no numbers they are classes; where most are numbers all have to be, up to `MAX_NUMERIC_CLASSES` different whole numbers
are classes, and other numbers are scores (regression). Training labels are the labels: one that only dev or test has
is an error, and so is a single class.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, suggest
from pretune.core.format import join_names
from pretune.tasks.conll import ConllReader
from pretune.tasks.conllu import ConlluReader
from pretune.tasks.example import Example
from pretune.tasks.table_reader import TableFile, open_table, pick_column
from pretune.tasks.table_rows import TableRow, data_error
from pretune.tasks.task import TYPES, Kind, Reader, SplitFile, Task, TaskSplit
from pretune.tasks.template import Template
from pretune.tasks.user_types import (
    DEFAULT_COLUMNS,
    ChoiceReader,
    SpanReader,
    SquadReader,
    TagListReader,
    TextPairReader,
    TypeReader,
    build_reader,
    is_squad,
)

MAX_NUMERIC_CLASSES = 20
"""The largest number of different whole numbers that are classes by default, and not scores."""

NUM_SPLITS = 3
"""Parts of a single file (train, dev and test): with fewer groups than these, groups are not kept together."""

TEXT_COLUMNS = ("text", "sentence", "sentence1", "premise", "question", "question1", "review", "content", "document")
LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "target", "gold_label", "score", "stars")
"""Columns that are taken where none is named, the first that is there."""
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
)
"""Columns that are a pair of texts by default: GLUE's and SuperGLUE's spellings, and other common ones."""


@spec
class UserTableReader:
    """A reader of named columns; with `labels` the label is a class, without it a number."""

    text: str
    label: str
    pair: str | None = None
    labels: tuple[str, ...] = ()

    def __call__(self, path: Path) -> Iterator[Example]:
        table = open_table(path, [self.text, self.label, *([self.pair] if self.pair else [])])
        for row in table.read_rows():
            yield Example(
                text=row.get_text(self.text),
                pair=row.get_text(self.pair) if self.pair else None,
                label=self._read_label(row),
                id=row.location.rpartition(":")[2],
            )

    def describe_columns(self, columns: Iterable[str]) -> str:
        """Which columns are read as what, and which are not.

        >>> UserTableReader(text="review", label="stars").describe_columns(["id", "review", "stars"])
        "the text is 'review', the label 'stars'; not read: id"
        >>> UserTableReader(text="premise", label="label").describe_columns(["premise", "hypothesis", "label"])
        "the text is 'premise', the label 'label'; not read: hypothesis (--pair hypothesis reads it as the second text)"
        """
        pair = f", the second text '{self.pair}'" if self.pair else ""
        left = [column for column in columns if column not in (self.text, self.pair, self.label)]
        more = f"; not read: {', '.join(left[:20])}" if left else ""
        second = next((two for one, two in PAIR_COLUMNS if one == self.text.strip().lower() and two in left), None)
        if not self.pair and second:
            more += f" (--pair {second} reads it as the second text)"
        return f"the text is '{self.text}'{pair}, the label '{self.label}'{more}"

    def _read_label(self, row: TableRow) -> int | float:
        value = read_label(row, self.label)
        if not self.labels:
            return parse_score(row, value)
        if value not in self.labels:
            known, hint = join_names(self.labels), suggest(value, self.labels)
            raise data_error(
                f"{row.location}: label {value[:40]!r} is not among those of the training data{hint} ({known})"
            )
        return self.labels.index(value)


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
    """The task that files make: `files` are by split, and there must be one for train; every row is looked at.

    With `labels`, those of a model that is judged (none of scores), no file to train on is needed. `type` is one of
    `TYPES`, except embedding. `paired` says that two texts are read, or one; None: two where no text is named and
    the columns are one of `PAIR_COLUMNS`.
    """
    if type is not None and (type not in TYPES or type == "embedding"):
        raise UsageError(f"unknown type '{type[:40]}'{suggest(type, TYPES)} (allowed: {', '.join(TYPES[:-1])})")
    if "train" not in files and labels is None:
        raise UsageError(f"a file to train on is needed (train), found {', '.join(files) or 'none'}")
    asked = [column for column in (text, label, pair) if column]
    if type == "span" and all(is_squad(Path(path)) for path in files.values()):
        tables = {split: TableFile(path=Path(path), form="jsonl") for split, path in files.items()}
    else:
        tables = {split: open_table(path, asked) for split, path in files.items()}
    train = tables.get("train") or next(iter(tables.values()))
    forms = {table.form == "conll" for table in tables.values()}
    if len(forms) > 1:
        raise DataError(f"{train.path}: CoNLL and tables cannot be mixed in one task; write all splits in one form")
    if forms == {True}:
        if type not in (None, "tagging"):
            raise UsageError(f"{train.path}: a CoNLL file is read as tagging, not as {type}; give a table")
        return _build_tagging_task(tables, label, name, labels)
    if type in DEFAULT_COLUMNS:
        if pair is not None and "pair" not in DEFAULT_COLUMNS[type]:
            raise UsageError(f"--pair '{pair}': a task of the type {type} reads one text; leave it out")
        return _build_typed_task(tables, build_reader(type, train, text, label, pair), name, labels)
    if text is None and pair is None and has_pair is not False:
        text, pair = find_pair_columns(train.columns, label) or (None, None)
    if has_pair and pair is None:
        raise DataError(f"{train.path}: two texts are read; name the column of the second with --column pair=NAME")
    text, label = pick_column(train, text, TEXT_COLUMNS, "text"), pick_column(train, label, LABEL_COLUMNS, "label")
    if text == label or pair in (text, label):
        raise UsageError(
            f"one column has one role, found text '{text}', label '{label}'{f', pair {pair!r}' if pair else ''}"
        )
    for table in tables.values():
        for column in (text, label, *([pair] if pair else [])):
            table.check_column(column)
    labels = _read_labels(train, label, type) if labels is None else labels
    read = UserTableReader(text=text, label=label, pair=pair, labels=labels)
    for path in files.values():
        if not sum(1 for _ in read(Path(path))):
            raise DataError(f"{path}: no rows below the header")
    kind: Kind = "regression" if not labels else "pair" if pair else "classification"
    source = "{text} {pair}" if pair else "{text}"
    return Task(
        name=name,
        kind=kind,
        metrics=("accuracy", "f1_macro") if labels else ("pearson_spearman",),
        labels=labels,
        splits=_build_splits(tables, read),
        template=Template(source=f"classify: {source}", targets=labels) if labels else None,
    )


def _build_typed_task(
    tables: Mapping[str, TableFile], reader: TypeReader, name: str, labels: tuple[str, ...] | None
) -> Task:
    """A task of tags, spans, choices or texts; every row is read once, so that a fault is found now."""
    if isinstance(reader, TagListReader):
        if not labels:
            path = tables["train"].path
            labels = _collect_tags(reader(path), path)
        reader = replace(reader, labels=labels)
    blank, groups = False, set[str | None]()
    for table in tables.values():
        count = 0
        for example in reader(table.path):
            count, blank = count + 1, blank or not example.answers
            groups.add(example.group)
        if not count:
            raise DataError(f"{table.path}: no rows in it")
    splits = _build_splits(tables, reader)
    match reader:
        case TagListReader():
            return Task(
                name=name,
                kind="tagging",
                metrics=_choose_tag_metrics(reader.labels),
                labels=reader.labels,
                splits=splits,
            )
        case ChoiceReader():
            return Task(name=name, kind="choice", metrics=("choice_accuracy",), splits=splits)
        case TextPairReader():
            return Task(name=name, kind="generation", metrics=("rouge", "exact_match"), splits=splits)
    template = Template(source="question: {text} context: {pair}", target="{answer}")
    together: Literal["group"] | None = "group" if len(groups) >= NUM_SPLITS else None  # articles
    metrics = ("squad2",) if blank else ("squad",)
    return Task(name=name, kind="span", metrics=metrics, splits=splits, template=template, group_field=together)


def find_pair_columns(columns: Iterable[str], label: str | None = None) -> tuple[str, str] | None:
    """The two columns of a pair of texts, where they have known names and there is no column `text`.

    >>> find_pair_columns(["id", "Question", "sentence", "label"])
    ('Question', 'sentence')
    """
    names = {column.strip().lower(): column for column in columns if column != label}
    if "text" in names:
        return None
    return next(((names[one], names[two]) for one, two in PAIR_COLUMNS if one in names and two in names), None)


def get_columns(task: Task) -> tuple[str | None, str | None]:
    """The columns of the text and of the second text, where the task reads tables of a user."""
    read = next((file.reader for split in task.splits.values() for file in split.files), None)
    if isinstance(read, UserTableReader | SpanReader | SquadReader):
        return read.text, read.pair
    return (read.text, None) if isinstance(read, ChoiceReader | TextPairReader) else (None, None)


def read_label(row: TableRow, column: str) -> str:
    """The label of a row, as it is written; a row without one is an error."""
    value = row.get(column)
    if value is None or not str(value).strip():
        raise data_error(f"{row.location}: no label in '{column}'; fill it in, or leave the row out")
    if isinstance(value, list | dict):
        raise data_error(f"{row.location}: '{column}' holds {str(value)[:40]}; one label is expected")
    return str(value).strip()


def parse_score(row: TableRow, value: str) -> float:
    """A score; NaN and infinity are none."""
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if found - found != 0:
        raise data_error(f"{row.location}: score {value[:40]!r} is not a number; this task is a regression")
    return found


def _read_labels(table: TableFile, column: str, type: str | None) -> tuple[str, ...]:
    """The classes of the training data, in the order of numbers or letters; none when they are scores."""
    first: dict[str, str] = {}  # where each label is first
    counts: Counter[str] = Counter()
    for row in table.read_rows():
        value = read_label(row, column)
        first.setdefault(value, row.location)
        counts[value] += 1
    if not counts:
        raise data_error(f"{table.path}: no rows below the header")
    if type == "regression":
        _check_numbers(first, "--type regression needs numbers")
    scores = (type or _infer_type(counts, first)) == "regression"
    if len(counts) == 1:
        what = ("score", "scores") if scores else ("label", "classes")
        raise data_error(
            f"{table.path}: every row has the {what[0]} {next(iter(counts))[:40]!r}; two {what[1]} are needed"
        )
    if scores:
        return ()
    if len(counts) == counts.total() and len(counts) > MAX_NUMERIC_CLASSES:
        raise data_error(f"{table.path}: every row of '{column}' is different; is it the label? (another: --label COL)")
    return tuple(sorted(counts, key=float if all(map(is_finite, counts)) else str))


def _infer_type(counts: Mapping[str, int], locations: Mapping[str, str]) -> str:
    """Classification or regression, by the labels alone."""
    if 2 * sum(count for value, count in counts.items() if _is_number(value)) < sum(counts.values()):
        return "classification"
    _check_numbers(locations, "most labels are numbers; mend the row, or state the type with --type classification")
    few = len(counts) <= MAX_NUMERIC_CLASSES and all(float(value).is_integer() for value in counts)
    return "classification" if few else "regression"


def _check_numbers(locations: Mapping[str, str], reason: str) -> None:
    for value, where in locations.items():
        if not is_finite(value):
            raise data_error(f"{where}: label {value[:40]!r} is not a finite number: {reason}")


def _is_number(value: str) -> bool:
    """True for numbers, NaN and infinity among them."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def is_finite(value: str) -> bool:
    """True for a finite number."""
    return _is_number(value) and math.isfinite(float(value))


def _build_tagging_task(
    tables: Mapping[str, TableFile], label: str | None, name: str, known_labels: tuple[str, ...] | None
) -> Task:
    first = next(iter(tables.values())).path
    if label is not None and not label.lstrip("-").isdecimal():
        raise data_error(f"{first}: CoNLL columns have no names; give --label as a number, the last is -1")
    universal = ".conllu" in first.suffixes
    form = ConlluReader if universal else ConllReader
    at = (3 if universal else -1) if label is None else int(label) - (int(label) > 0)
    labels = known_labels or _collect_tags(form(tag=at, labels=())(tables["train"].path), tables["train"].path)
    read = form(tag=at, labels=labels)
    for table in tables.values():
        for _ in read(table.path):
            pass
    return Task(
        name=name,
        kind="tagging",
        metrics=_choose_tag_metrics(labels),
        labels=labels,
        splits=_build_splits(tables, read),
    )


def _choose_tag_metrics(labels: Iterable[str]) -> tuple[str, ...]:
    return ("entity_f1", "tag_accuracy") if any(tag.startswith("B-") for tag in labels) else ("tag_accuracy",)


def _collect_tags(examples: Iterable[Example], path: Path) -> tuple[str, ...]:
    """The tags of the training data, "O" first."""
    tags = Counter(tag for example in examples for tag in example.tags)
    if len(tags) < 2:
        raise data_error(f"{path}: {len(tags)} different tags; two are needed")
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag[2:] if tag[1:2] == "-" else tag, tag)))


def _build_splits(tables: Mapping[str, TableFile], reader: Reader) -> dict[str, TaskSplit]:
    # Absolute, so that joining them to any data directory gives them back.
    return {
        split: TaskSplit(
            published_name=table.path.name, files=(SplitFile(path=str(table.path.absolute()), reader=reader),)
        )
        for split, table in tables.items()
    }
