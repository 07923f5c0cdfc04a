"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018): the span of a paragraph that answers a question, or none.

Published as JSON: articles of paragraphs of questions. `spans` are characters of `pair`, the paragraph.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretune.core.errors import DataError
from pretune.core.io.strict_json import parse_json
from pretune.tasks.example import Example
from pretune.tasks.table import read_text
from pretune.tasks.task import SplitFile, Task, Template


def read_squad(path: Path) -> Iterator[Example]:
    """Yield every question in order; raise DataError if an answer is not at its stated position."""
    name = os.fspath(path)
    data = parse_json("".join(read_text(path)), DataError, name)
    location = "data"
    try:
        for number, article in enumerate(data["data"]):
            for place, paragraph in enumerate(article["paragraphs"]):
                location = f"data[{number}].paragraphs[{place}]"
                for question in paragraph["qas"]:
                    yield _parse_question(
                        question, paragraph["context"], article.get("title", str(number)), f"{name}: {location}"
                    )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name}: {location} is not in SQuAD's format ({error!r})") from None


def _parse_question(question: dict[str, Any], context: str, title: str, location: str) -> Example:
    spans: list[tuple[int, int]] = []
    for answer in question["answers"]:
        start, text = answer["answer_start"], answer["text"]
        if context[start : start + len(text)] != text:
            raise DataError(f"{location}: answer {text[:40]!r} of question {question['id']!r} is not at {start}")
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
        "train": (
            SplitFile("train-v1.1.json", read_squad),
            SplitFile("train_subset.json", read_squad, rows=4000, is_partial=True),
        ),
        "dev": (SplitFile("dev-v1.1.json", read_squad), SplitFile("dev.json", read_squad, rows=10570)),
    },
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 1.1: the span of a paragraph that answers a question (Rajpurkar et al., 2016)"""

SQUAD2 = Task(
    name="squad2",
    kind="span",
    metrics=("squad2",),
    splits={
        "train": (SplitFile("train-v2.0.json", read_squad),),
        "dev": (SplitFile("dev-v2.0.json", read_squad), SplitFile("dev.json", read_squad, rows=11873)),
    },
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 2.0: SQuAD with questions that the paragraph does not answer (Rajpurkar et al., 2018)"""
