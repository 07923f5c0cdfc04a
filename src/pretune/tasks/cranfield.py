"""Cranfield (Cleverdon, 1967): queries about aerodynamics, documents and relevance judgments, in SMART format.

Queries are numbered from 1 by position in the file, not by their number there; every relevance code counts.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import read_lines
from pretune.tasks.task import SplitFile, Task, TaskSplit


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
        "test": TaskSplit(published_name="queries", files=(SplitFile(path="cran.qry", reader=read_queries, rows=225),)),
        "documents": TaskSplit(
            published_name="documents", files=(SplitFile(path="cran.all.1400", reader=read_documents, rows=1400),)
        ),
    },
)
"""Cranfield: which of 1,400 abstracts answer a query? (Cleverdon, 1967)"""
