"""Text generation: summaries (XSum, SAMSum, CNN/DailyMail) and translation (Multi30k)."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Csv, Fields, RowReader
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl, read_lines, read_text
from pretune.tasks.task import SplitFile, Task, Template

_TEMPLATE = Template(source="summarize: {text}", target="{target}")

_xsum = RowReader(table=Jsonl(), make=Fields(text="document", target="summary", id="id"))
XSUM = Task(
    name="xsum",
    kind="generation",
    metrics=("rouge",),
    splits={
        "train": (SplitFile("train.jsonl", _xsum),),
        "dev": (SplitFile("validation.jsonl", _xsum),),
        "test": (SplitFile("test.jsonl", _xsum), SplitFile("test_sample.jsonl", _xsum, rows=1000, is_partial=True)),
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
        "train": (SplitFile("train.jsonl", _samsum),),
        "dev": (SplitFile("validation.jsonl", _samsum, rows=818),),
        "test": (SplitFile("test.jsonl", _samsum, rows=819),),
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
        SplitFile(f"{split_name}.jsonl", RowReader(table=Jsonl(), make=_cnndm_fields)),
        SplitFile(f"{split_name}.csv", RowReader(table=Csv(), make=_cnndm_fields)),
        SplitFile(f"all_{url_list}.txt", read_stories),
        SplitFile(f"{URL_LISTS}/all_{url_list}.txt", read_stories),
    )


CNNDM = Task(
    name="cnndm",
    kind="generation",
    metrics=("rouge",),
    folders=("cnndm", "cnn_dailymail"),
    splits={
        split: _build_cnndm_files(stem, url_list)
        for split, stem, url_list in (("train", "train", "train"), ("dev", "validation", "val"), ("test",) * 3)
    },
    template=_TEMPLATE,
)
"""CNN/DailyMail: the highlights of a news story (Hermann et al., 2015; See et al., 2017)"""


@spec
class ParallelReader:
    """A reader of `NAME.en` and `NAME.de` in one folder: one sentence per line, as many lines in both."""

    source: str
    target: str
    skip_blank: bool = False  # skip lines that are blank on one side, as in parliamentary proceedings

    def __call__(self, path: Path) -> Iterator[Example]:
        target_path = path.with_name(f".{self.target}".join(path.name.rsplit(f".{self.source}", 1)))
        if not target_path.exists():
            raise DataError(f"{path}: its translation {target_path.name} is missing in the same folder")
        source_lines, target_lines = read_lines(path), read_lines(target_path)
        for number, text in source_lines:
            _, target = next(target_lines, (0, None))
            is_one_blank = target is not None and bool(text.strip()) != bool(target.strip())
            if target is None or (is_one_blank and not self.skip_blank):
                raise DataError(
                    f"{path}:{number}: no matching line in {target_path.name}; the files must be aligned line by line"
                )
            if text.strip() and target.strip():
                yield Example(text=text, target=target, id=str(number))
        if any(target.strip() for _, target in target_lines):
            raise DataError(f"{target_path}: more lines than {path.name}; the files must be aligned line by line")


_en_de = ParallelReader(source="en", target="de")
MULTI30K = Task(
    name="multi30k",
    kind="generation",
    metrics=("bleu", "chrf"),
    splits={
        split: (SplitFile(f"{stem}.en", _en_de, rows=rows),)
        for split, stem, rows in (
            ("train", "train", 29000),
            ("dev", "val", 1014),
            ("test", "test_2016_flickr", 1000),
            ("test_2017", "test_2017_flickr", 1000),
            ("test_2017_mscoco", "test_2017_mscoco", 461),
            ("test_2018", "test_2018_flickr", 1071),
        )
    },
    template=Template(source="translate English to German: {text}", target="{target}"),
)
"""Multi30k: image captions from English to German (Elliott et al., 2016)"""
