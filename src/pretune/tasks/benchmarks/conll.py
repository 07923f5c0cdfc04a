"""CoNLL columns, one word per line: the named entities of CoNLL-2003, the semantic roles of CoNLL-2005 and 2012.

Entities (Tjong Kim Sang, 2003) are published in IOB1, where an entity begins with I- unless it touches one of the same
type. The reader converts to IOB2, where every entity begins with B-: the entities, and so their F1, are the same.
Users' files may be in BILOU, which is IOBES with other letters.

    >>> normalize_tags(["I-PER", "I-PER", "O", "I-ORG", "B-ORG", "I-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-ORG', 'B-ORG', 'B-LOC']
    >>> normalize_tags(["U-PER", "O", "B-LOC", "L-LOC"])
    ['S-PER', 'O', 'B-LOC', 'E-LOC']

For roles (Carreras and Màrquez, 2005; Pradhan et al., 2012), each predicate of a sentence has a column of brackets
after the words; an example is a sentence with one of its predicates, and its tags are the arguments in IOB2. The
predicate itself (V) is part of the input, so it has no tag.

    The  -       (A0*          O, B-A0 …
    cat  -       *)
    sat  sit     (V*)
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.log import join_names
from pretune.tasks.benchmarks.readers import list_files
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines
from pretune.tasks.task import Task

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
    splits=list_files(_conll, train="eng.train 14041", dev="eng.testa 3250", test="eng.testb 3453"),
    group_field="group",
)
"""CoNLL-2003: persons, organizations, places and other names in the news (Tjong Kim Sang and De Meulder, 2003)"""


Columns = Sequence[Sequence[str]]

PREDICATE_ROLES = frozenset({"V", "C-V"})
"""Roles of the predicate, which is given; `C-V` is its particle."""


def parse_brackets(cells: Sequence[str], location: str) -> list[str]:
    """Return the IOB2 tags of a column of brackets; predicates get `O`. Raises DataError for unbalanced brackets.

    >>> parse_brackets(["(A0*", "*)", "(V*)", "(AM-TMP*)"], "file:1")
    ['B-A0', 'I-A0', 'O', 'B-AM-TMP']
    """
    tags: list[str] = []
    role = ""
    for cell in cells:
        opening, star, closing = cell.partition("*")
        is_start = opening.startswith("(")
        if not star or (opening and (role or not is_start or not opening[1:] or "(" in opening[1:])):
            raise DataError(f"{location}: cell {cell[:40]!r} is no bracket such as '(A0*', '*' or '*)'")
        role = opening[1:] or role
        if closing not in ("", ")") or (closing and not role):
            raise DataError(f"{location}: cell {cell[:40]!r} closes a bracket that is not open")
        is_argument = role and role not in PREDICATE_ROLES
        tags.append(f"{'B' if is_start else 'I'}-{role}" if is_argument else "O")
        role = "" if closing else role
    if role:
        raise DataError(f"{location}: the bracket of {role[:40]!r} is not closed")
    return tags


@spec
class RoleReader:
    """A reader of words and a column of arguments for each predicate: indices of the columns.

    Without `arguments`, they follow the column of predicates, which has a verb for each of them and "-" elsewhere
    (CoNLL-2005, with or without columns of syntax before it). `end` counts the columns after the arguments.
    """

    word: int = 0
    arguments: int | None = None
    end: int = 0
    labels: tuple[str, ...] = ()  # allowed tags; empty: any

    def __call__(self, path: Path) -> Iterator[Example]:
        name = os.fspath(path)
        for start, lines in read_sentences(path):
            block = [cells for _, cells in lines if not cells[0].startswith(("#begin", "#end"))]
            if not block:
                continue
            widths = {len(cells) for cells in block}
            if len(widths) > 1 or min(widths) <= max(self.word, (self.arguments or 0) - 1) + self.end:
                raise DataError(f"{name}:{start}: all lines of a sentence must have the same number of columns")
            columns = [[cells[index] for cells in block] for index in range(min(widths) - self.end)]
            arguments, verbs = self._find_arguments(columns, f"{name}:{start}")
            words = tuple(columns[self.word])
            for number, (column, verb) in enumerate(zip(arguments, verbs, strict=True), start=1):
                tags = parse_brackets(column, f"{name}:{start}")
                for tag in tags:
                    if self.labels and tag not in self.labels:
                        raise DataError(
                            f"{name}:{start}: tag must be one of {join_names(self.labels)}, got {tag[:40]!r}"
                        )
                yield Example(
                    text=" ".join(words),
                    words=words,
                    tags=tuple(tags),
                    predicate=verb,
                    id=f"{start}-{number}",
                    group=str(start),
                )

    def _find_arguments(self, columns: Columns, location: str) -> tuple[Columns, list[int]]:
        """Return the columns of arguments, and the word that is the predicate of each."""
        if self.arguments is not None:
            arguments = columns[self.arguments :]
            verbs = [next((word for word, cell in enumerate(column) if "(V*" in cell), -1) for column in arguments]
            if -1 not in verbs:
                return arguments, verbs
        for index in range(self.word + 1, len(columns) if self.arguments is None else 0):
            arguments = columns[index + 1 :]
            verbs = [word for word, cell in enumerate(columns[index]) if cell != "-"]
            if len(verbs) == len(arguments) and all("*" in cell for column in arguments for cell in column):
                return arguments, verbs
        raise DataError(f"{location}: no predicate for each column of arguments; expected CoNLL-2005 or 2012 columns")


def _list_tags(roles: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of roles, of their continuations (C-) and of references to them (R-)."""
    kinds = [f"{prefix}{role}" for role in roles for prefix in ("", "C-", "R-")]
    return ("O", *(f"{part}-{kind}" for kind in kinds for part in "BI"))


