"""Multiple choice: COPA, SWAG, HellaSwag, WinoGrande, ARC and CommonsenseQA."""

import re
import zlib

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Csv, Jsonl, Row, Rows, index
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template

_LETTERS = ("A", "B", "C", "D", "E")


def _copa_example(row: Row) -> Example:
    asked = row.get("question")
    if asked not in ("cause", "effect"):
        raise DataError(f"{row.where}: question {str(asked)[:40]!r} is neither 'cause' nor 'effect'")
    return Example(
        text=row.text("premise"),
        pair="What was the cause of this?" if asked == "cause" else "What happened as a result?",
        choices=(row.text("choice1"), row.text("choice2")),
        label=index(row, "label", ("0", "1")),
        id=str(row.get("idx")),
        facts={"question": asked},
    )


_copa = Rows(table=Jsonl(), make=_copa_example)
COPA = Task(
    name="copa",
    kind="choice",
    metrics=("choice_accuracy",),
    folders=("copa", "COPA"),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_copa, rows=400),)),
        "dev": Split(published="validation", files=(File(path="val.jsonl", read=_copa, rows=100),)),
    },
    template=Template(
        source="copa choice1: {choice1} choice2: {choice2} premise: {text} question: {question}",
        targets=("choice1", "choice2"),
    ),
)
"""COPA: which of two sentences is the cause, or the effect, of a third? (Roemmele et al., 2011)"""


def _swag_example(row: Row) -> Example:
    # As in BERT's experiments: the second sentence's beginning is part of every choice.
    choices = tuple(f"{row.text('sent2')} {row.text(f'ending{at}')}" for at in range(4))
    return Example(text=row.text("sent1"), choices=choices, label=index(row, "label", ("0", "1", "2", "3")))


_swag = Rows(table=Csv(), make=_swag_example)
SWAG = Task(
    name="swag",
    kind="choice",
    metrics=("choice_accuracy",),
    folders=("swag", "SWAG"),
    splits={
        "train": Split(published="train", files=(File(path="train.csv", read=_swag),)),
        "dev": Split(published="val", files=(File(path="val.csv", read=_swag),)),
    },
)
"""SWAG: which of four endings goes on with a caption? (Zellers et al., 2018)"""


def _hellaswag_example(row: Row) -> Example:
    return Example(
        text=row.text("ctx"),
        choices=tuple(row.get("endings")),
        label=index(row, "label", ("0", "1", "2", "3")),
        id=str(row.get("ind")),
        group=row.get("activity_label"),
    )


_hellaswag = Rows(table=Jsonl(), make=_hellaswag_example)
HELLASWAG = Task(
    name="hellaswag",
    kind="choice",
    metrics=("choice_accuracy",),
    splits={
        "train": Split(published="train", files=(File(path="hellaswag_train.jsonl", read=_hellaswag),)),
        "dev": Split(
            published="val",
            files=(
                File(path="hellaswag_val.jsonl", read=_hellaswag),
                File(path="val_sample.jsonl", read=_hellaswag, rows=1000, partial=True),
            ),
        ),
    },
)
"""HellaSwag: which of four endings goes on with a text, where wrong ones deceive models? (Zellers et al., 2019)"""


def _winogrande_example(row: Row) -> Example:
    return Example(
        text=row.text("sentence"),
        choices=(row.text("option1"), row.text("option2")),
        label=index(row, "answer", ("1", "2")),
        id=row.get("qID"),
    )


def _winogrande_answers(row: Row) -> Example:
    """A row with its right answer first: the two are put in an order that the sentence's checksum gives."""
    text = re.sub(r" (?:Who|What) does the blank refer to in the sentence\?$", "", row.text("Question"))
    label = zlib.crc32(text.encode()) & 1
    two = [row.text("Answer"), row.text("Wrong_Answer")]
    return Example(text=text, choices=(two[label], two[1 - label]), label=label)


_winogrande = Rows(table=Jsonl(), make=_winogrande_example)
_answers = Rows(table=Csv(), make=_winogrande_answers)
WINOGRANDE = Task(
    name="winogrande",
    kind="choice",
    metrics=("choice_accuracy",),
    folders=("winogrande", "winogrande_1.1"),
    splits={
        "train": Split(
            published="train_xl",
            files=(
                File(path="train_xl.jsonl", read=_winogrande),
                File(path="train_subset.csv", read=_answers, rows=10000, partial=True),
            ),
        ),
        "dev": Split(published="dev", files=(File(path="dev.jsonl", read=_winogrande),)),
        "test": Split(
            published="part of train", files=(File(path="test_subset.csv", read=_answers, rows=7538, partial=True),)
        ),
    },
)
"""WinoGrande: which of two nouns fills the blank of a sentence? (Sakaguchi et al., 2020)"""


