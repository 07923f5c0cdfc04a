"""Tasks from users' own files: their type and columns.

    task = build_user_task({"train": "train.csv", "dev": "dev.csv"}, text="review", label="stars")

`type` sets the type. Without it CoNLL files are tagging, and otherwise the labels of the training file decide: if most
are not numbers, they are classes; if most are numbers, all must be: up to `MAX_NUMERIC_CLASSES` different integers are
classes, other numbers are scores (regression). The labels are those of the training data: a label that only dev or test
has is an error, and so is a single class.
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
"""Maximum number of different integers that are treated as classes, not scores."""

NUM_SPLITS = 3
"""Parts of a single file (train, dev and test): with fewer groups than these, groups are not kept together."""

TEXT_COLUMNS = ("text", "sentence", "sentence1", "premise", "question", "question1", "review", "content", "document")
LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "target", "gold_label", "score", "stars")
"""Default columns, in order of preference."""
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
"""Default columns of a pair of texts: GLUE's and SuperGLUE's names, and other common ones."""


@spec
class UserTableReader:
    """A reader of named columns; with `labels` the label is a class, without them a score."""

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
        """Describe the role of each column, and the ignored ones.

        >>> UserTableReader(text="review", label="stars").describe_columns(["id", "review", "stars"])
        "text column 'review', label column 'stars'; ignored: id"
        >>> UserTableReader(text="premise", label="label").describe_columns(["premise", "hypothesis", "label"])
        "text column 'premise', label column 'label'; ignored: hypothesis (--pair hypothesis uses it as second text)"
        """
        pair = f", second text column '{self.pair}'" if self.pair else ""
        ignored_columns = [column for column in columns if column not in (self.text, self.pair, self.label)]
        note = f"; ignored: {', '.join(ignored_columns[:20])}" if ignored_columns else ""
        pair_column = next(
            (
                second
                for first, second in PAIR_COLUMNS
                if first == self.text.strip().lower() and second in ignored_columns
            ),
            None,
        )
        if not self.pair and pair_column:
            note += f" (--pair {pair_column} uses it as second text)"
        return f"text column '{self.text}'{pair}, label column '{self.label}'{note}"

    def _read_label(self, row: TableRow) -> int | float:
        value = read_label(row, self.label)
        if not self.labels:
            return parse_score(row, value)
        if value not in self.labels:
            allowed_labels, hint = join_names(self.labels), suggest(value, self.labels)
            raise data_error(
                f"{row.location}: label {value[:40]!r} is not in the training data{hint} (labels: {allowed_labels})"
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
    """Build a task from files by split, with at least one for train; every row is checked.

    With `labels`, those of a model to be evaluated (empty for scores), no training file is needed. `type` is one of
    `TYPES`, except embedding. `has_pair` sets whether two texts are read; None: two if no text column is named and the
    columns are one of `PAIR_COLUMNS`.
    """
    if type is not None and (type not in TYPES or type == "embedding"):
        raise UsageError(f"unknown type '{type[:40]}'{suggest(type, TYPES)} (allowed: {', '.join(TYPES[:-1])})")
    if "train" not in files and labels is None:
        raise UsageError(f"a training file is needed (train), got {', '.join(files) or 'none'}")
    column_names = [column for column in (text, label, pair) if column]
    if type == "span" and all(is_squad(Path(path)) for path in files.values()):
        tables = {split: TableFile(path=Path(path), form="jsonl") for split, path in files.items()}
    else:
        tables = {split: open_table(path, column_names) for split, path in files.items()}
    train = tables.get("train") or next(iter(tables.values()))
    forms = {table.form == "conll" for table in tables.values()}
    if len(forms) > 1:
        raise DataError(f"{train.path}: CoNLL files and tables cannot be mixed; use one format for all splits")
    if forms == {True}:
        if type not in (None, "tagging"):
            raise UsageError(f"{train.path}: a CoNLL file is for tagging, got type '{type}'; use a table")
        return _build_tagging_task(tables, label, name, labels)
    if type in DEFAULT_COLUMNS:
        if pair is not None and "pair" not in DEFAULT_COLUMNS[type]:
            raise UsageError(f"--pair '{pair}': a task of type {type} has one text; remove --pair")
        return _build_typed_task(tables, build_reader(type, train, text, label, pair), name, labels)
    if text is None and pair is None and has_pair is not False:
        text, pair = find_pair_columns(train.columns, label) or (None, None)
    if has_pair and pair is None:
        raise DataError(f"{train.path}: two texts are needed; name the second column with --column pair=NAME")
    text, label = pick_column(train, text, TEXT_COLUMNS, "text"), pick_column(train, label, LABEL_COLUMNS, "label")
    if text == label or pair in (text, label):
        raise UsageError(
            f"text, label and pair must be different columns, got text '{text}', label '{label}'"
            f"{f', pair {pair!r}' if pair else ''}"
        )
    for table in tables.values():
        for column in (text, label, *([pair] if pair else [])):
            table.check_column(column)
    labels = _read_labels(train, label, type) if labels is None else labels
    reader = UserTableReader(text=text, label=label, pair=pair, labels=labels)
    for path in files.values():
        if not sum(1 for _ in reader(Path(path))):
            raise DataError(f"{path}: no rows below the header")
    kind: Kind = "regression" if not labels else "pair" if pair else "classification"
    source = "{text} {pair}" if pair else "{text}"
    return Task(
        name=name,
        kind=kind,
        metrics=("accuracy", "f1_macro") if labels else ("pearson_spearman",),
        labels=labels,
        splits=_build_splits(tables, reader),
        template=Template(source=f"classify: {source}", targets=labels) if labels else None,
    )


def _build_typed_task(
    tables: Mapping[str, TableFile], reader: TypeReader, name: str, labels: tuple[str, ...] | None
) -> Task:
    """Build a task of tags, spans, choices or texts; every row is read once, so that errors are found now."""
    if isinstance(reader, TagListReader):
        if not labels:
            path = tables["train"].path
            labels = _collect_tags(reader(path), path)
        reader = replace(reader, labels=labels)
    has_unanswerable, groups = False, set[str | None]()
    for table in tables.values():
        count = 0
        for example in reader(table.path):
            count, has_unanswerable = count + 1, has_unanswerable or not example.answers
            groups.add(example.group)
        if not count:
            raise DataError(f"{table.path}: no rows")
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
    group_field: Literal["group"] | None = "group" if len(groups) >= NUM_SPLITS else None  # SQuAD's articles
    metrics = ("squad2",) if has_unanswerable else ("squad",)
    return Task(name=name, kind="span", metrics=metrics, splits=splits, template=template, group_field=group_field)


def find_pair_columns(columns: Iterable[str], label: str | None = None) -> tuple[str, str] | None:
    """Return the two columns of a pair of texts, if they have known names and there is no column `text`.

    >>> find_pair_columns(["id", "Question", "sentence", "label"])
    ('Question', 'sentence')
    """
    names = {column.strip().lower(): column for column in columns if column != label}
    if "text" in names:
        return None
    return next(
        ((names[first], names[second]) for first, second in PAIR_COLUMNS if first in names and second in names), None
    )


def get_columns(task: Task) -> tuple[str | None, str | None]:
    """Return the columns of the text and of the second text, if the task reads a user's tables."""
    reader = next((file.reader for split in task.splits.values() for file in split.files), None)
    if isinstance(reader, UserTableReader | SpanReader | SquadReader):
        return reader.text, reader.pair
    return (reader.text, None) if isinstance(reader, ChoiceReader | TextPairReader) else (None, None)


