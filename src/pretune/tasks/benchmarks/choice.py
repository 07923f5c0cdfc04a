"""Multiple choice: COPA, SWAG, HellaSwag, WinoGrande, ARC and CommonsenseQA."""

import re
import zlib
from functools import partial

from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Csv, RowReader, list_files, read_label_index
from pretune.tasks.example import Example
from pretune.tasks.table import TableRow
from pretune.tasks.task import Task, Template

_LETTERS = ("A", "B", "C", "D", "E")
_choice_task = partial(Task, kind="choice", metrics=("choice_accuracy",))


def _parse_copa(row: TableRow) -> Example:
    question = row.get("question")
    if question not in ("cause", "effect"):
        raise DataError(f"{row.location}: question must be 'cause' or 'effect', got {str(question)[:40]!r}")
    return Example(
        text=row.get_text("premise"),
        pair="What was the cause of this?" if question == "cause" else "What happened as a result?",
        choices=(row.get_text("choice1"), row.get_text("choice2")),
        label=read_label_index(row, "label", ("0", "1")),
        id=str(row.get("idx")),
        facts={"question": question},
    )


COPA = _choice_task(
    name="copa",
    folders=("copa", "COPA"),
    splits=list_files(RowReader(make=_parse_copa), train="train.jsonl 400", dev="val.jsonl 100"),
    template=Template(
        source="copa choice1: {choice1} choice2: {choice2} premise: {text} question: {question}",
        targets=("choice1", "choice2"),
    ),
)
"""COPA: which of two sentences is the cause, or the effect, of a third? (Roemmele et al., 2011)"""


def _parse_swag(row: TableRow) -> Example:
    # As in BERT's experiments, the start of the second sentence is part of every choice.
    choices = tuple(f"{row.get_text('sent2')} {row.get_text(f'ending{number}')}" for number in range(4))
    return Example(
        text=row.get_text("sent1"), choices=choices, label=read_label_index(row, "label", ("0", "1", "2", "3"))
    )


SWAG = _choice_task(
    name="swag",
    folders=("swag", "SWAG"),
    splits=list_files(RowReader(make=_parse_swag), train="train.csv", dev="val.csv"),
)
"""SWAG: which of four endings continues a caption? (Zellers et al., 2018)"""


def _parse_hellaswag(row: TableRow) -> Example:
    return Example(
        text=row.get_text("ctx"),
        choices=tuple(row.get("endings")),
        label=read_label_index(row, "label", ("0", "1", "2", "3")),
        id=str(row.get("ind")),
        group=row.get("activity_label"),
    )


_hellaswag = RowReader(make=_parse_hellaswag)
HELLASWAG = _choice_task(
    name="hellaswag",
    splits=list_files(
        _hellaswag, train="hellaswag_train.jsonl", dev="hellaswag_val.jsonl | val_sample.jsonl 1000 part"
    ),
)
"""HellaSwag: which of four endings continues a text? The wrong ones are adversarial (Zellers et al., 2019)"""


def _parse_winogrande(row: TableRow) -> Example:
    return Example(
        text=row.get_text("sentence"),
        choices=(row.get_text("option1"), row.get_text("option2")),
        label=read_label_index(row, "answer", ("1", "2")),
        id=row.get("qID"),
    )


def _parse_winogrande_answers(row: TableRow) -> Example:
    """Parse a row whose correct answer is first; a checksum of the sentence decides the order of the two."""
    text = re.sub(r" (?:Who|What) does the blank refer to in the sentence\?$", "", row.get_text("Question"))
    label = zlib.crc32(text.encode()) & 1
    answers = [row.get_text("Answer"), row.get_text("Wrong_Answer")]
    return Example(text=text, choices=(answers[label], answers[1 - label]), label=label)


WINOGRANDE = _choice_task(
    name="winogrande",
    folders=("winogrande", "winogrande_1.1"),
    splits=list_files(
        {"*.jsonl": RowReader(make=_parse_winogrande), "*.csv": RowReader(make=_parse_winogrande_answers)},
        train="train_xl.jsonl | train_subset.csv 10000 part",
        dev="dev.jsonl",
        test="test_subset.csv 7538 part",
    ),
)
"""WinoGrande: which of two nouns fills the blank of a sentence? (Sakaguchi et al., 2020)"""


def _parse_arc_jsonl(row: TableRow) -> Example:
    question = row.get("question")
    letters = tuple(choice["label"] for choice in question["choices"])
    return Example(
        text=question["stem"],
        choices=tuple(choice["text"] for choice in question["choices"]),
        label=read_label_index(row, "answerKey", letters),
        id=str(row.get("id")),
    )


def _parse_arc_csv(row: TableRow) -> Example | None:
    """Parse a row of question, four choices and key; None if the correct choice is missing (a fifth, or all)."""
    choices = [row.get(letter) for letter in _LETTERS[:4]]
    while choices and not choices[-1].strip():
        choices.pop()  # some questions have three
    label = _LETTERS.index(row.get("key")) if row.get("key") in _LETTERS else 99
    if label >= len(choices):
        return None
    return Example(text=row.get_text("question"), choices=tuple(choices), label=label)


_arc_csv = RowReader(table=Csv(columns=("question", *_LETTERS[:4], "key")), make=_parse_arc_csv)


def _build_arc(part: str, train: int, dev: int) -> Task:
    """Return a part of ARC; the counts are those of the rows that have their correct choice."""
    stem, csv = f"ARC-{part}/ARC-{part}", f"arc_{part.lower()}"
    return _choice_task(
        name=csv,
        folders=("arc", "ARC-V1-Feb2018-2"),
        splits=list_files(
            {"*.jsonl": RowReader(make=_parse_arc_jsonl), "*.csv": _arc_csv},
            train=f"{stem}-Train.jsonl | {csv}_train.csv {train} part",
            dev=f"{stem}-Dev.jsonl | {csv}_dev.csv {dev} part",
            test=f"{stem}-Test.jsonl",
        ),
    )


ARC_EASY = _build_arc("Easy", 2147, 549)
"""ARC-Easy: grade-school science questions, with up to five choices (Clark et al., 2018)"""

ARC_CHALLENGE = _build_arc("Challenge", 1096, 294)
"""ARC-Challenge: the questions that retrieval and co-occurrence answer wrongly (Clark et al., 2018)"""

ARC = _choice_task(
    name="arc",
    splits=list_files(_arc_csv, train="arc_*_train.csv 3243 part", dev="arc_*_dev.csv 843 part"),
)
"""ARC: the challenge and the easy questions (Clark et al., 2018)"""


def _parse_commonsense(row: TableRow) -> Example:
    question = row.get("question")
    if isinstance(question, dict):  # the published format
        stem, options = question["stem"], question["choices"]
        letters, texts = [option["label"] for option in options], [option["text"] for option in options]
    else:
        stem, letters, texts = question, row.get("choices")["label"], row.get("choices")["text"]
    return Example(
        text=stem, choices=tuple(texts), label=read_label_index(row, "answerKey", tuple(letters)), id=str(row.get("id"))
    )


_commonsense = RowReader(make=_parse_commonsense)
COMMONSENSEQA = _choice_task(
    name="commonsenseqa",
    splits=list_files(_commonsense, train="train_rand_split.jsonl", dev="dev_rand_split.jsonl | dev.jsonl 1221"),
)
"""CommonsenseQA: questions that need common sense, with five choices (Talmor et al., 2019)"""
