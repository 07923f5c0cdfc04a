"""CoNLL-U, the format of Universal Dependencies (de Marneffe et al., 2021): ten columns, comments before a sentence.

Multiword tokens (`3-4`) and empty nodes (`5.1`) are skipped, as usual in tagging.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.format import join_names
from pretune.tasks.conll import read_sentences
from pretune.tasks.example import Example
from pretune.tasks.task import SplitFile, Task, TaskSplit

UPOS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM",
    "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X",
)  # fmt: skip
"""The seventeen universal parts of speech."""


@spec
class ConlluReader:
    """A reader of words and one column of tags: 3 for UPOS, 4 for XPOS."""

    tag: int = 3
    labels: tuple[str, ...] = UPOS

    def __call__(self, path: Path) -> Iterator[Example]:
        name = os.fspath(path)
        for start, block in read_sentences(path):
            comments: dict[str, str] = {}
            words: list[str] = []
            tags: list[str] = []
            for line, cells in block:
                if cells[0].startswith("#"):
                    key, _, value = " ".join(cells).lstrip("# ").partition(" = ")
                    comments[key] = value
                    continue
                if len(cells) != 10:
                    raise DataError(f"{name}:{line}: a CoNLL-U line must have 10 columns, got {len(cells)}")
                if cells[0].isdecimal():
                    words.append(cells[1])
                    tags.append(cells[self.tag])
                    if self.labels and tags[-1] not in self.labels:
                        raise DataError(
                            f"{name}:{line}: tag must be one of {join_names(self.labels)}, got {tags[-1][:40]!r}"
                        )
            if words:
                yield Example(
                    text=comments.get("text", " ".join(words)),
                    words=tuple(words),
                    tags=tuple(tags),
                    id=comments.get("sent_id", str(start)),
                )


_upos = ConlluReader()
UD_EWT = Task(
    name="ud_ewt",
    kind="tagging",
    metrics=("tag_accuracy",),
    labels=UPOS,
    splits={
        "train": TaskSplit(
            published_name="train", files=(SplitFile(path="en_ewt-ud-train.conllu", reader=_upos, rows=12544),)
        ),
        "dev": TaskSplit(
            published_name="dev", files=(SplitFile(path="en_ewt-ud-dev.conllu", reader=_upos, rows=2001),)
        ),
        "test": TaskSplit(
            published_name="test", files=(SplitFile(path="en_ewt-ud-test.conllu", reader=_upos, rows=2077),)
        ),
    },
)
"""UD English EWT: universal parts of speech of web text (Silveira et al., 2014)"""