def _arc_published(row: Row) -> Example:
    asked = row.get("question")
    letters = tuple(choice["label"] for choice in asked["choices"])
    return Example(
        text=asked["stem"],
        choices=tuple(choice["text"] for choice in asked["choices"]),
        label=index(row, "answerKey", letters),
        id=str(row.get("id")),
    )


def _arc_columns(row: Row) -> Example | None:
    """A row of question, four choices and key; one that lacks its right choice (a fifth, or all) is left out."""
    choices = [row.get(letter) for letter in _LETTERS[:4]]
    while choices and not choices[-1].strip():
        choices.pop()  # some questions have three
    label = _LETTERS.index(row.get("key")) if row.get("key") in _LETTERS else 99
    if label >= len(choices):
        return None
    return Example(text=row.text("question"), choices=tuple(choices), label=label)


_arc_jsonl = Rows(table=Jsonl(), make=_arc_published)
_arc_csv = Rows(table=Csv(columns=("question", *_LETTERS[:4], "key")), make=_arc_columns)


def _arc(part: str, train: int, dev: int) -> dict[str, Split]:
    """ARC's two splits; the counts are those of the rows that have their right choice."""
    lower = part.lower()
    return {
        "train": Split(
            published="train",
            files=(
                File(path=f"ARC-{part}/ARC-{part}-Train.jsonl", read=_arc_jsonl),
                File(path=f"arc_{lower}_train.csv", read=_arc_csv, rows=train, partial=True),
            ),
        ),
        "dev": Split(
            published="dev",
            files=(
                File(path=f"ARC-{part}/ARC-{part}-Dev.jsonl", read=_arc_jsonl),
                File(path=f"arc_{lower}_dev.csv", read=_arc_csv, rows=dev, partial=True),
            ),
        ),
        "test": Split(published="test", files=(File(path=f"ARC-{part}/ARC-{part}-Test.jsonl", read=_arc_jsonl),)),
    }


ARC_EASY = Task(
    name="arc_easy", kind="choice", metrics=("choice_accuracy",), folders=("arc", "ARC-V1-Feb2018-2"),
    splits=_arc("Easy", 2147, 549),
)  # fmt: skip
"""ARC-Easy: science questions of schools, with up to five choices (Clark et al., 2018)"""

ARC_CHALLENGE = Task(
    name="arc_challenge", kind="choice", metrics=("choice_accuracy",), folders=("arc", "ARC-V1-Feb2018-2"),
    splits=_arc("Challenge", 1096, 294),
)  # fmt: skip
"""ARC-Challenge: those that retrieval and co-occurrence get wrong (Clark et al., 2018)"""

_both = {
    split: Split(published=published, files=(File(path=f"arc_*_{split}.csv", read=_arc_csv, rows=rows, partial=True),))
    for split, published, rows in (("train", "train", 2147 + 1096), ("dev", "dev", 549 + 294))
}
ARC = Task(name="arc", kind="choice", metrics=("choice_accuracy",), splits=_both)
"""ARC: the challenge and the easy questions together (Clark et al., 2018)"""


def _commonsense_example(row: Row) -> Example:
    asked = row.get("question")
    if isinstance(asked, dict):  # as published
        stem, listed = asked["stem"], asked["choices"]
        letters, texts = [one["label"] for one in listed], [one["text"] for one in listed]
    else:
        stem, letters, texts = asked, row.get("choices")["label"], row.get("choices")["text"]
    return Example(
        text=stem, choices=tuple(texts), label=index(row, "answerKey", tuple(letters)), id=str(row.get("id"))
    )


_commonsense = Rows(table=Jsonl(), make=_commonsense_example)
COMMONSENSEQA = Task(
    name="commonsenseqa",
    kind="choice",
    metrics=("choice_accuracy",),
    splits={
        "train": Split(published="train", files=(File(path="train_rand_split.jsonl", read=_commonsense),)),
        "dev": Split(
            published="dev",
            files=(
                File(path="dev_rand_split.jsonl", read=_commonsense),
                File(path="dev.jsonl", read=_commonsense, rows=1221),
            ),
        ),
    },
)
"""CommonsenseQA: questions that need what everybody knows, with five choices (Talmor et al., 2019)"""
