"""Universal Dependencies in CoNLL-U: parts of speech and dependency trees (Nivre et al., 2020).

A sentence is a block of lines of ten columns, after comments such as `# text = …`. Multiword tokens (`1-2`) and empty
nodes (`8.1`) are no words: the words are the lines with a whole number, and heads refer to these.

    1   She    she    PRON   …   2   nsubj   …
    2   read   read   VERB   …   0   root    …
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.log import join_names
from pretune.tasks.benchmarks.conll import read_sentences
from pretune.tasks.example import Example
from pretune.tasks.task import SplitFile, Task

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
            _check_labels(path, sentence, self.tag, self.labels, "tag")
            yield sentence.build_example(sentence.get_column(self.tag))


@spec
class DependencyReader:
    """A reader of words, heads and relations; every sentence must be a tree with one root."""

    labels: tuple[str, ...] = ()  # allowed relations; empty: any

    def __call__(self, path: Path) -> Iterator[Example]:
        for sentence in read_conllu(path):
            _check_labels(path, sentence, RELATION, self.labels, "relation")
            heads: list[int] = []
            for line, cells in sentence.words:
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
    for word in range(1, len(heads) + 1):
        steps = 0
        while word and steps <= len(heads):
            word, steps = heads[word - 1], steps + 1
        if word:
            return False
    return True


def _check_labels(path: Path, sentence: ConlluSentence, column: int, labels: Sequence[str], name: str) -> None:
    for line, cells in sentence.words:
        if labels and cells[column] not in labels:
            raise DataError(
                f"{os.fspath(path)}:{line}: {name} must be one of {join_names(labels)}, got {cells[column][:40]!r}"
            )


_FILES = (("train", 12544), ("dev", 2001), ("test", 2077))
_upos = ConlluReader()
UD_EWT = Task(
    name="ud_ewt",
    kind="tagging",
    metrics=("tag_accuracy",),
    labels=UPOS,
    splits={split: (SplitFile(f"en_ewt-ud-{split}.conllu", _upos, rows=rows),) for split, rows in _FILES},
)
"""UD English EWT: universal parts of speech of web text (Silveira et al., 2014)"""

_trees = DependencyReader(labels=EWT_RELATIONS)
UD_EWT_DEP = Task(
    name="ud_ewt_dep",
    kind="dependency",
    metrics=("attachment",),
    folders=("ud_ewt",),
    labels=EWT_RELATIONS,
    splits={split: (SplitFile(f"en_ewt-ud-{split}.conllu", _trees, rows=rows),) for split, rows in _FILES},
)
"""UD English EWT: dependency trees of web text (Silveira et al., 2014)"""
