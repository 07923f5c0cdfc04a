"""Semantic roles in CoNLL columns: CoNLL-2005 (Carreras and Màrquez, 2005) and CoNLL-2012 (Pradhan et al., 2012).

After the words, each predicate of a sentence has a column of brackets; an example is a sentence with one of its
predicates, and its tags are the arguments in IOB2. The predicate itself (V) is part of the input, so it has no tag.

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
from pretune.tasks.benchmarks.conll import read_sentences
from pretune.tasks.example import Example
from pretune.tasks.task import SplitFile, Task

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


_ADJUNCTS_2005 = (
    "ADV", "CAU", "DIR", "DIS", "EXT", "LOC", "MNR", "MOD", "NEG", "PNC", "PRD", "REC", "TM", "TMP",
)  # fmt: skip
_ROLES_2005 = (*(f"A{number}" for number in range(6)), "AA", "AM", *(f"AM-{kind}" for kind in _ADJUNCTS_2005))
_ADJUNCTS_2012 = (
    "ADJ", "ADV", "CAU", "COM", "DIR", "DIS", "DSP", "EXT", "GOL", "LNK", "LOC", "LVB", "MNR", "MOD", "NEG", "PNC",
    "PRD", "PRP", "PRR", "PRX", "REC", "SLC", "TMP",
)  # fmt: skip
_ROLES_2012 = (*(f"ARG{number}" for number in range(6)), "ARGA", *(f"ARGM-{kind}" for kind in _ADJUNCTS_2012))

_columns_2005 = RoleReader(labels=_list_tags(_ROLES_2005))
CONLL2005 = Task(
    name="conll2005_srl",
    kind="srl",
    metrics=("argument_f1",),
    folders=("conll2005_srl", "conll05", "conll2005"),
    labels=_columns_2005.labels,
    splits={
        split: tuple(SplitFile(name, _columns_2005) for name in names)
        for split, names in {
            "train": ("train-set", "conll05.train.txt"),
            "dev": ("dev-set", "devel-set", "conll05.devel.txt"),
            "test": ("test.wsj", "conll05.test.wsj.txt"),
            "test_brown": ("test.brown", "conll05.test.brown.txt"),
        }.items()
    },
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
    splits={
        split: (
            SplitFile(f"{name}.english.v4_gold_conll", _columns_2012),
            SplitFile(f"**/{folder}/data/english/**/*gold_conll", _columns_2012),
        )
        for split, name, folder in (
            ("train", "train", "train"),
            ("dev", "dev", "development"),
            ("test", "test", "test"),
        )
    },
    group_field="group",
)
"""CoNLL-2012: arguments of the predicates of OntoNotes 5 (Pradhan et al., 2012)"""
