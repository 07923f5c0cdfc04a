"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018): the span of a paragraph that answers a question, or none.

The published JSON: articles of paragraphs of questions. `spans` are characters of `pair`, the paragraph.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretune.core.errors import DataError
from pretune.core.io.strict_json import parse_json
from pretune.tasks.example import Example
from pretune.tasks.table_rows import read_text
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template


def read(path: Path) -> Iterator[Example]:
    """Every question, in order; an answer that is not where it is said to be is an error."""
    name = os.fspath(path)
    data = parse_json("".join(read_text(path)), DataError, name)
    at = "data"
    try:
        for a, article in enumerate(data["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                at = f"data[{a}].paragraphs[{p}]"
                for question in paragraph["qas"]:
                    yield _parse_question(question, paragraph["context"], article.get("title", str(a)), f"{name}: {at}")
    except (KeyError, TypeError, AttributeError) as fault:
        raise DataError(f"{name}: {at} is not as SQuAD's JSON is ({fault!r})") from None


def _parse_question(question: dict[str, Any], context: str, title: str, location: str) -> Example:
    spans: list[tuple[int, int]] = []
    for answer in question["answers"]:
        start, text = answer["answer_start"], answer["text"]
        if context[start : start + len(text)] != text:
            raise DataError(f"{location}: the answer {text[:40]!r} of question {question['id']!r} is not at {start}")
        spans.append((start, start + len(text)))
    return Example(
        text=question["question"],
        pair=context,
        spans=tuple(spans),
        answers=tuple(answer["text"] for answer in question["answers"]),
        id=str(question["id"]),
        group=title,
    )


_TEMPLATE = Template(source="question: {text} context: {pair}", target="{answer}")

SQUAD1 = Task(
    name="squad1",
    kind="span",
    metrics=("squad",),
    splits={
        "train": TaskSplit(
            published_name="train",
            files=(
                SplitFile(path="train-v1.1.json", reader=read),
                SplitFile(path="train_subset.json", reader=read, rows=4000, is_partial=True),
            ),
        ),
        "dev": TaskSplit(
            published_name="dev",
            files=(SplitFile(path="dev-v1.1.json", reader=read), SplitFile(path="dev.json", reader=read, rows=10570)),
        ),
    },
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 1.1: the words of a paragraph that answer a question (Rajpurkar et al., 2016)"""

SQUAD2 = Task(
    name="squad2",
    kind="span",
    metrics=("squad2",),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train-v2.0.json", reader=read),)),
        "dev": TaskSplit(
            published_name="dev",
            files=(SplitFile(path="dev-v2.0.json", reader=read), SplitFile(path="dev.json", reader=read, rows=11873)),
        ),
    },
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 2.0: the same, with questions that the paragraph does not answer (Rajpurkar et al., 2018)"""
