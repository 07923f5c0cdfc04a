"""Summaries: XSum, SAMSum, and CNN/DailyMail, as JSONL or as the published stories with their lists of addresses."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Csv, Fields, Jsonl, Rows, lines, text_of
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template

_TEMPLATE = Template(source="summarize: {text}", target="{target}")

_xsum = Rows(table=Jsonl(), make=Fields(text="document", target="summary", id="id"))
XSUM = Task(
    name="xsum",
    kind="generation",
    metrics=("rouge",),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_xsum),)),
        "dev": Split(published="validation", files=(File(path="validation.jsonl", read=_xsum),)),
        "test": Split(
            published="test",
            files=(
                File(path="test.jsonl", read=_xsum),
                File(path="test_sample.jsonl", read=_xsum, rows=1000, partial=True),
            ),
        ),
    },
    template=_TEMPLATE,
)
"""XSum: a news article in one sentence (Narayan et al., 2018)"""

_samsum = Rows(table=Jsonl(), make=Fields(text="context", target="response"))
SAMSUM = Task(
    name="samsum",
    kind="generation",
    metrics=("rouge",),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_samsum),)),
        "dev": Split(published="validation", files=(File(path="validation.jsonl", read=_samsum, rows=818),)),
        "test": Split(published="test", files=(File(path="test.jsonl", read=_samsum, rows=819),)),
    },
    template=_TEMPLATE,
)
"""SAMSum: what was said in a chat (Gliwa et al., 2019)"""


LISTS = "url_lists"
"""The folder in which See et al. keep the lists of addresses."""


def stories(path: Path) -> Iterator[Example]:
    """The stories of a list of addresses: each lies in a file named by the SHA-1 of its address."""
    home = path.parent.parent if path.parent.name == LISTS else path.parent
    folders = (home / "cnn" / "stories", home / "dailymail" / "stories")
    for number, address in lines(path):
        if not address.strip():
            continue
        name = hashlib.sha1(address.strip().encode(), usedforsecurity=False).hexdigest()
        found = [folder / f"{name}.story" for folder in folders if (folder / f"{name}.story").exists()]
        if not found:
            raise DataError(
                f"{path}:{number}: no story {name}.story for {address.strip()[:80]!r} in {folders[0].parent}"
            )
        article, *highlights = "".join(text_of(found[0])).split("@highlight")
        points = [" ".join(point.split()) for point in highlights if point.strip()]
        if not points or not article.strip():
            raise DataError(f"{found[0]}: a story and at least one @highlight are expected")
        yield Example(text=article.strip(), target="\n".join(points), id=name)


_fields = Fields(text="article", target="highlights", id="id")


def _cnndm(published: str, listed: str) -> tuple[File, ...]:
    """The forms of a split: rows of JSON or CSV, or the stories and a list of their addresses."""
    return (
        File(path=f"{published}.jsonl", read=Rows(table=Jsonl(), make=_fields)),
        File(path=f"{published}.csv", read=Rows(table=Csv(), make=_fields)),
        File(path=f"all_{listed}.txt", read=stories),
        File(path=f"{LISTS}/all_{listed}.txt", read=stories),
    )


CNNDM = Task(
    name="cnndm",
    kind="generation",
    metrics=("rouge",),
    folders=("cnndm", "cnn_dailymail"),
    splits={
        split: Split(published=published, files=_cnndm(published, listed))
        for split, published, listed in (("train", "train", "train"), ("dev", "validation", "val"), ("test",) * 3)
    },
    template=_TEMPLATE,
)
"""CNN/DailyMail: the highlights of a news story (Hermann et al., 2015; See et al., 2017)"""
