"""LAMBADA (Paperno et al., 2016): the last word of a passage, to evaluate language models without training."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Jsonl, RowReader, TableRow, read_lines
from pretune.tasks.task import SplitFile, Task, TaskSplit


def _split_last_word(text: str, location: str) -> Example:
    context, space, last_word = text.rpartition(" ")
    if not space:
        raise DataError(f"{location}: expected a passage and its last word, got one word")
    return Example(text=context, target=last_word)


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
"""LAMBADA: the last word of a passage, which needs more context than the last sentence (Paperno et al., 2016)"""
