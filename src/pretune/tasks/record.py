"""ReCoRD (Zhang et al., 2018): which entity of a passage fills the blank in a sentence? Several may be correct.

As in T5, the passage's highlights become sentences of it, and the candidates are its distinct entities.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Jsonl, TableRow
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template


def read(path: Path) -> Iterator[Example]:
    """Yield every query of every passage; the label is the first correct choice, `answers` are all."""
    for row in Jsonl().read_rows(path):
        try:
            yield from _parse_queries(row)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{row.location}: not a passage with entities and queries ({error!r})") from None


def _parse_queries(row: TableRow) -> Iterator[Example]:
    passage = row.get("passage")["text"]
    places = sorted((place["start"], place["end"] + 1) for place in row.get("passage")["entities"])
    names = tuple(dict.fromkeys(passage[start:end] for start, end in places))
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
    text = text.replace("\n@highlight\n", ". ")
    for query in row.get("qas"):
        answers = tuple(dict.fromkeys(answer["text"] for answer in query.get("answers", ())))
        correct = [index for index, name in enumerate(names) if name in answers]
        if answers and not correct:
            raise DataError(f"{row.location}: no answer of query {query['idx']} is an entity of the passage")
        yield Example(
            text=text,
            pair=query["query"],
            choices=names,
            label=correct[0] if correct else None,
            answers=answers,
            id=f"{row.get('idx')}-{query['idx']}",
            group=str(row.get("idx")),
            facts={"entities": ", ".join(names)},
        )


RECORD = Task(
    name="record",
    kind="choice",
    metrics=("record",),
    folders=("record", "ReCoRD"),
    splits={
        "train": TaskSplit(
            published_name="train",
            files=(
                SplitFile(path="train.jsonl", reader=read),
                SplitFile(path="train32.jsonl", reader=read, rows=32, is_partial=True),
            ),
        ),
        "dev": TaskSplit(
            published_name="validation",
            files=(
                SplitFile(path="val.jsonl", reader=read),
                SplitFile(path="dev32.jsonl", reader=read, rows=32, is_partial=True),
            ),
        ),
    },
    template=Template(source="record query: {pair} entities: {entities} passage: {text}", target="{answer}"),
    group_field="group",
)
"""ReCoRD: which entity of a passage fills the blank in a sentence? (Zhang et al., 2018)"""
