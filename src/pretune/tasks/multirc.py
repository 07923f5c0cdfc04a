"""MultiRC (Khashabi et al., 2018): a passage, questions, and answers of which any number is correct; one example each.

The examples of a question share `group`; F1a is computed over all answers, EM over questions.
"""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.superglue import BOOLEAN_LABELS
from pretune.tasks.table_rows import Jsonl, TableRow
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template


def read(path: Path) -> Iterator[Example]:
    """Yield every answer of every question of every passage."""
    for row in Jsonl().read_rows(path):
        try:
            yield from _parse_answers(row)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{row.location}: not a passage with questions and answers ({error!r})") from None


def _parse_answers(row: TableRow) -> Iterator[Example]:
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
    labels=BOOLEAN_LABELS,
    folders=("multirc", "MultiRC"),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=read, rows=27243),)),
        "dev": TaskSplit(published_name="validation", files=(SplitFile(path="val.jsonl", reader=read, rows=4848),)),
    },
    template=Template(source="multirc question: {question} answer: {answer} paragraph: {text}", targets=BOOLEAN_LABELS),
    group_field="text",
)
"""MultiRC: which of a question's answers are correct? Any number may be (Khashabi et al., 2018)"""
