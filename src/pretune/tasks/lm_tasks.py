"""Tasks without training, for language models as they are: BLiMP's minimal pairs and LAMBADA's last words."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Fields, Jsonl, RowReader, TableRow, read_lines
from pretune.tasks.task import SplitFile, Task, TaskSplit

_blimp = RowReader(
    table=Jsonl(),
    make=Fields(text="sentence_good", pair="sentence_bad", group="UID", id="pairID", facts=("linguistics_term",)),
)
BLIMP = Task(
    name="blimp",
    kind="pairs",
    metrics=("choice_accuracy",),
    splits={
        "test": TaskSplit(published_name="all 67 sets", files=(SplitFile(path="*.jsonl", reader=_blimp, rows=67000),))
    },
)
"""BLiMP: sentences that differ in one point of grammar; the better should be likelier (Warstadt et al., 2020)"""


def _split_last_word(text: str, location: str) -> Example:
    before, space, last = text.rpartition(" ")
    if not space:
        raise DataError(f"{location}: one word alone; a passage and its last word are expected")
    return Example(text=before, target=last)


def _parse_lambada(row: TableRow) -> Example:
    return _split_last_word(row.get_text("text"), row.location)


def _read_plain_text(path: Path) -> Iterator[Example]:
    return (_split_last_word(text.strip(), f"{path}:{number}") for number, text in read_lines(path) if text.strip())


LAMBADA = Task(
    name="lambada",
    kind="cloze",
    metrics=("accuracy",),
    splits={
        "dev": TaskSplit(
            published_name="development (tokenised)",
            files=(SplitFile(path="lambada_development_plain_text.txt", reader=_read_plain_text, rows=4869),),
        ),
        "test": TaskSplit(
            published_name="test",
            files=(
                SplitFile(path="lambada_test.jsonl", reader=RowReader(table=Jsonl(), make=_parse_lambada), rows=5153),
            ),
        ),
        "test_tokenized": TaskSplit(
            published_name="test (tokenised)",
            files=(SplitFile(path="lambada_test_plain_text.txt", reader=_read_plain_text, rows=5153),),
        ),
    },
)
"""LAMBADA: the last word of a passage, which the last sentence alone does not give (Paperno et al., 2016)"""
