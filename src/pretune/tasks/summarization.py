"""Summarization: XSum, SAMSum, and CNN/DailyMail (JSONL, or the published stories with their URL lists)."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Csv, Fields, Jsonl, RowReader, read_lines, read_text
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template

_TEMPLATE = Template(source="summarize: {text}", target="{target}")

_xsum = RowReader(table=Jsonl(), make=Fields(text="document", target="summary", id="id"))
XSUM = Task(
    name="xsum",
    kind="generation",
    metrics=("rouge",),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=_xsum),)),
        "dev": TaskSplit(published_name="validation", files=(SplitFile(path="validation.jsonl", reader=_xsum),)),
        "test": TaskSplit(
            published_name="test",
            files=(
                SplitFile(path="test.jsonl", reader=_xsum),
                SplitFile(path="test_sample.jsonl", reader=_xsum, rows=1000, is_partial=True),
            ),
        ),
    },
    template=_TEMPLATE,
)
"""XSum: a news article in one sentence (Narayan et al., 2018)"""

_samsum = RowReader(table=Jsonl(), make=Fields(text="context", target="response"))
SAMSUM = Task(
    name="samsum",
    kind="generation",
    metrics=("rouge",),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=_samsum),)),
        "dev": TaskSplit(
            published_name="validation", files=(SplitFile(path="validation.jsonl", reader=_samsum, rows=818),)
        ),
        "test": TaskSplit(published_name="test", files=(SplitFile(path="test.jsonl", reader=_samsum, rows=819),)),
    },
    template=_TEMPLATE,
)
"""SAMSum: the summary of a chat (Gliwa et al., 2019)"""


URL_LISTS = "url_lists"
"""Folder of the URL lists of See et al."""


def read_stories(path: Path) -> Iterator[Example]:
    """Yield the stories of a URL list; a story's file is named by the SHA-1 of its URL."""
    home = path.parent.parent if path.parent.name == URL_LISTS else path.parent
    folders = (home / "cnn" / "stories", home / "dailymail" / "stories")
    for number, address in read_lines(path):
        if not address.strip():
            continue
        name = hashlib.sha1(address.strip().encode(), usedforsecurity=False).hexdigest()
        story_files = [folder / f"{name}.story" for folder in folders if (folder / f"{name}.story").exists()]
        if not story_files:
            raise DataError(
                f"{path}:{number}: story {name}.story of {address.strip()[:80]!r} not found in {folders[0].parent}"
            )
        article, *highlights = "".join(read_text(story_files[0])).split("@highlight")
        points = [" ".join(point.split()) for point in highlights if point.strip()]
        if not points or not article.strip():
            raise DataError(f"{story_files[0]}: expected a story and at least one @highlight")
        yield Example(text=article.strip(), target="\n".join(points), id=name)


_cnndm_fields = Fields(text="article", target="highlights", id="id")


def _build_cnndm_files(split_name: str, url_list: str) -> tuple[SplitFile, ...]:
    """Return the formats of a split: JSONL or CSV, or the stories and their URL list."""
    return (
        SplitFile(path=f"{split_name}.jsonl", reader=RowReader(table=Jsonl(), make=_cnndm_fields)),
        SplitFile(path=f"{split_name}.csv", reader=RowReader(table=Csv(), make=_cnndm_fields)),
        SplitFile(path=f"all_{url_list}.txt", reader=read_stories),
        SplitFile(path=f"{URL_LISTS}/all_{url_list}.txt", reader=read_stories),
    )


CNNDM = Task(
    name="cnndm",
    kind="generation",
    metrics=("rouge",),
    folders=("cnndm", "cnn_dailymail"),
    splits={
        split: TaskSplit(published_name=published_name, files=_build_cnndm_files(published_name, url_list))
        for split, published_name, url_list in (
            ("train", "train", "train"),
            ("dev", "validation", "val"),
            ("test",) * 3,
        )
    },
    template=_TEMPLATE,
)
"""CNN/DailyMail: the highlights of a news story (Hermann et al., 2015; See et al., 2017)"""
