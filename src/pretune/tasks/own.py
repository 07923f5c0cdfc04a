"""A task out of the user's own files: which columns are read, and what kind of task they make.

    task = own_task({"train": "train.csv", "dev": "dev.csv"}, text="review", label="stars")

The label column decides: text, or up to 20 different whole numbers, are classes; other numbers are scores. CoNLL files
are tagging. Training labels are the labels: one that only dev or test has is an error, and so is a single class.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, nearest
from pretune.tasks.conll import Columns
from pretune.tasks.conllu import Conllu
from pretune.tasks.example import Example
from pretune.tasks.rows import Row, fault
from pretune.tasks.tables import Table, open_table
from pretune.tasks.task import File, Kind, Reader, Split, Task
from pretune.tasks.template import Template

CLASSES = 20
"""The most different whole numbers that are taken for classes, and not for scores."""

TEXT = ("text", "sentence", "sentence1", "premise", "question", "question1", "review", "content", "document")
LABEL = ("label", "labels", "class", "category", "sentiment", "target", "gold_label", "score", "stars")
"""Columns that are taken where none is named, the first that is there."""
SECOND = {"sentence1": "sentence2", "premise": "hypothesis", "question1": "question2", "question": "passage"}
"""Columns that usually are a text and its second."""


@spec
class Own:
    """A reader of named columns; with `labels` the label is a class, without it a number."""

    text: str
    label: str
    pair: str | None = None
    labels: tuple[str, ...] = ()

    def __call__(self, path: Path) -> Iterator[Example]:
        table = open_table(path, [self.text, self.label, *([self.pair] if self.pair else [])])
        for row in table.rows():
            yield Example(
                text=row.text(self.text),
                pair=row.text(self.pair) if self.pair else None,
                label=self._label(row),
                id=row.where.rpartition(":")[2],
            )

    def told(self, columns: Iterable[str]) -> str:
        """Which columns are read as what, and which are not.

        >>> Own(text="review", label="stars").told(["id", "review", "stars"])
        "the text is 'review', the label 'stars'; not read: id"
        >>> Own(text="premise", label="label").told(["premise", "hypothesis", "label"])
        "the text is 'premise', the label 'label'; not read: hypothesis (--pair hypothesis reads it as the second text)"
        """
        second = f", the second text '{self.pair}'" if self.pair else ""
        left = [column for column in columns if column not in (self.text, self.pair, self.label)]
        more = f"; not read: {', '.join(left[:20])}" if left else ""
        if not self.pair and SECOND.get(self.text) in left:
            more += f" (--pair {SECOND[self.text]} reads it as the second text)"
        return f"the text is '{self.text}'{second}, the label '{self.label}'{more}"

    def _label(self, row: Row) -> int | float:
        value = label_of(row, self.label)
        if not self.labels:
            return number(row, value)
        if value not in self.labels:
            known = ", ".join(self.labels[:20])
            hint = nearest(value, self.labels)
            raise fault(f"{row.where}: label {value[:40]!r} is not among those of the training data{hint} ({known})")
        return self.labels.index(value)


def own_task(
    files: Mapping[str, str | os.PathLike[str]],
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    name: str = "own",
    labels: tuple[str, ...] | None = None,
) -> Task:
    """The task that files make: `files` are by split, and there must be one for train; every row is looked at.

    With `labels`, those of a model that is judged (none of scores), no file to train on is needed.
    """
    if "train" not in files and labels is None:
        raise UsageError(f"a file to train on is needed (train), found {', '.join(files) or 'none'}")
    asked = [column for column in (text, label, pair) if column]
    tables = {split: open_table(path, asked) for split, path in files.items()}
    train = tables.get("train") or next(iter(tables.values()))
    forms = {table.form == "conll" for table in tables.values()}
    if len(forms) > 1:
        raise DataError(f"{train.path}: CoNLL and tables cannot be mixed in one task; write all splits in one form")
    if forms == {True}:
        return _tagging(tables, label, name, labels)
    text, label = _column(train, text, TEXT, "text"), _column(train, label, LABEL, "label")
    if text == label or pair in (text, label):
        raise UsageError(
            f"one column has one role, found text '{text}', label '{label}'{f', pair {pair!r}' if pair else ''}"
        )
    for table in tables.values():
        for column in (text, label, *([pair] if pair else [])):
            table.check(column)
    labels = _labels(train, label) if labels is None else labels
    read = Own(text=text, label=label, pair=pair, labels=labels)
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
        splits=_splits(tables, read),
        template=Template(source=f"classify: {source}", targets=labels) if labels else None,
    )


def label_of(row: Row, column: str) -> str:
    """The label of a row, as it is written; a row without one is an error."""
    value = row.get(column)
    if value is None or not str(value).strip():
        raise fault(f"{row.where}: no label in '{column}'; fill it in, or leave the row out")
    if isinstance(value, list | dict):
        raise fault(f"{row.where}: '{column}' holds {str(value)[:40]}; one label is expected")
    return str(value).strip()


def number(row: Row, value: str) -> float:
    """A score; NaN and infinity are none."""
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if found - found != 0:
        raise fault(f"{row.where}: score {value[:40]!r} is not a number, though those before it are")
    return found


def _labels(table: Table, column: str) -> tuple[str, ...]:
    """The classes of the training data, in the order of numbers or letters; none when they are scores."""
    counts = Counter(label_of(row, column) for row in table.rows())
    if not counts:
        raise fault(f"{table.path}: no rows below the header")
    numbers = all(_is_number(value) for value in counts)
    whole = numbers and all(float(value).is_integer() for value in counts)
    if len(counts) == 1:
        raise fault(f"{table.path}: every row has the label {next(iter(counts))[:40]!r}; two classes are needed")
    if numbers and not (whole and len(counts) <= CLASSES):
        return ()
    if len(counts) == counts.total() and len(counts) > CLASSES:
        raise fault(f"{table.path}: every row of '{column}' is different; is it the label? (another: --label COL)")
    return tuple(sorted(counts, key=float if whole else str))


def _is_number(value: str) -> bool:
    try:
        return float(value) - float(value) == 0
    except ValueError:
        return False


def _column(table: Table, asked: str | None, usual: tuple[str, ...], what: str) -> str:
    if asked is not None:
        return table.check(asked)
    there = {column.strip().lower(): column for column in reversed(table.columns)}
    for column in usual:
        if column in there:
            return there[column]
    number = f"; where that is no header, by its number, --{what} 1" if table.form == "delimited" else ""
    raise fault(
        f"{table.path}: which column is the {what}? Name it with --{what} ({', '.join(table.columns)[:200]}){number}; "
        f"for `pretune evaluate` with --column {what}=NAME"
    )


def _tagging(tables: Mapping[str, Table], label: str | None, name: str, known: tuple[str, ...] | None) -> Task:
    first = next(iter(tables.values())).path
    if label is not None and not label.lstrip("-").isdecimal():
        raise fault(f"{first}: CoNLL columns have no names; give --label as a number, the last is -1")
    universal = ".conllu" in first.suffixes
    form = Conllu if universal else Columns
    at = (3 if universal else -1) if label is None else int(label) - (int(label) > 0)
    labels = known or _tags(form(tag=at, labels=())(tables["train"].path), tables["train"].path)
    read = form(tag=at, labels=labels)
    for table in tables.values():
        for _ in read(table.path):
            pass
    spans = any(tag.startswith("B-") for tag in labels)
    metrics = ("entity_f1", "tag_accuracy") if spans else ("tag_accuracy",)
    return Task(name=name, kind="tagging", metrics=metrics, labels=labels, splits=_splits(tables, read))


def _tags(examples: Iterable[Example], path: Path) -> tuple[str, ...]:
    """The tags of the training data, "O" first."""
    tags = Counter(tag for example in examples for tag in example.tags)
    if len(tags) < 2:
        raise fault(f"{path}: {len(tags)} different tags; two are needed")
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag[2:] if tag[1:2] == "-" else tag, tag)))


def _splits(tables: Mapping[str, Table], read: Reader) -> dict[str, Split]:
    # Absolute, so that joining them to any data directory gives them back.
    return {
        split: Split(published=table.path.name, files=(File(path=str(table.path.absolute()), read=read),))
        for split, table in tables.items()
    }
