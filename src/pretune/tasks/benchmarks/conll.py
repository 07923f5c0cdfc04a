"""CoNLL columns: one word per line, blank lines between sentences; CoNLL-2003's named entities (Tjong Kim Sang, 2003).

Published in IOB1, where an entity begins with I- unless it touches one of the same type. The reader converts to IOB2,
where every entity begins with B-: the entities, and so their F1, are the same. Users' files may be in BILOU, which is
IOBES with other letters.

    >>> normalize_tags(["I-PER", "I-PER", "O", "I-ORG", "B-ORG", "I-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-ORG', 'B-ORG', 'B-LOC']
    >>> normalize_tags(["U-PER", "O", "B-LOC", "L-LOC"])
    ['S-PER', 'O', 'B-LOC', 'E-LOC']
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.log import join_names
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines
from pretune.tasks.task import SplitFile, Task

_DOCUMENT = "-DOCSTART-"
_IOBES_PREFIXES = {"U-": "S-", "L-": "E-"}


def normalize_tags(tags: Sequence[str]) -> list[str]:
    """Convert IOB1 tags to IOB2, and BILOU tags to IOBES; other tags are unchanged."""
    normalized_tags: list[str] = []
    previous = "O"
    for tag in tags:
        tag = _IOBES_PREFIXES.get(tag[:2], tag[:2]) + tag[2:]
        starts = tag.startswith("I-") and (previous[:2] not in ("B-", "I-") or previous[2:] != tag[2:])
        normalized_tags.append("B-" + tag[2:] if starts else tag)
        previous = tag
    return normalized_tags


@spec
class ConllReader:
    """A reader of columns between blanks (or tabs): indices of the word and the tag column."""

    word: int = 0
    tag: int = -1
    labels: tuple[str, ...] = ()  # allowed tags; empty: any

    def __call__(self, path: Path) -> Iterator[Example]:
        name, document = os.fspath(path), -1
        for start, block in read_sentences(path):
            if block[0][1][self.word] == _DOCUMENT:
                document += 1
                block = block[1:]
            if not block:
                continue
            words = tuple(self._get_cell(cells, self.word, name, line) for line, cells in block)
            tags = tuple(normalize_tags([self._get_cell(cells, self.tag, name, line) for line, cells in block]))
            for (line, _), tag in zip(block, tags, strict=True):
                if self.labels and tag not in self.labels:
                    raise DataError(f"{name}:{line}: tag must be one of {join_names(self.labels)}, got {tag[:40]!r}")
            group = None if document < 0 else str(document)
            yield Example(text=" ".join(words), words=words, tags=tags, id=str(start), group=group)

    def _get_cell(self, cells: Sequence[str], index: int, name: str, line: int) -> str:
        if not -len(cells) <= index < len(cells) or len(cells) < 2:
            raise DataError(f"{name}:{line}: no column {index}, the line has {len(cells)}; expected a word and its tag")
        return cells[index]


def read_sentences(path: Path) -> Iterator[tuple[int, list[tuple[int, list[str]]]]]:
    """Yield (first line, [(line, cells), …]) of every block between blank lines."""
    block: list[tuple[int, list[str]]] = []
    for number, line in read_lines(path):
        cells = line.split("\t") if "\t" in line else line.split()
        if any(cell.strip() for cell in cells):
            block.append((number, cells))
        elif block:
            yield block[0][0], block
            block = []
    if block:
        yield block[0][0], block


_NER = ("O", *(f"{part}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for part in "BI"))
_conll = ConllReader(labels=_NER)
CONLL2003 = Task(
    name="conll2003",
    kind="tagging",
    metrics=("entity_f1", "tag_accuracy"),
    labels=_NER,
    splits={
        "train": (SplitFile("eng.train", _conll, rows=14041),),
        "dev": (SplitFile("eng.testa", _conll, rows=3250),),
        "test": (SplitFile("eng.testb", _conll, rows=3453),),
    },
    group_field="group",
)
"""CoNLL-2003: persons, organizations, places and other names in the news (Tjong Kim Sang and De Meulder, 2003)"""