def read_label(row: TableRow, column: str) -> str:
    """Return the label of a row as written in the file; raise DataError if there is none."""
    value = row.get(column)
    if value is None or not str(value).strip():
        raise data_error(f"{row.location}: no label in '{column}'; fill it in, or remove the row")
    if isinstance(value, list | dict):
        raise data_error(f"{row.location}: '{column}' must be a single label, got {str(value)[:40]}")
    return str(value).strip()


def parse_score(row: TableRow, value: str) -> float:
    """Parse a finite score."""
    try:
        score = float(value)
    except ValueError:
        score = float("nan")
    if score - score != 0:
        raise data_error(f"{row.location}: score must be a number (this task is a regression), got {value[:40]!r}")
    return score


def _read_labels(table: TableFile, column: str, type: str | None) -> tuple[str, ...]:
    """Return the classes of the training data, sorted by number or alphabet; empty if they are scores."""
    locations: dict[str, str] = {}  # first row of each label
    counts: Counter[str] = Counter()
    for row in table.read_rows():
        value = read_label(row, column)
        locations.setdefault(value, row.location)
        counts[value] += 1
    if not counts:
        raise data_error(f"{table.path}: no rows below the header")
    if type == "regression":
        _check_numbers(locations, "--type regression needs numbers")
    is_regression = (type or _infer_type(counts, locations)) == "regression"
    if len(counts) == 1:
        unit, units = ("score", "scores") if is_regression else ("label", "classes")
        raise data_error(
            f"{table.path}: every row has the {unit} {next(iter(counts))[:40]!r}; at least two {units} are needed"
        )
    if is_regression:
        return ()
    if len(counts) == counts.total() and len(counts) > MAX_NUMERIC_CLASSES:
        raise data_error(
            f"{table.path}: every value of '{column}' is different, so it is no label; choose another with --label COL"
        )
    return tuple(sorted(counts, key=float if all(map(is_finite, counts)) else str))


