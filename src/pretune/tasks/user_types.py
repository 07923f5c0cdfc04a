"""Readers of users' tables whose labels are neither classes nor scores: tags, spans, choices and texts.

    tagging   JSONL: a list of words and a list of tags ("words", "tags")
    span      a question, a context and the answer, which is part of it ("question", "context", "answer"); SQuAD's JSON
    choice    a text, its choices ("choices": a list, or columns choice1, choice2, …, or A, B, …) and the correct one
    text      a text and the text to generate ("text", "target")

Every error is a `DataError` with the file and line of the row.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.tasks import squad
from pretune.tasks.conll import to_iob2
from pretune.tasks.example import Example
from pretune.tasks.table_reader import TableFile, open_table, pick_column
from pretune.tasks.table_rows import TableRow, data_error

DEFAULT_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "tagging": {"text": ("words", "tokens"), "label": ("tags", "ner_tags", "pos_tags", "labels")},
    "span": {
        "text": ("question", "query"),
        "pair": ("context", "passage", "document", "text"),
        "label": ("answer", "answers"),
    },
    "choice": {
        "text": ("text", "question", "premise", "context", "ctx", "sentence", "prompt"),
        "label": ("label", "answer", "answerkey", "correct", "target", "key"),
    },
    "text": {
        "text": ("text", "source", "input", "document", "article", "question", "sentence"),
        "label": ("target", "summary", "output", "answer", "highlights", "translation", "label"),
    },
}
"""Default columns of each type by role, in order of preference."""
_CHOICE_LISTS = ("choices", "options", "endings")
_NUMBERED_COLUMN = re.compile(r"(?:choice|option|ending|answer)_?(\d+)", re.IGNORECASE)


@spec
class TagListReader:
    """Reader of sentences as lists of words and tags."""

    text: str
    label: str
    labels: tuple[str, ...] = ()  # allowed tags; empty: any

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path).read_rows():
            words, tags = (_read_strings(row, column) for column in (self.text, self.label))
            if not words or len(words) != len(tags):
                raise data_error(f"{row.location}: {len(words)} words and {len(tags)} tags; every word needs one tag")
            tags = tuple(to_iob2(tags))
            for tag in tags:
                if self.labels and tag not in self.labels:
                    raise data_error(f"{row.location}: tag {tag[:40]!r} is not in the training data")
            yield Example(text=" ".join(words), words=words, tags=tags, id=_get_line(row))


@spec
class SpanReader:
    """Reader of questions whose answers are part of a context; an empty answer means no answer."""

    text: str
    pair: str
    label: str

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path, [self.text, self.pair, self.label]).read_rows():
            context = row.get_text(self.pair)
            answers, starts = _read_answers(row, self.label)
            spans = tuple(
                _find_answer(row, context, answer, start) for answer, start in zip(answers, starts, strict=True)
            )
            yield Example(text=row.get_text(self.text), pair=context, answers=answers, spans=spans, id=_get_line(row))


@spec
class SquadReader:
    """Reader of SQuAD's published JSON."""

    text: str = "question"
    pair: str = "context"
    label: str = "answers"

    def __call__(self, path: Path) -> Iterator[Example]:
        yield from squad.read(path)


@spec
class ChoiceReader:
    """Reader of questions with choices; the label is a number from 0, a letter from A, or the correct choice itself."""

    text: str
    label: str

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path, [self.text, self.label]).read_rows():
            choices = read_choices(row.values, row.location)
            if len(choices) < 2:
                raise data_error(
                    f"{row.location}: at least two choices are needed, as a list 'choices' or as columns choice1, "
                    f"choice2, …, got {len(choices)}"
                )
            yield Example(
                text=row.get_text(self.text), choices=choices, label=self._read_label(row, choices), id=_get_line(row)
            )

    def _read_label(self, row: TableRow, choices: Sequence[str]) -> int:
        value = str(row.get(self.label) if row.get(self.label) is not None else "").strip()
        names = row.values.get("choices")
        letters = [str(name) for name in names["label"]] if isinstance(names, dict) and "label" in names else []
        if value in letters:
            return letters.index(value)
        if value.isdecimal():
            place = int(value)
        elif len(value) == 1 and value.isascii() and value.isalpha():
            place = ord(value.upper()) - ord("A")
        else:
            place = choices.index(value) if value in choices else len(choices)
        if place >= len(choices):
            raise data_error(
                f"{row.location}: '{self.label}' must be the correct one of {len(choices)} choices: a number from 0 to "
                f"{len(choices) - 1}, a letter from A, or the choice itself, got {value[:40]!r}"
            )
        return place


@spec
class TextPairReader:
    """Reader of texts and the texts to generate from them."""

    text: str
    label: str

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path, [self.text, self.label]).read_rows():
            target = row.get_text(self.label)
            yield Example(text=row.get_text(self.text), target=target, answers=(target,), id=_get_line(row))


