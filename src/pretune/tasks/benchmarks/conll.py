"""Columns, one word per line: entities of CoNLL-2003, roles of CoNLL-2005 and 2012, and Universal Dependencies.

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

Universal Dependencies (Nivre et al., 2020) are CoNLL-U, with parts of speech and dependency trees. A sentence is a
block of lines of ten columns, after comments such as `# text = …`. Multiword tokens (`1-2`) and empty nodes (`8.1`) are
no words: the words are the lines with a whole number, and heads refer to these.

    1   She    she    PRON   …   2   nsubj   …
    2   read   read   VERB   …   0   root    …
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.log import join_names
from pretune.tasks.benchmarks.readers import list_files
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines
from pretune.tasks.task import Task

if TYPE_CHECKING:  # the module of sequences imports torch
    from pretune.data.sequences import Ints

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
    """A reader of columns between blanks (or tabs): the word is the first one, `tag` the index of the tag."""

    tag: int = -1
    labels: tuple[str, ...] = ()  # allowed tags; empty: any

    def __call__(self, path: Path) -> Iterator[Example]:
        name, document = os.fspath(path), -1
        for start, block in read_sentences(path):
            if block[0][1][0] == _DOCUMENT:
                document += 1
                block = block[1:]
            if not block:
                continue
            for line, cells in block:
                if len(cells) < 2 or not -len(cells) <= self.tag < len(cells):
                    raise DataError(
                        f"{name}:{line}: no column {self.tag}, the line has {len(cells)}; expected a word and its tag"
                    )
            words = tuple(cells[0] for _, cells in block)
            tags = tuple(normalize_tags([cells[self.tag] for _, cells in block]))
            for (line, _), tag in zip(block, tags, strict=True):
                _check_label(tag, self.labels, f"{name}:{line}")
            group = None if document < 0 else str(document)
            yield Example(text=" ".join(words), words=words, tags=tags, id=str(start), group=group)


def _check_label(label: str, labels: Sequence[str], location: str, noun: str = "tag") -> None:
    if labels and label not in labels:
        raise DataError(f"{location}: {noun} must be one of {join_names(labels)}, got {label[:40]!r}")


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
CONLL2003 = Task(
    name="conll2003",
    kind="tagging",
    metrics=("entity_f1", "tag_accuracy"),
    labels=_NER,
    splits=list_files(ConllReader(labels=_NER), train="eng.train 14041", dev="eng.testa 3250", test="eng.testb 3453"),
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
                    _check_label(tag, self.labels, f"{name}:{start}")
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


COLUMNS = 10
"""Columns of a CoNLL-U line: id, form, lemma, UPOS, XPOS, features, head, relation, enhanced relations, other."""
FORM, HEAD, RELATION = 1, 6, 7

_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
UPOS = tuple(_UPOS.split())
"""The seventeen universal parts of speech."""

_EWT = """
    acl acl:relcl advcl advcl:relcl advmod amod appos aux aux:pass case cc cc:preconj ccomp compound compound:prt
    conj cop csubj csubj:outer csubj:pass dep det det:predet discourse dislocated expl fixed flat goeswith iobj list
    mark nmod nmod:desc nmod:poss nmod:unmarked nsubj nsubj:outer nsubj:pass nummod obj obl obl:agent obl:unmarked
    orphan parataxis punct reparandum root vocative xcomp