_ADJUNCTS_2005 = "ADV CAU DIR DIS EXT LOC MNR MOD NEG PNC PRD REC TM TMP"
_ROLES_2005 = (*(f"A{number}" for number in range(6)), "AA", "AM", *(f"AM-{kind}" for kind in _ADJUNCTS_2005.split()))
_ADJUNCTS_2012 = "ADJ ADV CAU COM DIR DIS DSP EXT GOL LNK LOC LVB MNR MOD NEG PNC PRD PRP PRR PRX REC SLC TMP"
_ROLES_2012 = (*(f"ARG{number}" for number in range(6)), "ARGA", *(f"ARGM-{kind}" for kind in _ADJUNCTS_2012.split()))

_columns_2005 = RoleReader(labels=_list_tags(_ROLES_2005))
CONLL2005 = Task(
    name="conll2005_srl",
    kind="srl",
    metrics=("argument_f1",),
    folders=("conll2005_srl", "conll05", "conll2005"),
    labels=_columns_2005.labels,
    splits=list_files(
        _columns_2005,
        train="train-set | conll05.train.txt",
        dev="dev-set | devel-set | conll05.devel.txt",
        test="test.wsj | conll05.test.wsj.txt",
        test_brown="test.brown | conll05.test.brown.txt",
    ),
    group_field="group",
)
"""CoNLL-2005: arguments of the verbs of the Wall Street Journal (Carreras and Màrquez, 2005)"""

_columns_2012 = RoleReader(word=3, arguments=11, end=1, labels=_list_tags(_ROLES_2012))
CONLL2012 = Task(
    name="conll2012_srl",
    kind="srl",
    metrics=("argument_f1",),
    folders=("conll2012_srl", "conll-2012", "conll2012"),
    labels=_columns_2012.labels,
    splits=list_files(
        _columns_2012,
        train="train.english.v4_gold_conll | **/train/data/english/**/*gold_conll",
        dev="dev.english.v4_gold_conll | **/development/data/english/**/*gold_conll",
        test="test.english.v4_gold_conll | **/test/data/english/**/*gold_conll",
    ),
    group_field="group",
)
"""CoNLL-2012: arguments of the predicates of OntoNotes 5 (Pradhan et al., 2012)"""
