"""MultiRC (Khashabi et al., 2018): a passage, questions, and answers of which any number is right; an example each.

The examples of a question share `group`; F1a is counted over all answers, EM over whole questions.
"""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.superglue import TRUTH
from pretune.tasks.table_rows import Jsonl, Row
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template


def read(path: Path) -> Iterator[Example]:
    """Every answer of every question of every passage."""
    for row in Jsonl().rows(path):
        try:
            yield from _answers(row)
        except (KeyError, TypeError, ValueError) as fault:
            raise DataError(f"{row.where}: not a passage with questions and answers ({fault!r})") from None


def _answers(row: Row) -> Iterator[Example]:
    passage = row.get("passage")
    for question in passage["questions"]:
        for answer in question["answers"]:
            yield Example(
                text=passage["text"],
                pair=f"{question['question']} {answer['text']}",
                label=int(answer["label"]) if "label" in answer else None,
                id=f"{row.get('idx')}-{question['idx']}-{answer['idx']}",
                group=f"{row.get('idx')}-{question['idx']}",
                facts={"question": question["question"], "answer": answer["text"]},
            )


MULTIRC = Task(
    name="multirc",
    kind="pair",
    metrics=("multirc",),
    labels=TRUTH,
    folders=("multirc", "MultiRC"),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=read, rows=27243),)),
        "dev": Split(published="validation", files=(File(path="val.jsonl", read=read, rows=4848),)),
    },
    template=Template(source="multirc question: {question} answer: {answer} paragraph: {text}", targets=TRUTH),
    together="text",
)
"""MultiRC: which of a question's answers are right? Any number may be (Khashabi et al., 2018)"""
