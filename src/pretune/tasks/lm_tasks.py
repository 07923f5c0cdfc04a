"""Tasks without training, for language models as they are: BLiMP's minimal pairs and LAMBADA's last words."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Fields, Jsonl, Row, Rows, lines
from pretune.tasks.task import File, Split, Task

_blimp = Rows(
    table=Jsonl(),
    make=Fields(text="sentence_good", pair="sentence_bad", group="UID", id="pairID", facts=("linguistics_term",)),
)
BLIMP = Task(
    name="blimp",
    kind="pairs",
    metrics=("choice_accuracy",),
    splits={"test": Split(published="all 67 sets", files=(File(path="*.jsonl", read=_blimp, rows=67000),))},
)
"""BLiMP: sentences that differ in one point of grammar; the better should be likelier (Warstadt et al., 2020)"""


def _last_word(text: str, where: str) -> Example:
    before, space, last = text.rpartition(" ")
    if not space:
        raise DataError(f"{where}: one word alone; a passage and its last word are expected")
    return Example(text=before, target=last)


def _json(row: Row) -> Example:
    return _last_word(row.text("text"), row.where)


def _plain(path: Path) -> Iterator[Example]:
    return (_last_word(text.strip(), f"{path}:{number}") for number, text in lines(path) if text.strip())


LAMBADA = Task(
    name="lambada",
    kind="cloze",
    metrics=("accuracy",),
    splits={
        "dev": Split(
            published="development (tokenised)",
            files=(File(path="lambada_development_plain_text.txt", read=_plain, rows=4869),),
        ),
        "test": Split(
            published="test", files=(File(path="lambada_test.jsonl", read=Rows(table=Jsonl(), make=_json), rows=5153),)
        ),
        "test_tokenized": Split(
            published="test (tokenised)", files=(File(path="lambada_test_plain_text.txt", read=_plain, rows=5153),)
        ),
    },
)
"""LAMBADA: the last word of a passage, which the last sentence alone does not give (Paperno et al., 2016)"""