def _infer_type(counts: Mapping[str, int], locations: Mapping[str, str]) -> str:
    """Return classification or regression, inferred from the labels."""
    if 2 * sum(count for value, count in counts.items() if _is_number(value)) < sum(counts.values()):
        return "classification"
    _check_numbers(locations, "most labels are numbers; fix the row, or set the type with --type classification")
    is_classification = len(counts) <= MAX_NUMERIC_CLASSES and all(float(value).is_integer() for value in counts)
    return "classification" if is_classification else "regression"


def _check_numbers(locations: Mapping[str, str], reason: str) -> None:
    for value, location in locations.items():
        if not is_finite(value):
            raise data_error(f"{location}: label {value[:40]!r} is not a finite number: {reason}")


def _is_number(value: str) -> bool:
    """Return True for numbers, including NaN and infinity."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def is_finite(value: str) -> bool:
    """Return True for a finite number."""
    return _is_number(value) and math.isfinite(float(value))


def _build_tagging_task(
    tables: Mapping[str, TableFile], label: str | None, name: str, known_labels: tuple[str, ...] | None
) -> Task:
    first_path = next(iter(tables.values())).path
    if label is not None and not label.lstrip("-").isdecimal():
        raise data_error(f"{first_path}: CoNLL columns have no names; pass --label as a number, -1 is the last")
    is_conllu = ".conllu" in first_path.suffixes
    reader_class = ConlluReader if is_conllu else ConllReader
    column = (3 if is_conllu else -1) if label is None else int(label) - (int(label) > 0)
    labels = known_labels or _collect_tags(
        reader_class(tag=column, labels=())(tables["train"].path), tables["train"].path
    )
    reader = reader_class(tag=column, labels=labels)
    for table in tables.values():
        for _ in reader(table.path):
            pass
    return Task(
        name=name,
        kind="tagging",
        metrics=_choose_tag_metrics(labels),
        labels=labels,
        splits=_build_splits(tables, reader),
    )


def _choose_tag_metrics(labels: Iterable[str]) -> tuple[str, ...]:
    return ("entity_f1", "tag_accuracy") if any(tag.startswith("B-") for tag in labels) else ("tag_accuracy",)


def _collect_tags(examples: Iterable[Example], path: Path) -> tuple[str, ...]:
    """Return the tags of the training data, "O" first."""
    tags = Counter(tag for example in examples for tag in example.tags)
    if len(tags) < 2:
        raise data_error(f"{path}: at least two different tags are needed, got {len(tags)}")
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag[2:] if tag[1:2] == "-" else tag, tag)))


def _build_splits(tables: Mapping[str, TableFile], reader: Reader) -> dict[str, TaskSplit]:
    # Absolute, so that joining them to any data directory returns them unchanged.
    return {
        split: TaskSplit(
            published_name=table.path.name, files=(SplitFile(path=str(table.path.absolute()), reader=reader),)
        )
        for split, table in tables.items()
    }
