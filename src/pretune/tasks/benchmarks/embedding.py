"""Similarity and retrieval: STS of SemEval 2012 to 2016 (Agirre et al.), Cranfield (Cleverdon, 1967), and Multi30k.

A year of STS has several sets, one per file; `group` is the set. STS-B is a selection from these sets.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Tsv, read_score
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines
from pretune.tasks.task import SplitFile, Task, Template

SCALE = (0.0, 5.0)
"""From unrelated to equivalent."""


def read_sts(path: Path) -> Iterator[Example]:
    """Yield every pair of a file, with year and set as the group."""
    group = ".".join(path.name.split(".")[:2])
    for row in Tsv(columns=("score", "sentence1", "sentence2")).read_rows(path):
        yield Example(
            text=row.get_text("sentence1"),
            pair=row.get_text("sentence2"),
            label=read_score(row, "score", SCALE),
            group=group,
        )


def build_sts_task(name: str, files: str, rows: int) -> Task:
    """Return the task of a year's test sets, or of all years."""
    splits = {"test": (SplitFile(f"{files}.test.tsv", read_sts, rows=rows),)}
    if files in ("2012.*", "*"):
        train = SplitFile("2012.*.train.tsv", read_sts, rows=2234)
        splits = {"train": (train,), **splits}
    return Task(
        name=name,
        kind="regression",
        metrics=("spearman", "pearson"),
        scale=SCALE,
        folders=("sts12-16",),
        splits=splits,
        template=Template(source="stsb sentence1: {text} sentence2: {pair}", target="{score}"),
    )


STS12 = build_sts_task("sts12", "2012.*", 3108)
"""STS 2012: paraphrases, video captions and translations, scored from 0 to 5"""
STS13 = build_sts_task("sts13", "2013.*", 1500)
"""STS 2013: definitions and headlines (without the set SMT, which is not freely available)"""
STS14 = build_sts_task("sts14", "2014.*", 3750)
"""STS 2014: forums, news, headlines, captions, definitions and tweets"""
STS15 = build_sts_task("sts15", "2015.*", 3000)
"""STS 2015: answers of forums and students, beliefs, headlines and captions"""
STS16 = build_sts_task("sts16", "2016.*", 1186)
"""STS 2016: answers, headlines, plagiarism, post-edited translations and questions"""
STS = build_sts_task("sts12-16", "*", 12544)
"""STS 2012 to 2016, all sets"""


def read_documents(path: Path) -> Iterator[Example]:
    """Yield every document: its text, which begins with its title; two have neither."""
    for number, fields in _read_entries(path):
        text = " ".join(fields.get(".W", [])) or " ".join(fields.get(".T", []))
        yield Example(text=text or "(no text)", id=number)


def read_queries(path: Path) -> Iterator[Example]:
    """Yield every query, with the ids of its relevant documents as answers."""
    relevant: dict[str, list[str]] = {}
    relevance_file = path.with_name(path.name.replace("cran.qry", "cranqrel"))
    for number, line in read_lines(relevance_file):
        cells = line.split()
        if cells and len(cells) != 3:
            raise DataError(f"{relevance_file}:{number}: expected query, document and code, got {line[:40]!r}")
        if cells:
            relevant.setdefault(cells[0], []).append(cells[1])
    for place, (_, fields) in enumerate(_read_entries(path), start=1):
        yield Example(text=" ".join(fields[".W"]), answers=tuple(relevant.get(str(place), ())), id=str(place))


def _read_entries(path: Path) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield (number, lines by field) of every entry."""
    number, field = "", ""
    fields: dict[str, list[str]] = {}
    for line, text in read_lines(path):
        if text.startswith(".I"):
            if number:
                yield number, fields
            number, fields = text[2:].strip(), {}
        elif text.strip() in (".T", ".A", ".B", ".W"):
            field = text.strip()
        elif text.strip():
            if not number or not field:
                raise DataError(f"{os.fspath(path)}:{line}: expected .I and a field before text, got {text[:40]!r}")
            fields.setdefault(field, []).append(text.strip())
    if number:
        yield number, fields


CRANFIELD = Task(
    name="cranfield",
    kind="retrieval",
    metrics=("ndcg", "recall", "mrr"),
    splits={
        "test": (SplitFile("cran.qry", read_queries, rows=225),),
        "documents": (SplitFile("cran.all.1400", read_documents, rows=1400),),
    },
)
"""Cranfield: which of 1,400 abstracts answer a query? (Cleverdon, 1967)"""


def read_numbered_lines(path: Path) -> Iterator[Example]:
    """Yield every line, whose relevant document is the line with the same number."""
    for number, text in read_lines(path):
        yield Example(text=text, answers=(str(number),), id=str(number))


MULTI30K_LINES = Task(
    name="multi30k_lines",
    kind="retrieval",
    metrics=("mrr", "recall", "ndcg"),
    folders=("multi30k",),
    splits={
        "test": (SplitFile("test_2016_flickr.de", read_numbered_lines, rows=1000),),
        "documents": (SplitFile("test_2016_flickr.en", read_numbered_lines, rows=1000),),
    },
)
"""Multi30k: which of 1,000 English captions is the translation of a German one?"""
