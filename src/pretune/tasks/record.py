"""ReCoRD (Zhang et al., 2018): which of a passage's names fills the gap in a sentence? Several may be right.

As in T5, the passage's highlights become sentences of it, and the candidates are its different names.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Jsonl, Row
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template


def read(path: Path) -> Iterator[Example]:
    """Every query of every passage; the label is the first right choice, `answers` are all."""
    for row in Jsonl().rows(path):
        try:
            yield from _queries(row)
        except (KeyError, TypeError, ValueError) as fault:
            raise DataError(f"{row.where}: not a passage with entities and queries ({fault!r})") from None


def _queries(row: Row) -> Iterator[Example]:
    passage = row.get("passage")["text"]
    places = sorted((place["start"], place["end"] + 1) for place in row.get("passage")["entities"])
    names = tuple(dict.fromkeys(passage[start:end] for start, end in places))
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
    text = text.replace("\n@highlight\n", ". ")
    for query in row.get("qas"):
        answers = tuple(dict.fromkeys(answer["text"] for answer in query.get("answers", ())))
        right = [at for at, name in enumerate(names) if name in answers]
        if answers and not right:
            raise DataError(f"{row.where}: none of the answers of query {query['idx']} is a name of the passage")
        yield Example(
            text=text,
            pair=query["query"],
            choices=names,
            label=right[0] if right else None,
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
        "train": Split(
            published="train",
            files=(
                File(path="train.jsonl", read=read),
                File(path="train32.jsonl", read=read, rows=32, partial=True),
            ),
        ),
        "dev": Split(
            published="validation",
            files=(File(path="val.jsonl", read=read), File(path="dev32.jsonl", read=read, rows=32, partial=True)),
        ),
    },
    template=Template(source="record query: {pair} entities: {entities} passage: {text}", target="{answer}"),
    together="group",
)
"""ReCoRD: which name of a passage fills the gap in a sentence? (Zhang et al., 2018)"""
