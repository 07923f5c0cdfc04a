"""Readers of users' tables whose labels are no class and no score: tags, spans, choices and texts.

    tagging   JSONL: a list of words and a list of tags ("words", "tags")
    span      a question, a context and the answer as it stands in it ("question", "context", "answer"); SQuAD's JSON
    choice    a text, its choices ("choices": a list, or columns choice1, choice2, …, or A, B, …) and the right one
    text      a text and the text to generate ("text", "target")

Every fault is a `DataError` with the file and the line of its row.
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
"""Default columns of each type by role: the first that the table has."""
_CHOICE_LISTS = ("choices", "options", "endings")
_NUMBERED_COLUMN = re.compile(r"(?:choice|option|ending|answer)_?(\d+)", re.IGNORECASE)


@spec
class TagListReader:
    """Reader of sentences as lists: words, and one tag each."""

    text: str
    label: str
    labels: tuple[str, ...] = ()  # the tags that are allowed; any where there are none

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path).read_rows():
            words, tags = (_read_strings(row, column) for column in (self.text, self.label))
            if not words or len(words) != len(tags):
                raise data_error(f"{row.location}: {len(words)} words and {len(tags)} tags; each word needs one tag")
            tags = tuple(to_iob2(tags))
            for tag in tags:
                if self.labels and tag not in self.labels:
                    raise data_error(f"{row.location}: tag {tag[:40]!r} is not one of the training data")
            yield Example(text=" ".join(words), words=words, tags=tags, id=_get_line(row))


@spec
class SpanReader:
    """Reader of questions whose answers stand in a context; an empty answer: the context has none."""

    text: str
    pair: str
    label: str

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path, [self.text, self.pair, self.label]).read_rows():
            context = row.get_text(self.pair)
            answers, starts = _read_answers(row, self.label)
            spans = tuple(_find_answer(row, context, one, at) for one, at in zip(answers, starts, strict=True))
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
    """Reader of questions with choices; the label is a number from 0, a letter from A, or the right choice itself."""

    text: str
    label: str

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in open_table(path, [self.text, self.label]).read_rows():
            choices = read_choices(row.values, row.location)
            if len(choices) < 2:
                raise data_error(
                    f"{row.location}: {len(choices)} choices; at least two are needed, as a list 'choices' or as columns "
                    "choice1, choice2, …"
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
                f"{row.location}: '{self.label}' holds {value[:40]!r}; the right one of {len(choices)} choices is a "
                f"number from 0 to {len(choices) - 1}, a letter from A, or the choice itself"
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
    """True for SQuAD's own files, one JSON document each."""
    return ".json" in {suffix.lower() for suffix in path.suffixes[-2:]}


def read_choices(values: Mapping[str, Any], location: str) -> tuple[str, ...]:
    """The choices of a row: a list, or its numbered or lettered columns in their order."""
    names = {str(name).strip().lower(): name for name in values}
    for name in _CHOICE_LISTS:
        if name in names:
            listed = values[names[name]]
            listed = listed.get("text") if isinstance(listed, dict) else listed
            if not isinstance(listed, list | tuple) or not all(isinstance(one, str) and one.strip() for one in listed):
                raise data_error(f"{location}: '{name}' must be a list of texts, found {str(listed)[:40]}")
            return tuple(listed)
    numbered = sorted(
        (int(match[1]), name) for name in values if (match := _NUMBERED_COLUMN.fullmatch(str(name).strip()))
    )
    columns = [name for _, name in numbered]
    if not columns:
        columns = [letter for letter in "ABCDEFGH" if letter in values]
    cells = [values[column] for column in columns]
    while cells and not str(cells[-1] if cells[-1] is not None else "").strip():
        cells.pop()  # a question may have fewer choices than the table has columns
    for cell in cells:
        if not isinstance(cell, str) or not cell.strip():
            raise data_error(f"{location}: an empty choice before the last one; fill it in, or leave the row out")
    return tuple(cells)


def _read_strings(row: TableRow, column: str) -> tuple[str, ...]:
    found = row.get(column)
    if not isinstance(found, list):
        raise data_error(
            f"{row.location}: '{column}' holds {str(found)[:40]!r}; a list is expected (JSONL), or a CoNLL file"
        )
    return tuple(str(one) for one in found)


def _read_answers(row: TableRow, column: str) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Answers and where each starts, if that is known: text, a list of texts, or SQuAD's {"text", "answer_start"}."""
    found: Any = row.get(column)
    starts: Any = row.values.get("answer_start")
    if isinstance(found, dict):
        found, starts = found.get("text"), found.get("answer_start")
    texts = [found] if isinstance(found, str | None) else found
    if not isinstance(texts, list) or not all(isinstance(one, str | None) for one in texts):
        raise data_error(
            f"{row.location}: '{column}' holds {str(found)[:40]!r}; an answer is text that stands in the context"
        )
    places: list[Any] = starts if isinstance(starts, list) else [starts] * len(texts)
    if len(places) != len(texts):
        raise data_error(f"{row.location}: {len(texts)} answers and {len(places)} starts; each answer needs one")
    known = [(one, _parse_start(row, at)) for one, at in zip(texts, places, strict=True) if one and one.strip()]
    return tuple(one for one, _ in known), tuple(at for _, at in known)


def _parse_start(row: TableRow, value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not str(value).isdecimal():
        raise data_error(
            f"{row.location}: 'answer_start' holds {str(value)[:40]!r}; a number of characters is expected"
        )
    return int(value)


def _find_answer(row: TableRow, context: str, answer: str, start: int | None) -> tuple[int, int]:
    at = context.find(answer) if start is None else start
    if at < 0 or context[at : at + len(answer)] != answer:
        where = "" if start is None else f" at character {start}"
        raise data_error(
            f"{row.location}: the answer {answer[:40]!r} does not stand in the context{where}; mend the row"
        )
    return at, at + len(answer)


def _get_line(row: TableRow) -> str:
    return row.location.rpartition(":")[2]


def build_reader(type: str, table: TableFile, text: str | None, label: str | None, pair: str | None) -> TypeReader:
    """The reader of a table for a type of `DEFAULT_COLUMNS`, with the columns that are named or the default ones."""
    if type == "span" and is_squad(table.path):
        if text or label or pair:
            raise UsageError(f"{table.path}: SQuAD's JSON has no columns to name; leave --text, --pair and --label out")
        return SquadReader()
    if type == "tagging" and table.form != "jsonl":
        raise DataError(f"{table.path}: tagging reads CoNLL files, or JSONL with a list of words and a list of tags")
    named = {"text": text, "label": label, "pair": pair}
    columns = {role: pick_column(table, named[role], usual, role) for role, usual in DEFAULT_COLUMNS[type].items()}
    classes: dict[str, Any] = {
        "tagging": TagListReader,
        "span": SpanReader,
        "choice": ChoiceReader,
        "text": TextPairReader,
    }
    made: TypeReader = classes[type](**columns)
    return made