"""
EWT_RELATIONS = tuple(_EWT.split())
"""Relations of the English Web Treebank, with their subtypes."""


@dataclass(frozen=True, slots=True)
class ConlluSentence:
    """A sentence of a CoNLL-U file: its comments, and the cells of its words."""

    location: str  # file and line
    line: int
    comments: Mapping[str, str]
    words: tuple[tuple[int, tuple[str, ...]], ...]  # (line, cells)

    def get_column(self, column: int) -> tuple[str, ...]:
        """Return one cell of every word."""
        return tuple(cells[column] for _, cells in self.words)

    def build_example(self, tags: Sequence[str], heads: Sequence[int] = ()) -> Example:
        """Return the example of the sentence with these tags."""
        words = self.get_column(FORM)
        return Example(
            text=self.comments.get("text", " ".join(words)),
            words=words,
            tags=tuple(tags),
            heads=tuple(heads),
            id=self.comments.get("sent_id", str(self.line)),
        )


def read_conllu(path: Path) -> Iterator[ConlluSentence]:
    """Yield the sentences of a CoNLL-U file that have words; raise DataError for a line without ten columns."""
    name = os.fspath(path)
    for start, block in read_sentences(path):
        comments: dict[str, str] = {}
        words: list[tuple[int, tuple[str, ...]]] = []
        for line, cells in block:
            if cells[0].startswith("#"):
                key, _, value = " ".join(cells).lstrip("# ").partition(" = ")
                comments[key] = value
                continue
            if len(cells) != COLUMNS:
                raise DataError(f"{name}:{line}: a CoNLL-U line must have 10 columns, got {len(cells)}")
            if cells[0].isdecimal():
                words.append((line, tuple(cells)))
                if int(cells[0]) != len(words):
                    raise DataError(f"{name}:{line}: word {cells[0][:20]} must have the number {len(words)}")
        if words:
            yield ConlluSentence(f"{name}:{start}", start, comments, tuple(words))


@spec
class ConlluReader:
    """A reader of words and one column of tags: 3 for UPOS, 4 for XPOS."""

    tag: int = 3
    labels: tuple[str, ...] = UPOS

    def __call__(self, path: Path) -> Iterator[Example]:
        for sentence in read_conllu(path):
            for line, cells in sentence.words:
                _check_label(cells[self.tag], self.labels, f"{path}:{line}")
            yield sentence.build_example(sentence.get_column(self.tag))


@spec
class DependencyReader:
    """A reader of words, heads and relations; every sentence must be a tree with one root."""

    labels: tuple[str, ...] = ()  # allowed relations; empty: any

    def __call__(self, path: Path) -> Iterator[Example]:
        for sentence in read_conllu(path):
            heads: list[int] = []
            for line, cells in sentence.words:
                _check_label(cells[RELATION], self.labels, f"{path}:{line}", "relation")
                if not cells[HEAD].isdecimal() or int(cells[HEAD]) > len(sentence.words):
                    raise DataError(
                        f"{os.fspath(path)}:{line}: head must be a number from 0 to {len(sentence.words)}, "
                        f"got {cells[HEAD][:20]!r}"
                    )
                heads.append(int(cells[HEAD]))
            if not is_tree(heads):
                raise DataError(
                    f"{sentence.location}: the heads must be a tree with one root, got {str(heads)[:80]}; fix the "
                    "sentence, or remove it"
                )
            yield sentence.build_example(sentence.get_column(RELATION), heads)


def is_tree(heads: Sequence[int]) -> bool:
    """Return True if heads (from 1; 0 is the root) are a tree with one word below the root.

    >>> is_tree([2, 0, 2]), is_tree([2, 1, 0]), is_tree([0, 0]), is_tree([0, 3])
    (True, False, False, False)
    """
    if list(heads).count(0) != 1 or not all(0 <= head <= len(heads) for head in heads):
        return False
    return find_cycle(np.array([0, *heads])) is None


def find_cycle(heads: "Ints") -> "Ints | None":
    """Return the nodes of a cycle below node 0, or None; `heads` has the head of each node."""
    state = np.zeros(len(heads), dtype=np.int64)  # the walk that reached a node first
    state[0] = -1
    for start in range(1, len(heads)):
        node = start
        while not state[node]:
            state[node] = start
            node = int(heads[node])
        if state[node] == start:
            cycle = [node]
            while (following := int(heads[cycle[-1]])) != node:
                cycle.append(following)
            return np.array(cycle)
    return None


_FILES = {
    "train": "en_ewt-ud-train.conllu 12544",
    "dev": "en_ewt-ud-dev.conllu 2001",
    "test": "en_ewt-ud-test.conllu 2077",
}
UD_EWT = Task(
    name="ud_ewt",
    kind="tagging",
    metrics=("tag_accuracy",),
    labels=UPOS,
    splits=list_files(ConlluReader(), **_FILES),
)
"""UD English EWT: universal parts of speech of web text (Silveira et al., 2014)"""

UD_EWT_DEP = Task(
    name="ud_ewt_dep",
    kind="dependency",
    metrics=("attachment",),
    folders=("ud_ewt",),
    labels=EWT_RELATIONS,
    splits=list_files(DependencyReader(labels=EWT_RELATIONS), **_FILES),
)
"""UD English EWT: dependency trees of web text (Silveira et al., 2014)"""