TypeReader = TagListReader | SpanReader | SquadReader | ChoiceReader | TextPairReader


def is_squad(path: Path) -> bool:
    """Return True for a SQuAD file, a single JSON document."""
    return ".json" in {suffix.lower() for suffix in path.suffixes[-2:]}


def read_choices(values: Mapping[str, Any], location: str) -> tuple[str, ...]:
    """Return the choices of a row: a list, or its numbered or lettered columns in order."""
    names = {str(name).strip().lower(): name for name in values}
    for name in _CHOICE_LISTS:
        if name in names:
            options = values[names[name]]
            options = options.get("text") if isinstance(options, dict) else options
            if not isinstance(options, list | tuple) or not all(
                isinstance(option, str) and option.strip() for option in options
            ):
                raise data_error(f"{location}: '{name}' must be a list of texts, got {str(options)[:40]}")
            return tuple(options)
    numbered_columns = sorted(
        (int(match[1]), name) for name in values if (match := _NUMBERED_COLUMN.fullmatch(str(name).strip()))
    )
    columns = [name for _, name in numbered_columns]
    if not columns:
        columns = [letter for letter in "ABCDEFGH" if letter in values]
    cells = [values[column] for column in columns]
    while cells and not str(cells[-1] if cells[-1] is not None else "").strip():
        cells.pop()  # a question may have fewer choices than the table has columns
    for cell in cells:
        if not isinstance(cell, str) or not cell.strip():
            raise data_error(f"{location}: an empty choice before the last one; fill it in, or remove the row")
    return tuple(cells)


def _read_strings(row: TableRow, column: str) -> tuple[str, ...]:
    values = row.get(column)
    if not isinstance(values, list):
        raise data_error(
            f"{row.location}: '{column}' must be a list, got {str(values)[:40]!r}; use JSONL with lists, or CoNLL"
        )
    return tuple(str(value) for value in values)


def _read_answers(row: TableRow, column: str) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Return answers and their starts, if known: text, a list of texts, or SQuAD's {"text", "answer_start"}."""
    value: Any = row.get(column)
    starts: Any = row.values.get("answer_start")
    if isinstance(value, dict):
        value, starts = value.get("text"), value.get("answer_start")
    texts = [value] if isinstance(value, str | None) else value
    if not isinstance(texts, list) or not all(isinstance(text, str | None) for text in texts):
        raise data_error(
            f"{row.location}: '{column}' must be text that is part of the context, got {str(value)[:40]!r}"
        )
    places: list[Any] = starts if isinstance(starts, list) else [starts] * len(texts)
    if len(places) != len(texts):
        raise data_error(f"{row.location}: {len(texts)} answers and {len(places)} starts; every answer needs one start")
    pairs = [
        (text, _parse_start(row, start)) for text, start in zip(texts, places, strict=True) if text and text.strip()
    ]
    return tuple(text for text, _ in pairs), tuple(start for _, start in pairs)


def _parse_start(row: TableRow, value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not str(value).isdecimal():
        raise data_error(f"{row.location}: 'answer_start' must be a character index, got {str(value)[:40]!r}")
    return int(value)


def _find_answer(row: TableRow, context: str, answer: str, start: int | None) -> tuple[int, int]:
    position = context.find(answer) if start is None else start
    if position < 0 or context[position : position + len(answer)] != answer:
        place = "" if start is None else f" at character {start}"
        raise data_error(f"{row.location}: answer {answer[:40]!r} is not in the context{place}; fix the row")
    return position, position + len(answer)


def _get_line(row: TableRow) -> str:
    return row.location.rpartition(":")[2]


def build_reader(type: str, table: TableFile, text: str | None, label: str | None, pair: str | None) -> TypeReader:
    """Return the reader of a table for a type of `DEFAULT_COLUMNS`, with the named or the default columns."""
    if type == "span" and is_squad(table.path):
        if text or label or pair:
            raise UsageError(f"{table.path}: SQuAD's JSON has no columns to name; remove --text, --pair and --label")
        return SquadReader()
    if type == "tagging" and table.form != "jsonl":
        raise DataError(f"{table.path}: tagging needs a CoNLL file, or JSONL with a list of words and a list of tags")
    column_names = {"text": text, "label": label, "pair": pair}
    columns = {
        role: pick_column(table, column_names[role], defaults, role) for role, defaults in DEFAULT_COLUMNS[type].items()
    }
    classes: dict[str, Any] = {
        "tagging": TagListReader,
        "span": SpanReader,
        "choice": ChoiceReader,
        "text": TextPairReader,
    }
    reader: TypeReader = classes[type](**columns)
    return reader
